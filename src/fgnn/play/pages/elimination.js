// Exact inference on models of small width: bucket elimination for MAP, and for marginals a second pass back.
import { asTables } from "./domains.js";
import { MAX, SUM } from "./factor_messages.js";
import { softmax } from "./numbers.js";

// Entries of the largest table, and of all tables together.
const MOST_ENTRIES = 1 << 22, MOST_TOTAL = 1 << 25;

/** Thrown if the model is too wide for the page. */
export class TooWide extends Error {}

/** An elimination order and its buckets: the variable with the smallest table next. */
export function planElimination(cards, scopes) {
  const near = cards.map(() => new Set());
  for (const scope of scopes) for (const i of scope) for (const j of scope) if (i !== j) near[i].add(j);
  const left = new Set(cards.keys()), order = [];
  const weight = (i) => { let w = Math.log(cards[i]); for (const j of near[i]) w += Math.log(cards[j]); return w; };
  const weights = cards.map((_, i) => weight(i));
  let total = 0;
  while (left.size) {
    let best = -1;
    for (const i of left) if (best < 0 || weights[i] < weights[best] - 1e-12) best = i;
    const size = Math.exp(weights[best]), around = [...near[best]].sort((a, b) => a - b);
    total += size;
    if (size > MOST_ENTRIES * 1.001 || total > MOST_TOTAL) {
      throw new TooWide(`this model is too wide for exact elimination in the page (a table of ${Math.round(size)} entries)`);
    }
    for (const a of around) {
      near[a].delete(best);
      for (const b of around) if (a !== b) near[a].add(b);
    }
    for (const a of around) weights[a] = weight(a);
    left.delete(best);
    order.push({ variable: best, around });
  }
  return order;
}

/** Add a table to one over a larger scope. */
function addInto(target, scope, cards, table) {
  const strides = scope.map(() => 0);
  let stride = 1;
  for (let a = table.scope.length - 1; a >= 0; a -= 1) { strides[scope.indexOf(table.scope[a])] = stride; stride *= cards[table.scope[a]]; }
  const sizes = scope.map((i) => cards[i]), at = sizes.map(() => 0);
  let cell = 0;
  for (let n = 0; n < target.length; n += 1) {
    target[n] += table.values[cell];
    for (let a = sizes.length - 1; a >= 0; a -= 1) {
      at[a] += 1; cell += strides[a];
      if (at[a] < sizes[a]) break;
      cell -= strides[a] * sizes[a]; at[a] = 0;
    }
  }
}

/** Reduce the last axis, of k entries. */
function reduceLast(rule, values, k) {
  return Float64Array.from({ length: values.length / k }, (_, n) => {
    const row = values.subarray(n * k, n * k + k);
    let top = -Infinity;
    for (const v of row) if (v > top) top = v;
    if (rule === MAX || top === -Infinity) return top;
    let total = 0;
    for (const v of row) total += Math.exp(v - top);
    return top + Math.log(total);
  });
}

/** The forward pass, a generator that yields between buckets: {buckets, total} with the clique of every variable. */
function* forward(rule, { cards, tables }) {
  const order = planElimination(cards, tables.map((t) => t.scope)), turn = new Map(order.map((b, n) => [b.variable, n]));
  const inbox = order.map(() => []);
  const first = (scope) => Math.min(...scope.map((i) => turn.get(i)));
  for (const table of tables) inbox[first(table.scope)].push(table);
  let total = 0;
  const buckets = [];
  for (const [n, { variable, around }] of order.entries()) {
    const scope = [...around, variable], size = scope.reduce((p, i) => p * cards[i], 1), values = new Float64Array(size);
    for (const table of inbox[n]) addInto(values, scope, cards, table);
    const message = { scope: around, values: size ? reduceLast(rule, values, cards[variable]) : new Float64Array(around.length ? 0 : 1).fill(-Infinity) };
    const parent = around.length ? first(around) : -1;
    if (parent < 0) total += message.values[0];
    else inbox[parent].push(message);
    buckets.push({ variable, around, scope, values, message, parent });
    yield (n + 1) / order.length;
  }
  return { buckets, total };
}

/** The best assignment and its score, as a generator; `score` is −∞ and `assignment` null if there is none. */
export function* eliminateMax(model) {
  const problem = asTables(model);
  if (problem.cards.includes(0)) return { score: -Infinity, assignment: null };
  const { buckets, total } = yield* forward(MAX, problem);
  if (total === -Infinity) return { score: total, assignment: null };
  const chosen = Array(problem.cards.length).fill(0);
  for (const { variable, around, values } of buckets.reverse()) {
    const k = problem.cards[variable], row = around.reduce((p, i) => p * problem.cards[i] + chosen[i], 0) * k;
    for (let s = 1; s < k; s += 1) if (values[row + s] > values[row + chosen[variable]]) chosen[variable] = s;
  }
  return { score: total, assignment: model.variables.map((_, i) => problem.states[i][chosen[i]]) };
}

/** log Z and the marginals of all variables, as a generator; `marginals` is null if no assignment is possible. */
export function* eliminateSum(model) {
  const problem = asTables(model), { cards } = problem;
  if (cards.includes(0)) return { logZ: -Infinity, marginals: null };
  const { buckets, total } = yield* forward(SUM, problem);
  if (total === -Infinity) return { logZ: total, marginals: null };
  const marginals = model.variables.map((v) => Array(v.states).fill(0));
  for (let n = buckets.length - 1; n >= 0; n -= 1) { // each clique first hears from its parent
    const { variable, scope, values, message, parent } = buckets[n];
    if (parent >= 0) addInto(values, scope, cards, quotient(buckets[parent], message, cards));
    if (variable < marginals.length) {
      const k = cards[variable], parts = Array.from({ length: k }, () => -Infinity);
      const column = Array.from({ length: k }, (_, s) => Float64Array.from({ length: values.length / k }, (_, r) => values[r * k + s]));
      column.forEach((c, s) => { parts[s] = reduceLast(SUM, c, c.length)[0]; });
      softmax(parts).forEach((p, s) => { marginals[variable][problem.states[variable][s]] = p; });
    }
    yield 1;
  }
  return { logZ: total, marginals };
}

/** The belief of the parent over the scope of a message, less the message; −∞ stays −∞. */
function quotient(parent, message, cards) {
  const { scope, values } = parent, out = { scope: message.scope, values: new Float64Array(message.values.length).fill(-Infinity) };
  const strides = scope.map(() => 0);
  let stride = 1;
  for (let a = message.scope.length - 1; a >= 0; a -= 1) { strides[scope.indexOf(message.scope[a])] = stride; stride *= cards[message.scope[a]]; }
  const sizes = scope.map((i) => cards[i]), at = sizes.map(() => 0);
  let cell = 0;
  for (let n = 0; n < values.length; n += 1) {
    out.values[cell] = SUM.plus(out.values[cell], values[n]);
    for (let a = sizes.length - 1; a >= 0; a -= 1) {
      at[a] += 1; cell += strides[a];
      if (at[a] < sizes[a]) break;
      cell -= strides[a] * sizes[a]; at[a] = 0;
    }
  }
  out.values.forEach((v, c) => { out.values[c] = v === -Infinity ? v : v - message.values[c]; });
  return out;
}
