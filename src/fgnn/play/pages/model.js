// The model: variables with unaries, and factors, which are tables or budgets. The server checks the same rules.
import { fromPlain, toPlain } from "./numbers.js";

// Limits of a browser tab; `fgnn solve` takes larger models.
export const MAX_VARIABLES = 400;
export const MAX_STATES = 64;
export const MAX_FACTORS = 2000;
export const MAX_ENTRIES = 200000;

/** The entries of a table over the scope. */
export const tableSize = (model, scope) => scope.reduce((p, i) => p * model.variables[i].states, 1);

/** Why a budget over n variables may not have these bounds; "" if it may. */
export function budgetFault(low, high, n) {
  if (!Number.isInteger(low) || !Number.isInteger(high)) return "Expected whole numbers at least and at most";
  if (low < 0 || low > high) return `Expected 0 ≤ at least ≤ at most (got ${low} and ${high})`;
  if (low > n) return `Expected at least ${n} or fewer of ${n} variables (got ${low})`;
  return "";
}

/** Check JSON data and return the model it describes; throws an Error with one line that names the place. */
export function readModel(data) {
  const source = asObject(data, "the model");
  const variables = list(source, "variables", MAX_VARIABLES).map((v, i) => readVariable(asObject(v, `variable ${i}`), i));
  const model = { variables, factors: [] };
  let entries = 0;
  for (const [c, f] of (source.factors === undefined ? [] : list(source, "factors", MAX_FACTORS)).entries()) {
    const factor = readFactor(model, asObject(f, `factor ${c}`), `factor ${c}`);
    entries += factor.kind === "table" ? factor.values.length : 0;
    if (entries > MAX_ENTRIES) throw Error(`Expected at most ${MAX_ENTRIES} table entries in total`);
    model.factors.push(factor);
  }
  return model;
}

function readVariable(v, i) {
  if (!Number.isInteger(v.states) || v.states < 1 || v.states > MAX_STATES) {
    throw Error(`variable ${i}: Expected 1 to ${MAX_STATES} states (got ${String(v.states).slice(0, 20)})`);
  }
  const unary = v.unary == null ? Array(v.states).fill(0) : readNumbers(v, "unary", `variable ${i}`);
  if (unary.length !== v.states) throw Error(`variable ${i}: Expected ${v.states} unaries (got ${unary.length})`);
  return withPlace({ states: v.states, unary }, v);
}

function readFactor(model, f, place) {
  const scope = list(f, "scope", MAX_VARIABLES), n = model.variables.length;
  if (!scope.length) throw Error(`${place}: Expected at least one variable in the scope`);
  if (!scope.every((i) => Number.isInteger(i) && i >= 0 && i < n)) {
    throw Error(`${place}: Expected variables below ${n} in the scope`);
  }
  if (new Set(scope).size !== scope.length) throw Error(`${place}: Expected distinct variables in the scope`);
  if (f.kind === "budget") {
    const low = f.at_least ?? 0, high = Math.min(f.at_most ?? scope.length, scope.length);
    if (scope.some((i) => model.variables[i].states !== 2)) throw Error(`${place}: Expected binary variables in a budget`);
    const fault = budgetFault(low, f.at_most ?? scope.length, scope.length);
    if (fault) throw Error(`${place}: ${fault}`);
    return withPlace({ kind: "budget", scope: [...scope], at_least: low, at_most: high }, f);
  }
  if (f.kind !== "table") throw Error(`${place}: Expected kind 'table' or 'budget' (got '${String(f.kind).slice(0, 20)}')`);
  const values = readNumbers(f, "values", place), size = tableSize(model, scope);
  if (values.length !== size) throw Error(`${place}: Expected ${size} values (got ${values.length})`);
  return withPlace({ kind: "table", scope: [...scope], values }, f);
}

function withPlace(node, source) {
  if (Number.isFinite(source.x) && Number.isFinite(source.y)) Object.assign(node, { x: source.x, y: source.y });
  return node;
}

function asObject(value, what) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw Error(`Expected an object for ${what}`);
  return value;
}

function list(fields, name, most) {
  const value = fields[name];
  if (!Array.isArray(value)) throw Error(`Expected a list for ${name}`);
  if (value.length > most) throw Error(`Expected at most ${most} entries in ${name} (got ${value.length})`);
  return value;
}

function readNumbers(fields, name, place) {
  return list(fields, name, MAX_ENTRIES).map((entry) => {
    const value = fromPlain(entry);
    if (value === -Infinity || (typeof value === "number" && Math.abs(value) <= 1e300)) return value;
    throw Error(`${place}: Expected numbers or '-inf' (got '${String(entry).slice(0, 20)}')`);
  });
}

/** The model as JSON data; with `places`, where its nodes are drawn. */
export function modelData(model, places = true) {
  const at = (node) => (places && Number.isFinite(node.x) ? { x: Math.round(node.x * 10) / 10, y: Math.round(node.y * 10) / 10 } : {});
  return {
    variables: model.variables.map((v) => ({ states: v.states, unary: v.unary.map(toPlain), ...at(v) })),
    factors: model.factors.map((f) => (f.kind === "budget"
      ? { kind: "budget", scope: f.scope, at_least: f.at_least, at_most: f.at_most, ...at(f) }
      : { kind: "table", scope: f.scope, values: f.values.map(toPlain), ...at(f) })),
  };
}

/** The score of an assignment: the sum of its log-potentials. */
export function scoreOf(model, assignment) {
  let total = 0;
  model.variables.forEach((v, i) => { total += v.unary[assignment[i]]; });
  for (const f of model.factors) {
    if (f.kind === "budget") {
      const ones = f.scope.reduce((s, i) => s + assignment[i], 0);
      if (ones < f.at_least || ones > f.at_most) return -Infinity;
    } else {
      let at = 0;
      for (const i of f.scope) at = at * model.variables[i].states + assignment[i];
      total += f.values[at];
    }
  }
  return total;
}

/** Whether the factor graph has no cycle. */
export function isForest(model) {
  const parent = [...model.variables, ...model.factors].map((_, k) => k), n = model.variables.length;
  const root = (k) => { while (parent[k] !== k) { parent[k] = parent[parent[k]]; k = parent[k]; } return k; };
  for (const [c, f] of model.factors.entries()) {
    for (const i of f.scope) {
      const a = root(i), b = root(n + c);
      if (a === b) return false;
      parent[a] = b;
    }
  }
  return true;
}
