// An upper bound on the optimum from messages: block coordinate descent on the dual of the LP relaxation (MPLP).
//   D(m) = Σ_i max b_i + Σ_c max_x [θ_c(x) − Σ_i m_{c→i}(x_i)],   b_i = θ_i + Σ_c m_{c→i}
// Any m gives a bound. An update divides a factor's max-marginals among its variables evenly and never raises D.
import { factorMessages, MAX } from "./factor_messages.js";
import { edgesOf } from "./messages.js";

/** D after 0, 1, …, `iterations` sweeps over the factors, as a generator; −∞ once no assignment is left. */
export function* dualBounds(model, iterations) {
  const wiring = edgesOf(model);
  const unary = model.variables.map((v) => Float64Array.from(v.unary)); // gains −∞ at states found impossible
  const messages = wiring.edges.map(({ variable }) => new Float64Array(unary[variable].length));
  const beliefs = unary.map((u) => u.slice());
  const bounds = [dual(model, wiring, beliefs, messages)];
  for (let t = 0; t < iterations; t += 1) {
    model.factors.forEach((f, c) => update(model, wiring, f, wiring.first[c], unary, beliefs, messages));
    bounds.push(Math.min(bounds[t], dual(model, wiring, beliefs, messages)));
    yield t + 1;
  }
  return bounds;
}

/** ν_{i→c} = b_i − m_{c→i}, and −∞ at impossible states. */
const withoutOwn = (belief, message) => belief.map((b, s) => (b === -Infinity ? b : b - message[s]));

function update(model, wiring, f, first, unary, beliefs, messages) {
  const nu = f.scope.map((i, a) => withoutOwn(beliefs[i], messages[first + a]));
  const out = factorMessages(MAX, model, f, nu), n = f.scope.length;
  f.scope.forEach((i, a) => {
    for (let s = 0; s < unary[i].length; s += 1) {
      if (beliefs[i][s] === -Infinity) continue;
      if (out[a][s] === -Infinity) { // no assignment of the factor has this state
        unary[i][s] = beliefs[i][s] = -Infinity;
        continue;
      }
      const marginal = (out[a][s] + nu[a][s]) / n;
      messages[first + a][s] = marginal - nu[a][s];
      beliefs[i][s] = marginal;
    }
  });
}

function dual(model, wiring, beliefs, messages) {
  let total = 0;
  for (const b of beliefs) total += Math.max(...b);
  model.factors.forEach((f, c) => {
    const minus = f.scope.map((i, a) => messages[wiring.first[c] + a].map((m, s) => (beliefs[i][s] === -Infinity ? -Infinity : -m)));
    const [message] = factorMessages(MAX, model, f, minus);
    let best = -Infinity;
    message.forEach((m, s) => { best = Math.max(best, m + minus[0][s]); });
    total += best;
  });
  return Number.isNaN(total) ? -Infinity : total;
}
