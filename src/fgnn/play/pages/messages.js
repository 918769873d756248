// Belief propagation with the flooding schedule: all messages, beliefs and the best states after every iteration.
//   m_{c→i}(x_i) = max over x_c with x_i fixed of θ_c(x_c) + Σ_{i'≠i} ν_{i'→c}(x_{i'}),   b_i = θ_i + Σ_c m_{c→i}
import { factorMessages, MAX, SUM } from "./factor_messages.js";
import { scoreOf } from "./model.js";
import { argmax } from "./numbers.js";

/** The edges in the order of factors and positions: {factor, place, variable}; and those of each variable. */
export function edgesOf(model) {
  const edges = [], incident = model.variables.map(() => []), first = [];
  model.factors.forEach((f, c) => {
    first.push(edges.length);
    f.scope.forEach((i, a) => { incident[i].push(edges.length); edges.push({ factor: c, place: a, variable: i }); });
  });
  return { edges, incident, first };
}

/** The messages of variables to factors: the unary and all other incoming messages, in the order of the edges. */
export function variableMessages(model, wiring, messages) {
  return wiring.edges.map(({ variable }, e) => {
    const sum = Float64Array.from(model.variables[variable].unary);
    for (const other of wiring.incident[variable]) if (other !== e) messages[other].forEach((m, s) => { sum[s] += m; });
    return sum;
  });
}

/** Beliefs: the unary and all incoming messages. */
export function beliefsOf(model, wiring, messages) {
  return model.variables.map((v, i) => {
    const sum = Float64Array.from(v.unary);
    for (const e of wiring.incident[i]) messages[e].forEach((m, s) => { sum[s] += m; });
    return sum;
  });
}

/**
 * Run the messages, as a generator that yields after every iteration. Entry t of the result is the state after iteration
 * t; entry 0 is before the first. `rule` is "max" or "sum"; `damping` is the weight of the old message.
 */
export function* passMessages(model, { rule = "max", iterations = 12, damping = 0 } = {}) {
  const semiring = rule === "sum" ? SUM : MAX, wiring = edgesOf(model);
  let messages = wiring.edges.map(({ variable }) => new Float64Array(model.variables[variable].states));
  const steps = [record(model, wiring, messages, [], 0)];
  for (let t = 0; t < iterations; t += 1) {
    const toFactor = variableMessages(model, wiring, messages), update = [];
    let change = 0;
    model.factors.forEach((f, c) => {
      const incoming = f.scope.map((_, a) => toFactor[wiring.first[c] + a]);
      factorMessages(semiring, model, f, incoming).forEach((message, a) => {
        const old = messages[wiring.first[c] + a], mixed = damped(normalised(message), old, damping);
        mixed.forEach((m, s) => { change = Math.max(change, difference(m, old[s])); });
        update.push(mixed);
      });
    });
    messages = update;
    steps.push(record(model, wiring, messages, toFactor, change));
    yield t + 1;
  }
  return steps;
}

/** A message less its largest entry; unchanged if it forbids every state. */
export function normalised(message) {
  const top = Math.max(...message);
  return top === -Infinity ? message : message.map((m) => m - top);
}

function damped(message, old, damping) {
  return message.map((m, s) => (m === -Infinity ? m : damping * (old[s] === -Infinity ? 0 : old[s]) + (1 - damping) * m));
}

function difference(a, b) {
  if (a === b) return 0;
  return Number.isFinite(a) && Number.isFinite(b) ? Math.abs(a - b) : 1e9;
}

function record(model, wiring, messages, toFactor, change) {
  const beliefs = beliefsOf(model, wiring, messages), assignment = beliefs.map(argmax);
  return { beliefs, toVariable: messages, toFactor, assignment, score: scoreOf(model, assignment), change };
}
