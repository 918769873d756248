// Numbers of log-potentials: minus infinity in JSON, on the page, and in sums.

/** log Σ exp(x), exact for minus infinity. */
export function logSumExp(values) {
  let top = -Infinity;
  for (const v of values) if (v > top) top = v;
  if (top === -Infinity) return -Infinity;
  let total = 0;
  for (const v of values) total += Math.exp(v - top);
  return top + Math.log(total);
}

/** The first position of the largest entry. */
export function argmax(values) {
  let best = 0;
  for (let k = 1; k < values.length; k += 1) if (values[k] > values[best]) best = k;
  return best;
}

/** Probabilities of log-beliefs; all zero if every state is forbidden. */
export function softmax(values) {
  const total = logSumExp(values);
  return Array.from(values, (v) => (total === -Infinity ? 0 : Math.exp(v - total)));
}

/** A number as JSON, which has no infinities. */
export const toPlain = (v) => (v === -Infinity ? "-inf" : v === Infinity ? "inf" : Number.isNaN(v) ? "nan" : v);

/** The number of a JSON value written by `toPlain`. */
export const fromPlain = (v) => (v === "-inf" ? -Infinity : v === "inf" ? Infinity : v === "nan" ? NaN : v);

/** A number for people. */
export function show(v) {
  const value = fromPlain(v);
  if (typeof value !== "number") return "";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  return String(Math.round(value * 1e4) / 1e4);
}
