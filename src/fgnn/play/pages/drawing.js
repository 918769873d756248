// The drawing: SVG nodes that are made once for a model and then updated in place.
import { edgesOf } from "./messages.js";
import { argmax, show, softmax } from "./numbers.js";
import { $, app } from "./state.js";

const NS = "http://www.w3.org/2000/svg";
const COLOURS = ["var(--panel)", "#2f6fb0", "#d9772b", "#4c9a4c", "#a94f9d", "#b8a13a", "#5aa9a5", "#8c5a3c"];
const MOST_BARS = 8, TALL = 24, FOOT = -13; // bars: their number, height and lower end
const nodes = new Map(), links = []; // by key; by edge: {group, lines, f, v}

export const drawn = { nodes, links, wiring: null };

export function make(kind, attributes, parent) {
  const node = document.createElementNS(NS, kind);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  parent.append(node);
  return node;
}

/** The colour of a state; state 0 is grey where it must show on paper. */
export const colourOf = (state, solid = false) => (state % 8 === 0 && solid ? "var(--soft)" : COLOURS[state % 8]);

/** Make all nodes and edges of the model. */
export function buildDrawing() {
  const focused = document.activeElement?.dataset?.key;
  $("edges").replaceChildren(); $("nodes").replaceChildren(); $("dots").replaceChildren();
  nodes.clear(); links.length = 0;
  drawn.wiring = edgesOf(app.model);
  drawn.wiring.edges.forEach(({ factor, variable }, e) => {
    const group = make("g", { class: "link", "data-edge": e }, $("edges"));
    const lines = [make("line", { class: "edge" }, group), make("line", { class: "hit" }, group)];
    links.push({ group, lines, f: app.model.factors[factor], v: app.model.variables[variable] });
  });
  app.model.factors.forEach((f, c) => makeFactor(f, c));
  app.model.variables.forEach((v, i) => makeVariable(v, i));
  links.forEach(moveLink);
  paint();
  if (focused) nodes.get(focused)?.group.focus();
}

function makeNode(key, thing, edges) {
  const group = make("g", { class: "node", tabindex: 0, role: "button", "data-key": key }, $("nodes"));
  const node = { key, thing, group, edges };
  nodes.set(key, node);
  moveNode(node);
  return node;
}

function makeFactor(f, c) {
  const node = makeNode(`factor-${c}`, f, f.scope.map((_, a) => drawn.wiring.first[c] + a));
  node.shape = make("rect", { x: -11, y: -11, width: 22, height: 22, rx: 3, class: "shape" }, node.group);
  node.text = make("text", { y: 4, style: "fill:#111" }, node.group);
}

function makeVariable(v, i) {
  const node = makeNode(`variable-${i}`, v, drawn.wiring.incident[i]);
  node.shape = make("circle", { r: 16, class: "shape" }, node.group);
  node.text = make("text", { y: 4 }, node.group);
  node.text.textContent = i;
  const width = v.states <= 4 ? 6 : 4; // beside the circle, clear of factors above it
  node.bars = Array.from({ length: Math.min(v.states, MOST_BARS) }, (_, s) => make("rect", {
    class: "bar", x: 13 + width * s, width: width - 1, y: FOOT, height: 0, fill: colourOf(s, true),
  }, node.group));
}

export function moveNode(node) {
  node.group.setAttribute("transform", `translate(${node.thing.x} ${node.thing.y})`);
  for (const e of node.edges) if (links[e]) moveLink(links[e]);
}

function moveLink({ lines, f, v }) {
  for (const line of lines) {
    line.setAttribute("x1", f.x); line.setAttribute("y1", f.y); line.setAttribute("x2", v.x); line.setAttribute("y2", v.y);
  }
}

/** The assignment that is shown; null if there is none. */
export const shownAssignment = () => (app.shown ? app.shown.assignment : app.steps.length ? app.steps[app.at].assignment : null);

