// The panel of the selected node: its potentials to edit, and its beliefs and messages as numbers.
import { drawn, linkEdge } from "./drawing.js";
import { budgetFault } from "./model.js";
import { show, softmax } from "./numbers.js";
import { $, app, edited, emit, nodeOf, on, showError } from "./state.js";

const MOST_CELLS = 128, MOST_STATES = 8;

/** A field that checks what is entered: `check` returns why a number is refused, `apply` takes it. */
function field(label, value, kind, check, apply) {
  const row = document.createElement("label"), input = document.createElement("input");
  row.className = "row"; row.textContent = label;
  input.className = "cell"; input.value = value === -Infinity ? "-inf" : value;
  input.onchange = () => {
    const text = input.value.trim(), parsed = text === "-inf" && kind === "real" ? -Infinity : Number(text);
    const valid = text !== "" && (parsed === -Infinity || Math.abs(parsed) <= 1e300) && (kind === "real" || Number.isInteger(parsed));
    const fault = valid ? check(parsed) : `Expected ${kind === "whole" ? "a whole number" : "a number or -inf"} (got '${text}')`;
    showError(fault);
    if (fault) { input.setAttribute("aria-invalid", "true"); return; }
    input.removeAttribute("aria-invalid");
    apply(parsed);
  };
  row.append(input);
  return row;
}

const any = () => "";

function note(text) {
  const p = document.createElement("p");
  p.className = "hint"; p.textContent = text;
  $("inspector").append(p);
}

function inspectVariable(v, index) {
  note(`Variable ${index}`);
  const linked = () => app.model.factors.some((f) => f.scope.includes(index));
  $("inspector").append(field("states", v.states, "whole", (k) => {
    if (k < 1 || k > MOST_STATES) return `Expected 1 to ${MOST_STATES} states here (got ${k})`;
    return linked() ? "Expected a variable without factors to change its number of states" : "";
  }, (k) => {
    v.states = k; v.unary = Array.from({ length: k }, (_, s) => v.unary[s] ?? 0);
    edited(true);
  }));
  v.unary.forEach((u, s) => $("inspector").append(field(`θ(${s})`, u, "real", any, (x) => { v.unary[s] = x; edited(); })));
}

function inspectFactor(f) {
  note(`${f.kind === "budget" ? "Budget" : "Table"} over ${f.scope.join(", ")}`);
  if (f.kind === "budget") {
    const n = f.scope.length, bounds = (low, high) => budgetFault(low, high, n) || (high > n ? `Expected at most ${n} of ${n} variables (got ${high})` : "");
    $("inspector").append(
      field("at least", f.at_least, "whole", (x) => bounds(x, f.at_most), (x) => { f.at_least = x; edited(); }),
      field("at most", f.at_most, "whole", (x) => bounds(f.at_least, x), (x) => { f.at_most = x; edited(); }),
    );
    return;
  }
  if (f.values.length > MOST_CELLS) { note(`${f.values.length} values: too many to edit here.`); return; }
  f.values.forEach((value, cell) => {
    const states = [];
    let rest = cell;
    for (const i of [...f.scope].reverse()) { const k = app.model.variables[i].states; states.unshift(rest % k); rest = Math.floor(rest / k); }
    $("inspector").append(field(`θ(${states.join(", ")})`, value, "real", any, (x) => { f.values[cell] = x; edited(); }));
  });
}

export function inspect() {
  $("inspector").replaceChildren();
  if (app.chosen.length !== 1) {
    note(app.chosen.length ? `${app.chosen.length} nodes: a new table or budget will join the variables among them.`
      : "Select a node to edit it. Shift-select several variables, then add a table or a budget over them.");
  } else {
    const [kind, index] = app.chosen[0].split("-"), node = nodeOf(app.chosen[0]);
    if (kind === "variable") inspectVariable(node, Number(index));
    else inspectFactor(node);
  }
  showNumbers();
}

/** What an edge carries at the step that is shown, as rows of [name, numbers]. */
export function edgeNumbers(e) {
  const { factor, variable } = drawn.wiring.edges[e], f = app.model.factors[factor], step = app.steps[app.at];
  const text = (message) => Array.from(message, show).join(", "), rows = [];
  if (step && step.toFactor.length) rows.push([`variable ${variable} → ${f.kind} ${factor}`, text(step.toFactor[e])]);
  if (step) rows.push([`${f.kind} ${factor} → variable ${variable}`, text(step.toVariable[e])]);
  return rows;
}

/** Beliefs and messages of the selected node. */
export function showNumbers() {
  const box = $("numbers");
  box.replaceChildren();
  if (!app.steps.length || app.shown || app.chosen.length !== 1) return;
  const node = drawn.nodes.get(app.chosen[0]), [kind, index] = app.chosen[0].split("-"), step = app.steps[app.at], rows = [];
  if (kind === "variable") {
    const belief = step.beliefs[Number(index)];
    rows.push(["belief", Array.from(belief, show).join(", "), null]);
    if (app.steps.rule === "sum") rows.push(["probability", softmax(belief).map(show).join(", "), null]);
    for (const e of node.edges) rows.push([`from ${nameOfFactor(e)}`, Array.from(step.toVariable[e], show).join(", "), e]);
  } else {
    for (const e of node.edges) {
      const i = drawn.wiring.edges[e].variable;
      if (step.toFactor.length) rows.push([`from variable ${i}`, Array.from(step.toFactor[e], show).join(", "), e]);
      rows.push([`to variable ${i}`, Array.from(step.toVariable[e], show).join(", "), e]);
    }
  }
  const head = document.createElement("h2"), table = document.createElement("table");
  head.textContent = `${app.steps.gap === undefined ? "iteration" : "FGNN layer"} ${app.at}`;
  for (const [name, value, edge] of rows) addRow(table, name, value, edge);
  box.append(head, table);
}

const nameOfFactor = (e) => { const c = drawn.wiring.edges[e].factor; return `${app.model.factors[c].kind} ${c}`; };

function addRow(table, name, value, edge) {
  const row = table.insertRow();
  row.insertCell().textContent = name;
  row.insertCell().textContent = value;
  if (edge === null) return;
  row.dataset.edge = edge;
  row.onpointerenter = () => linkEdge(edge);
  row.onpointerleave = () => linkEdge(null);
}

/** Hovering an edge marks it and shows its numbers. */
function hover(event) {
  const group = event.target.closest?.(".link"), tip = $("tip"), node = event.target.closest?.(".node");
  linkEdge(group ? Number(group.dataset.edge) : null);
  const belief = node?.dataset.belief;
  if (!group && !belief) { tip.hidden = true; return; }
  const rows = group ? edgeNumbers(Number(group.dataset.edge)) : [["probabilities", belief]];
  tip.textContent = rows.length ? rows.map(([name, text]) => `${name}: ${text}`).join("\n") : "Run belief propagation to see the messages of this edge.";
  const box = $("drawing").getBoundingClientRect();
  tip.hidden = false;
  tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${Math.min(event.clientY - box.top + 14, box.height - tip.offsetHeight - 4)}px`;
}

export function listenToInspector() {
  on("selection", inspect); on("model", inspect); on("step", showNumbers); on("stale", showNumbers);
  $("drawing").addEventListener("pointerover", hover);
  $("drawing").addEventListener("pointerleave", () => { $("tip").hidden = true; linkEdge(null); });
  on("selection", () => emit("paint"));
}
