// Solving: methods that run in the page, methods of the server, and the table of their results.
import { busy, tellBusy } from "./busy.js";
import { dualBounds } from "./dual_bound.js";
import { eliminateMax, eliminateSum, TooWide } from "./elimination.js";
import { finishSlowly } from "./jobs.js";
import { fromBase64 } from "./link.js";
import { passMessages } from "./messages.js";
import { isForest, modelData, scoreOf } from "./model.js";
import { argmax, fromPlain, show, softmax } from "./numbers.js";
import { readSafetensors } from "./safetensors.js";
import { call, loadWeights } from "./server.js";
import { $, app, emit, on, served } from "./state.js";
import { networkRefusal, networkScores } from "./trained_network.js";

const ITERATIONS = 100, DAMPING = 0.5, SECONDS = 5;

const status = (score, bound) => (score === -Infinity ? "infeasible" : bound - score <= 1e-9 * Math.max(1, Math.abs(bound)) ? "optimal" : "feasible");

async function exact(model, signal) {
  try {
    const { score, assignment } = await finishSlowly(eliminateMax(model), signal);
    return { score, bound: score, status: assignment ? "optimal" : "infeasible", assignment };
  } catch (error) {
    if (error instanceof TooWide && served()) return remote("exact")(model, signal);
    throw error;
  }
}

async function marginals(model, signal) {
  const { logZ, marginals: p } = await finishSlowly(eliminateSum(model), signal);
  if (!p) return { score: -Infinity, bound: -Infinity, status: "infeasible", assignment: null };
  const assignment = p.map(argmax);
  return { score: scoreOf(model, assignment), bound: Infinity, status: `log Z = ${show(logZ)}`, assignment, marginals: p };
}

async function maxProduct(model, signal) {
  const steps = await finishSlowly(passMessages(model, { iterations: ITERATIONS, damping: isForest(model) ? 0 : DAMPING }), signal);
  const best = steps.reduce((a, b) => (b.score > a.score ? b : a)), bound = (await finishSlowly(dualBounds(model, ITERATIONS), signal)).at(-1);
  return { score: best.score, bound, status: status(best.score, bound), assignment: best.assignment };
}

async function network(model, signal) {
  const refusal = networkRefusal(model);
  if (refusal) throw Error(refusal);
  const tensors = await loadWeights((text) => readSafetensors(fromBase64(text)).tensors);
  const scores = await finishSlowly(networkScores(tensors, model), signal), assignment = scores.map(argmax);
  const score = scoreOf(model, assignment);
  return { score, bound: Infinity, status: status(score, Infinity), assignment, marginals: scores.map(softmax) };
}

async function auto(model, signal) {
  try {
    const { score, assignment } = await finishSlowly(eliminateMax(model), signal);
    return { label: "auto:exact", score, bound: score, status: assignment ? "optimal" : "infeasible", assignment };
  } catch (error) {
    if (!(error instanceof TooWide)) throw error;
    if (served()) return remote("auto")(model, signal);
    return { label: "auto:max-product", ...await maxProduct(model, signal) };
  }
}

const remote = (method) => async (model, signal) => {
  const reply = await call("solve", { model: modelData(model, false), method, seconds: SECONDS }, signal);
  return { ...reply, label: reply.method, score: fromPlain(reply.score), bound: fromPlain(reply.bound) };
};

/** Methods by name. Those of the server are left out where there is none. */
export function methods() {
  const here = { auto, exact, "max-product": maxProduct, network, marginals };
  const there = Object.fromEntries(["brute-force", "toulbar2", "lp", "ad3", "fgnn"].map((name) => [name, remote(name)]));
  return served() ? { ...here, ...there } : here;
}

const rows = () => [...$("results").tBodies[0].rows];

function addRow(name, result, seconds, fault = "") {
  const row = $("results").tBodies[0].insertRow();
  const label = result && name === "auto" && result.label ? result.label : name;
  const cells = result ? [label, show(result.score), show(result.bound), result.status, seconds.toFixed(3)] : [name, "", "", fault, ""];
  for (const text of cells) row.insertCell().textContent = text;
  if (!result || !result.assignment) return;
  if (result.status === "optimal") app.optimum = result.score;
  row.tabIndex = 0;
  const present = () => {
    if (row.classList.contains("stale")) return;
    app.shown = { assignment: result.assignment, marginals: result.marginals };
    emit("step");
    for (const r of rows()) r.setAttribute("aria-selected", String(r === row));
  };
  row.onclick = present;
  row.onkeydown = (e) => { if (e.key === "Enter") present(); };
  present();
}

/** Solve by one method and show its row; the rows of others are removed unless `keep`. */
export async function solveBy(name, keep = false) {
  if (!keep) $("results").tBodies[0].replaceChildren();
  await busy(`solving: ${name}`, (signal) => timed(name, signal));
}

async function timed(name, signal) {
  const model = app.model, begin = performance.now(), result = await methods()[name](model, signal);
  addRow(name, result, (performance.now() - begin) / 1000);
}

async function compareAll() {
  $("results").tBodies[0].replaceChildren();
  await busy("comparing", async (signal) => {
    for (const name of Object.keys(methods()).filter((m) => m !== "auto")) {
      tellBusy(`solving: ${name}`);
      try {
        await timed(name, signal);
      } catch (error) {
        if (error.name === "AbortError") throw error;
        addRow(name, null, 0, error.message);
      }
    }
  });
}

export function listenToSolving() {
  for (const name of Object.keys(methods())) $("method").add(new Option(name, name));
  $("solve").onclick = () => solveBy($("method").value);
  $("compare").onclick = compareAll;
  on("stale", () => { // the results are of the model before the edit
    for (const row of rows()) {
      row.removeAttribute("aria-selected");
      if (row.classList.contains("stale")) continue;
      row.classList.add("stale");
      row.cells[3].textContent = `${row.cells[3].textContent} (stale)`;
    }
  });
  on("step", () => { if (!app.shown) for (const row of rows()) row.removeAttribute("aria-selected"); });
}
