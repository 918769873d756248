// Editing the graph: new nodes, removal, undo and redo.
import { layoutModel, relayout } from "./layout.js";
import { MAX_FACTORS, MAX_VARIABLES, modelData, readModel, tableSize } from "./model.js";
import { $, app, choose, chosenVariables, edited, emit, forget, moved, on, showError } from "./state.js";
import { fitView } from "./viewport.js";

const MOST_CELLS = 4096;

/** Show another model, which `readModel` has checked; it starts a new list of undo steps unless `undoable`. */
export function setModel(model, undoable = false) {
  app.model = model;
  app.chosen = [];
  forget();
  layoutModel(model);
  const text = JSON.stringify(modelData(model));
  if (undoable) app.undo.record(text);
  else app.undo.reset(text);
  $("results").tBodies[0].replaceChildren();
  emit("stale"); emit("model"); emit("selection");
  fitView();
}

function addVariable() {
  if (app.model.variables.length >= MAX_VARIABLES) { showError(`Expected at most ${MAX_VARIABLES} variables`); return; }
  app.model.variables.push({ states: 2, unary: [0, 0] });
  layoutModel(app.model);
  app.chosen = [`variable-${app.model.variables.length - 1}`];
  showError("");
  edited(true); emit("selection"); fitView();
}

function addFactor(kind) {
  const scope = chosenVariables(), fault = refusal(kind, scope);
  showError(fault);
  if (fault) return;
  app.model.factors.push(kind === "table" ? { kind, scope, values: Array(tableSize(app.model, scope)).fill(0) }
    : { kind, scope, at_least: 0, at_most: Math.max(1, Math.floor(scope.length / 2)) });
  layoutModel(app.model);
  app.chosen = [`factor-${app.model.factors.length - 1}`];
  edited(true); emit("selection");
}

function refusal(kind, scope) {
  if (app.model.factors.length >= MAX_FACTORS) return `Expected at most ${MAX_FACTORS} factors`;
  if (scope.length < (kind === "table" ? 2 : 1)) return `Select ${kind === "table" ? "two or more" : "some"} variables first (shift-click or shift-Enter).`;
  if (kind === "budget" && scope.some((i) => app.model.variables[i].states !== 2)) return "Expected binary variables in a budget";
  if (kind === "table" && tableSize(app.model, scope) > MOST_CELLS) return `Expected at most ${MOST_CELLS} entries in a table drawn here`;
  return "";
}

/** Remove the selected nodes, and the factors of removed variables. */
function removeChosen() {
  const removed = new Set(chosenVariables()), factors = new Set(app.chosen.filter((k) => k.startsWith("factor-")).map((k) => Number(k.slice(7))));
  if (!removed.size && !factors.size) return;
  const rename = new Map();
  app.model.variables.forEach((_, i) => { if (!removed.has(i)) rename.set(i, rename.size); });
  app.model.factors = app.model.factors.filter((f, c) => !factors.has(c) && !f.scope.some((i) => removed.has(i)));
  for (const f of app.model.factors) f.scope = f.scope.map((i) => rename.get(i));
  app.model.variables = app.model.variables.filter((_, i) => !removed.has(i));
  app.chosen = [];
  edited(true); emit("selection");
}

/** Go to another state of the list of undo steps; if only places differ, what was computed stays. */
function restore(text) {
  if (text === null) return;
  const model = readModel(JSON.parse(text)), numbers = (m) => JSON.stringify(modelData(m, false));
  if (numbers(model) === numbers(app.model)) {
    for (const kind of ["variables", "factors"]) app.model[kind].forEach((node, k) => Object.assign(node, { x: model[kind][k].x, y: model[kind][k].y }));
    emit("model");
    return;
  }
  app.model = model;
  layoutModel(app.model);
  app.chosen = [];
  forget();
  emit("stale"); emit("model"); emit("selection");
}

export const undo = () => restore(app.undo.undo());
export const redo = () => restore(app.undo.redo());

export function listenToEditing() {
  $("add-variable").onclick = addVariable;
  $("add-table").onclick = () => addFactor("table");
  $("add-budget").onclick = () => addFactor("budget");
  $("delete").onclick = removeChosen;
  $("undo").onclick = undo; $("redo").onclick = redo;
  $("clear").onclick = () => { setModel({ variables: [], factors: [] }, true); showError(""); };
  $("arrange").onclick = () => { relayout(app.model); emit("model"); moved(); fitView(); };
  on("delete", removeChosen);
  const buttons = () => { $("undo").disabled = !app.undo.canUndo; $("redo").disabled = !app.undo.canRedo; };
  for (const event of ["model", "numbers", "moved"]) on(event, buttons);
}

export const selectAll = () => choose([...app.model.variables.map((_, i) => `variable-${i}`), ...app.model.factors.map((_, c) => `factor-${c}`)]);
