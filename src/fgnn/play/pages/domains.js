// The problem that elimination solves: variables without their impossible states, and tables alone.
import { MAX, factorMessages } from "./factor_messages.js";

// A budget over more variables becomes a chain of small tables with counters instead of one table.
const MOST_IN_TABLE = 8;

/** The states of each variable that no factor rules out by itself (generalised arc consistency). */
export function possibleStates(model) {
  const allowed = model.variables.map((v) => Float64Array.from(v.unary, (u) => (u === -Infinity ? -Infinity : 0)));
  const hard = model.factors.filter((f) => f.kind === "budget" || f.values.includes(-Infinity));
  for (let again = true; again;) {
    again = false;
    for (const f of hard) {
      factorMessages(MAX, model, f, f.scope.map((i) => allowed[i])).forEach((message, a) => {
        message.forEach((m, s) => {
          if (m === -Infinity && allowed[f.scope[a]][s] === 0) { allowed[f.scope[a]][s] = -Infinity; again = true; }
        });
      });
    }
  }
  return allowed.map((row) => [...row.keys()].filter((s) => row[s] === 0));
}

/** Tables {scope, values} over the possible states, counters of long budgets included, and the states of all. */
export function asTables(model) {
  const states = possibleStates(model), cards = states.map((s) => s.length), tables = [];
  model.variables.forEach((v, i) => tables.push({ scope: [i], values: Float64Array.from(states[i], (s) => v.unary[s]) }));
  for (const f of model.factors) {
    if (f.kind === "table") tables.push(restricted(model, f, states));
    else if (f.scope.length <= MOST_IN_TABLE) tables.push(budgetTable(f, states));
    else addCounters(f, states, cards, tables);
  }
  return { states, cards, tables };
}

/** Visit all combinations of positions below `sizes`, the last fastest; an empty list has one. */
export function eachCombination(sizes, visit) {
  const at = sizes.map(() => 0), count = sizes.reduce((p, k) => p * k, 1);
  for (let n = 0; n < count; n += 1) {
    visit(at, n);
    for (let a = sizes.length - 1; a >= 0; a -= 1) {
      at[a] += 1;
      if (at[a] < sizes[a]) break;
      at[a] = 0;
    }
  }
}

function restricted(model, f, states) {
  const sizes = f.scope.map((i) => states[i].length), values = new Float64Array(sizes.reduce((p, k) => p * k, 1));
  eachCombination(sizes, (at, n) => {
    let cell = 0;
    f.scope.forEach((i, a) => { cell = cell * model.variables[i].states + states[i][at[a]]; });
    values[n] = f.values[cell];
  });
  return { scope: f.scope, values };
}

function budgetTable(f, states) {
  const sizes = f.scope.map((i) => states[i].length), values = new Float64Array(sizes.reduce((p, k) => p * k, 1));
  eachCombination(sizes, (at, n) => {
    const ones = f.scope.reduce((s, i, a) => s + states[i][at[a]], 0);
    values[n] = ones >= f.at_least && ones <= f.at_most ? 0 : -Infinity;
  });
  return { scope: f.scope, values };
}

/** Counters: variable n + k holds how many of the first k + 1 variables are 1. */
function addCounters(f, states, cards, tables) {
  const last = f.scope.length - 1;
  let previous = null; // the counter so far; null stands for 0
  f.scope.forEach((i, k) => {
    const before = previous === null ? 1 : cards[previous], most = Math.min(k + 1, f.at_most);
    const next = cards.length;
    cards.push(most + 1);
    const scope = previous === null ? [i, next] : [previous, i, next];
    const values = new Float64Array(before * states[i].length * (most + 1)).fill(-Infinity);
    for (let s = 0; s < before; s += 1) {
      states[i].forEach((x, p) => {
        const count = s + x;
        if (count <= most && (k < last || count >= f.at_least)) values[(s * states[i].length + p) * (most + 1) + count] = 0;
      });
    }
    tables.push({ scope, values });
    previous = next;
  });
}
