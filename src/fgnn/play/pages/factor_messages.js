// The messages of one factor to its variables, in a semiring: the maximum (max-product) or log-sum-exp (sum-product).
import { logSumExp } from "./numbers.js";

export const MAX = { name: "max", plus: (a, b) => (a > b ? a : b) };
export const SUM = {
  name: "sum",
  plus: (a, b) => {
    const top = a > b ? a : b;
    return top === -Infinity ? -Infinity : top + Math.log1p(Math.exp((a > b ? b : a) - top));
  },
};

/** Messages of a table to each variable of its scope, from the incoming messages ν; `cards` are the scope's states. */
export function tableMessages(rule, values, cards, incoming) {
  const arity = cards.length, states = Array(arity).fill(0);
  if (rule === MAX) {
    const out = cards.map((k) => new Float64Array(k).fill(-Infinity));
    eachEntry(values, cards, states, (theta) => {
      for (let a = 0; a < arity; a += 1) {
        let total = theta;
        for (let b = 0; b < arity; b += 1) if (b !== a) total += incoming[b][states[b]];
        if (total > out[a][states[a]]) out[a][states[a]] = total;
      }
    });
    return out;
  }
  const terms = cards.map((k) => Array.from({ length: k }, () => []));
  eachEntry(values, cards, states, (theta) => {
    for (let a = 0; a < arity; a += 1) {
      let total = theta;
      for (let b = 0; b < arity; b += 1) if (b !== a) total += incoming[b][states[b]];
      if (total > -Infinity) terms[a][states[a]].push(total);
    }
  });
  return terms.map((byState) => Float64Array.from(byState, logSumExp));
}

function eachEntry(values, cards, states, visit) {
  states.fill(0);
  for (let cell = 0; cell < values.length; cell += 1) {
    if (values[cell] > -Infinity) visit(values[cell]);
    for (let a = cards.length - 1; a >= 0; a -= 1) {
      states[a] += 1;
      if (states[a] < cards[a]) break;
      states[a] = 0;
    }
  }
}

/** Messages of a budget, low ≤ Σ x ≤ high, by counting from both ends: O(n²). */
export function budgetMessages(rule, low, high, incoming) {
  const n = incoming.length, plus = rule.plus;
  // after[k][s]: the best or the total of variables k, k+1, … if s of those before are 1
  const after = Array(n + 1);
  after[n] = Float64Array.from({ length: n + 1 }, (_, s) => (s >= low && s <= high ? 0 : -Infinity));
  for (let k = n - 1; k >= 0; k -= 1) {
    const [zero, one] = incoming[k], next = after[k + 1];
    after[k] = Float64Array.from({ length: k + 1 }, (_, s) => plus(zero + next[s], one + next[s + 1]));
  }
  let before = Float64Array.of(0);
  return incoming.map(([zero, one], k) => {
    const message = new Float64Array(2).fill(-Infinity), next = after[k + 1];
    for (let s = 0; s <= k; s += 1) {
      message[0] = plus(message[0], before[s] + next[s]);
      message[1] = plus(message[1], before[s] + next[s + 1]);
    }
    const longer = new Float64Array(k + 2).fill(-Infinity);
    for (let s = 0; s <= k; s += 1) {
      longer[s] = plus(longer[s], before[s] + zero);
      longer[s + 1] = plus(longer[s + 1], before[s] + one);
    }
    before = longer;
    return message;
  });
}

/** Messages of any factor of the model. */
export function factorMessages(rule, model, factor, incoming) {
  if (factor.kind === "budget") return budgetMessages(rule, factor.at_least, factor.at_most, incoming);
  return tableMessages(rule, factor.values, factor.scope.map((i) => model.variables[i].states), incoming);
}