/** Update colours, labels, bars and edges to what is shown. */
export function paint() {
  const assignment = shownAssignment(), step = app.steps.length && !app.shown ? app.steps[app.at] : null;
  app.model.factors.forEach((f, c) => paintFactor(nodes.get(`factor-${c}`), f, c, assignment));
  app.model.variables.forEach((v, i) => {
    const node = nodes.get(`variable-${i}`), state = assignment ? assignment[i] : null;
    node.group.setAttribute("aria-label", `variable ${i}, ${v.states} state${v.states > 1 ? "s" : ""}${state === null ? "" : `, state ${state}`}`);
    node.shape.style.fill = state === null ? "var(--panel)" : colourOf(state);
    node.text.style.fill = state ? "#fff" : "";
  });
  links.forEach(({ lines: [line] }, e) => paintEdge(line, step ? step.toVariable[e] : null));
  paintBars(app.at);
  for (const { key, group } of nodes.values()) group.classList.toggle("chosen", app.chosen.includes(key));
}

function paintFactor(node, f, c, assignment) {
  if (f.kind === "budget") {
    const ones = assignment ? f.scope.reduce((s, i) => s + assignment[i], 0) : null;
    const broken = ones !== null && (ones < f.at_least || ones > f.at_most);
    node.shape.style.fill = broken ? "var(--red)" : "var(--yellow)";
    node.text.textContent = (f.at_least ? `${f.at_least}–` : "≤") + f.at_most;
    node.group.setAttribute("aria-label", `budget ${c}: ${f.at_least} to ${f.at_most} of variables ${f.scope.join(", ")}${broken ? ", broken" : ""}`);
  } else {
    node.shape.style.fill = "var(--soft)";
    node.group.setAttribute("aria-label", `table ${c} over variables ${f.scope.join(", ")}`);
  }
}

/** How strongly a message prefers its best state, at most 6, and that state. */
export function preference(message) {
  let worst = Infinity;
  for (const m of message) worst = Math.min(worst, m === -Infinity ? -9 : m);
  const state = argmax(message), best = message[state] === -Infinity ? worst : message[state];
  return { state, strength: Math.min(best - worst, 6) };
}

function paintEdge(line, message) {
  if (!message || message.length < 2) { line.style.strokeWidth = ""; line.style.stroke = ""; return; }
  const { state, strength } = preference(message);
  line.style.strokeWidth = 1 + strength;
  line.style.stroke = strength > 0 ? colourOf(state, true) : "";
}

/** Probabilities of the states of a variable at a step, which may lie between two: they grow from one to the next. */
function beliefAt(i, position) {
  if (app.shown) return app.shown.marginals ? app.shown.marginals[i] : null;
  if (!app.steps.length) return null;
  const t = Math.min(Math.floor(position), app.steps.length - 1), rest = position - t, now = softmax(app.steps[t].beliefs[i]);
  if (rest <= 0 || t + 1 >= app.steps.length) return now;
  const next = softmax(app.steps[t + 1].beliefs[i]);
  return now.map((p, s) => p + rest * (next[s] - p));
}

/** Draw the beliefs at a position between steps. */
export function paintBars(position) {
  app.model.variables.forEach((v, i) => {
    const belief = beliefAt(i, position), { bars, group } = nodes.get(`variable-${i}`);
    bars.forEach((bar, s) => {
      const height = belief ? Math.max(TALL * belief[s], 0.5) : 0;
      bar.setAttribute("y", FOOT - height); bar.setAttribute("height", height);
    });
    if (belief) group.dataset.belief = belief.map(show).join(", ");
    else delete group.dataset.belief;
  });
}

/** Mark one edge, in the drawing and in the table of numbers. */
export function linkEdge(e) {
  links.forEach(({ group }, k) => group.classList.toggle("linked", k === e));
  for (const row of document.querySelectorAll("#numbers tr")) row.classList.toggle("linked", e !== null && row.dataset.edge === String(e));
}
