// The page: its parts are connected, its state is kept, and the keyboard is read.
import { cancel, busy } from "./busy.js";
import { drawCurve, listenToCurve } from "./curve.js";
import { buildDrawing, paint } from "./drawing.js";
import { dualBounds } from "./dual_bound.js";
import { listenToEditing, redo, selectAll, setModel, undo } from "./editing.js";
import { eliminateMax, eliminateSum } from "./elimination.js";
import { networkBeliefs } from "./fgnn_layer.js";
import { readFile, saveFile, writeJson, writeUai } from "./files.js";
import { listenToInspector } from "./inspector.js";
import { finish } from "./jobs.js";
import { decodeLink, encodeLink, fromBase64, MOST_LINK, remember, remembered } from "./link.js";
import { passMessages } from "./messages.js";
import { modelData, readModel } from "./model.js";
import { applySettings, controls, go, listenToPlayer, pause, play, run, settings } from "./player.js";
import { readSafetensors } from "./safetensors.js";
import { loadWeights } from "./server.js";
import { listenToSolving, methods } from "./solving.js";
import { $, app, choose, emit, on, showError } from "./state.js";
import { endTour, listenToTour, TOUR } from "./tour.js";
import { networkScores } from "./trained_network.js";
import { currentView, fitView, listenToPointer, zoomBy } from "./viewport.js";

const EXAMPLES = JSON.parse($("examples").textContent);

// ---- state in the address ------------------------------------------------------------------------------------------
const pageState = () => ({ model: modelData(app.model), method: $("method").value, ...settings(), step: app.steps.length ? app.at : -1 });

let saving = 0;
function saveSoon() { clearTimeout(saving); saving = setTimeout(save, 120); }

async function save() {
  clearTimeout(saving);
  const state = pageState();
  remember(state);
  const text = await encodeLink(state), fits = text.length <= MOST_LINK;
  history.replaceState(null, "", fits ? `#${text}` : location.pathname);
  return fits;
}

/** Show a state from a link or from the browser's storage; throws if its model is invalid. */
async function restoreState(state) {
  if (!state || typeof state !== "object") throw Error("it contains no model");
  const model = readModel(state.model);
  setModel(model);
  applySettings(state);
  if (state.method in methods()) $("method").value = state.method;
  if (Number.isInteger(state.step) && state.step >= 0 && model.variables.length && await run()) go(state.step);
}

async function begin() {
  const hash = location.hash.slice(1), stored = remembered();
  let fault = "";
  if (hash) {
    try { await restoreState(await decodeLink(hash)); return; } catch (error) { fault = `the link: ${error.message}`; }
  }
  try {
    if (!stored) throw Error("nothing stored");
    await restoreState(stored);
  } catch {
    const first = innerWidth < 600 ? "grid" : "chain"; // the nodes of a chain would be tiny on a narrow screen
    setModel(readModel(EXAMPLES[first].model));
    $("example").value = first;
  }
  showError(fault);
}

// ---- files ---------------------------------------------------------------------------------------------------------
function listenToFiles() {
  for (const [name, { title, listed }] of Object.entries(EXAMPLES)) if (listed) $("example").add(new Option(title, name));
  $("example").onchange = () => {
    const name = $("example").value;
    if (!name) return;
    showError("");
    setModel(readModel(EXAMPLES[name].model), true);
    $("example").value = name;
  };
  on("stale", () => { $("example").value = ""; }); // so that the same example can be chosen again
  $("load").onclick = () => $("file").click();
  $("file").onchange = async () => {
    const [file] = $("file").files;
    if (!file) return;
    const model = await busy(`reading ${file.name}`, async (signal) => readFile(file.name, new Uint8Array(await file.arrayBuffer()), signal));
    if (model) setModel(model, true);
    $("file").value = "";
  };
  $("save-uai").onclick = () => { try { saveFile("model.uai", writeUai(app.model)); showError(""); } catch (error) { showError(error.message); } };
  $("save-json").onclick = () => saveFile("model.json", writeJson(app.model));
  $("share").onclick = async () => {
    if (!await save()) { showError("Expected a smaller model for a link; save it as JSON instead"); return; }
    try { await navigator.clipboard.writeText(location.href); $("progress").textContent = "link copied"; } catch { $("progress").textContent = "the address bar holds the link"; }
  };
}

// ---- keyboard ------------------------------------------------------------------------------------------------------
const KEYS = { "+": () => zoomBy(1.25), "=": () => zoomBy(1.25), "-": () => zoomBy(0.8), 0: fitView, ",": () => { pause(); go(app.at - 1); }, ".": () => { pause(); go(app.at + 1); }, " ": play };

function listenToKeys() {
  addEventListener("keydown", (e) => {
    const field = e.target.closest?.("input, select, textarea"), button = e.target.closest?.("button, summary");
    if (field) return;
    if (e.ctrlKey || e.metaKey) {
      const action = { z: e.shiftKey ? redo : undo, y: redo, a: selectAll }[e.key.toLowerCase()];
      if (action) { action(); e.preventDefault(); }
      return;
    }
    if (e.key === "Escape") { cancel(); endTour(); choose([]); return; }
    if (e.key === " " && button) return;
    if (KEYS[e.key]) { KEYS[e.key](); e.preventDefault(); }
  });
}

on("model", buildDrawing);
for (const event of ["numbers", "step", "paint"]) on(event, paint);
for (const event of ["model", "numbers", "moved", "step", "settings"]) on(event, saveSoon);
on("stale", () => { controls(); drawCurve(); });
for (const listen of [listenToPointer, listenToEditing, listenToInspector, listenToSolving, listenToPlayer, listenToCurve, listenToTour, listenToFiles, listenToKeys]) listen();
$("cancel").onclick = cancel;
$("method").onchange = saveSoon;
addEventListener("pagehide", () => remember(pageState()));

/** The page's parts, for scripts and tests. */
globalThis.playground = { app, TOUR, currentView, dualBounds, eliminateMax, eliminateSum, emit, encodeLink, finish, fromBase64, loadWeights, methods, networkBeliefs, networkScores, readFile, readModel, readSafetensors, passMessages, run, setModel, writeUai };
begin().then(() => { document.body.dataset.ready = "yes"; });
