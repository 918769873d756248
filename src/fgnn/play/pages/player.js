// Belief propagation on the page: run, step, play. While it plays, messages travel and beliefs grow.
import { busy } from "./busy.js";
import { colourOf, drawn, make, paintBars, preference } from "./drawing.js";
import { dualBounds } from "./dual_bound.js";
import { networkBeliefs } from "./fgnn_layer.js";
import { finishSlowly } from "./jobs.js";
import { passMessages } from "./messages.js";
import { modelData, scoreOf } from "./model.js";
import { argmax, show } from "./numbers.js";
import { call } from "./server.js";
import { $, app, emit, on, showError } from "./state.js";

const MILLISECONDS = 1100; // for one iteration while playing
const MOST_DOTS = 1500;
let frame = 0;

export function settings() {
  const iterations = Math.min(50, Math.max(1, Math.round(Number($("iterations").value)) || 12));
  return { rule: $("rule").value, iterations, damping: Number($("damping").value), network: $("network").checked };
}

export function applySettings({ rule, iterations, damping, network } = {}) {
  if (rule === "max" || rule === "sum") $("rule").value = rule;
  if (Number.isInteger(iterations) && iterations >= 1 && iterations <= 50) $("iterations").value = iterations;
  if (typeof damping === "number" && damping >= 0 && damping <= 0.95) $("damping").value = damping;
  if (typeof network === "boolean") $("network").checked = network;
  $("damping-value").textContent = $("damping").value;
}

/** Compute all steps; with `keep`, stay at the step that is shown. */
export async function run(keep = false) {
  const wanted = settings(), at = app.at;
  pause();
  if (!app.model.variables.length) { showError("Expected a model with at least one variable"); return false; }
  const model = app.model, steps = await busy("passing messages", (signal) => compute(wanted, signal));
  if (!steps || app.model !== model) return false;
  app.steps = steps;
  go(keep ? at : 1);
  return true;
}

async function compute({ rule, iterations, damping, network }, signal) {
  if (network && (damping || rule === "sum")) throw Error("Expected max-product with damping 0 for the network, which runs undamped max-product");
  const steps = await finishSlowly(passMessages(app.model, { rule, iterations, damping }), signal);
  steps.bounds = rule === "max" ? await finishSlowly(dualBounds(app.model, iterations), signal) : null;
  steps.rule = rule;
  if (!network) return steps;
  const compiled = await compiledNetwork(app.model, signal);
  steps.gap = 0;
  networkBeliefs(compiled, iterations).forEach((beliefs, t) => {
    const step = steps[t + 1];
    beliefs.forEach((b, i) => b.forEach((v, s) => { if (v !== step.beliefs[i][s]) steps.gap = Math.max(steps.gap, Math.abs(v - step.beliefs[i][s])); }));
    Object.assign(step, { beliefs, assignment: beliefs.map(argmax) });
    step.score = scoreOf(app.model, step.assignment);
  });
  return steps;
}

/** The network of a model: the page has those of the examples, the server compiles any other. */
async function compiledNetwork(model, signal) {
  const data = modelData(model, false), text = JSON.stringify(data);
  const known = Object.values(JSON.parse($("networks").textContent)).find((n) => JSON.stringify(n.model) === text);
  if (known) return known;
  try {
    return await call("network", { model: data }, signal);
  } catch (error) {
    throw error.name === "AbortError" ? error : Error(`the network of this model: ${error.message}`);
  }
}

/** Show a step. */
export function go(t) {
  if (!app.steps.length) return;
  app.at = Math.min(Math.max(t, 0), app.steps.length - 1);
  app.shown = null;
  emit("step");
}

export function controls() {
  const on_ = app.steps.length > 0, unit = app.steps.gap === undefined ? "iteration" : "FGNN layer";
  for (const id of ["back", "step", "forward"]) $(id).disabled = !on_;
  $("step").max = Math.max(0, app.steps.length - 1); $("step").value = app.at;
  if (!on_) { $("progress").textContent = ""; return; }
  const step = app.steps[app.at], gap = app.steps.gap === undefined ? "" : `; network and messages differ by ${app.steps.gap.toExponential(1)}`;
  $("progress").textContent = `after ${unit} ${app.at} of ${app.steps.length - 1}: score ${show(step.score)}, largest change ${show(step.change)}${gap}`;
}

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export async function play() {
  if (frame) { pause(); return; }
  if (!app.steps.length && !await run()) return;
  if (app.at >= app.steps.length - 1) go(0);
  $("play").textContent = "❚❚ pause";
  $("play").setAttribute("aria-label", "pause");
  let begin = null;
  const tick = (now) => {
    if (!app.steps.length) { pause(); return; }
    begin ??= now;
    const part = Math.min(1, (now - begin) / MILLISECONDS);
    if (part < 1) { if (!calm()) travel(part); frame = requestAnimationFrame(tick); return; }
    begin = now;
    go(app.at + 1);
    if (app.at >= app.steps.length - 1) pause();
    else frame = requestAnimationFrame(tick);
  };
  frame = requestAnimationFrame(tick);
}

export function pause() {
  cancelAnimationFrame(frame);
  frame = 0;
  $("play").textContent = "▶ play";
  $("play").setAttribute("aria-label", "play");
  $("dots").replaceChildren();
}

export const playing = () => frame !== 0;

/** Messages between two steps: to the factors in the first half, to the variables in the second, while beliefs grow. */
function travel(part) {
  const next = app.steps[app.at + 1], out = part < 0.5, way = out ? 2 * part : 2 * part - 1;
  if (!next || drawn.links.length > MOST_DOTS) return;
  const dots = $("dots");
  while (dots.childElementCount < drawn.links.length) make("circle", {}, dots);
  drawn.links.forEach(({ f, v }, e) => {
    const { state, strength } = preference((out ? next.toFactor : next.toVariable)[e]), dot = dots.children[e];
    const t = out ? 1 - way : way; // 0 at the factor, 1 at the variable
    dot.setAttribute("cx", f.x + t * (v.x - f.x)); dot.setAttribute("cy", f.y + t * (v.y - f.y));
    dot.setAttribute("r", 2.5 + 0.6 * strength); dot.style.fill = colourOf(state, true);
  });
  if (!out) paintBars(app.at + way);
}

let changed = false, running = false;

/** Run again with the new settings; while a run lasts, further changes wait for its end. */
async function settingsChanged() {
  $("damping-value").textContent = $("damping").value;
  changed = app.steps.length > 0;
  if (!changed) emit("settings");
  if (running) return;
  running = true;
  while (changed) { changed = false; await run(true); }
  running = false;
}

export function listenToPlayer() {
  $("run").onclick = () => run();
  $("play").onclick = play;
  $("back").onclick = () => { pause(); go(app.at - 1); };
  $("forward").onclick = () => { pause(); go(app.at + 1); };
  $("step").oninput = () => { pause(); go(Number($("step").value)); };
  $("damping").oninput = settingsChanged;
  for (const id of ["rule", "iterations", "network"]) $(id).onchange = settingsChanged;
  on("step", controls);
  on("stale", () => { pause(); controls(); });
}

