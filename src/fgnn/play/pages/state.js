// What the page shows at the moment, and the events that its parts listen to.
import { Undo } from "./history.js";
import { modelData } from "./model.js";

export const $ = (id) => document.getElementById(id);

/** Whether a server answers what the page cannot compute. */
export const served = () => document.documentElement.dataset.server === "yes";

export const app = {
  model: { variables: [], factors: [] },
  chosen: [], // keys such as "variable-3" and "factor-0"
  steps: [], // of belief propagation; empty if there are none for this model
  at: 0, // the step that is shown
  shown: null, // an assignment or marginals from the table of results: {assignment, marginals}
  optimum: null, // the proved score of this model
  undo: new Undo(),
};

const actions = {};

/** Call the action at every event of this name: "model", "numbers", "selection", "step", "stale". */
export function on(event, action) { (actions[event] ||= []).push(action); }
export function emit(event) { for (const action of actions[event] || []) action(); }

export function showError(text) { $("error").textContent = text; }

/** The selected variables. */
export const chosenVariables = () => app.chosen.filter((k) => k.startsWith("variable-")).map((k) => Number(k.slice(9)));

/** The node of a key. */
export function nodeOf(key) {
  const [kind, index] = key.split("-");
  return (kind === "variable" ? app.model.variables : app.model.factors)[Number(index)];
}

/** After an edit: what was computed no longer holds. `structure`: nodes or edges have changed. */
export function edited(structure = false) {
  forget();
  app.undo.record(JSON.stringify(modelData(app.model)));
  emit("stale");
  emit(structure ? "model" : "numbers");
}

/** After nodes have moved: nothing but their places is new. */
export function moved() {
  app.undo.record(JSON.stringify(modelData(app.model)));
  emit("moved");
}

export function forget() { app.steps = []; app.at = 0; app.shown = null; app.optimum = null; }

export function choose(keys) { app.chosen = keys; emit("selection"); }
