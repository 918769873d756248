// The FGNN layer of Alg. 1 with max aggregation, and the network of such layers that runs max-product (the corollary):
//   g_c = max_i Q(t_ci|VF) M([g_c, f_i]|VF),   f_i = max_c Q(t_ci|FV) M([g_c, f_i]|FV)

// Forbidden numbers are stored as −1e100; what lies below −1e95 means minus infinity.
const EDGE = 1e95;

const times = (matrix, x) => Float64Array.from(matrix, (row) => {
  let total = 0;
  for (let k = 0; k < row.length; k += 1) if (row[k] !== 0) total += row[k] * x[k];
  return total;
});

/** M on the features of an edge: linear layers, each followed by ReLU. */
function message(layers, g, f) {
  let h = Float64Array.of(...g, ...f);
  for (const { weight, bias } of layers) h = times(weight, h).map((v, k) => Math.max(0, v + bias[k]));
  return h;
}

const maximum = (total, x) => (total === null ? x : total.map((v, k) => Math.max(v, x[k])));

/** One layer on a compiled network's features: {f, gs}. */
function layer(network, { f, gs }) {
  const news = network.groups.map((group, k) => group.scopes.map((scope, c) => {
    let total = null;
    scope.forEach((i, a) => {
      total = maximum(total, times(group.to_factor.matrices[group.types[c][a]], message(group.to_factor.layers, gs[k][c], f[i])));
    });
    return total;
  }));
  const out = f.map(() => null);
  network.groups.forEach((group, k) => group.scopes.forEach((scope, c) => scope.forEach((i, a) => {
    const sent = times(group.to_variable.matrices[group.types[c][a]], message(group.to_variable.layers, news[k][c], f[i]));
    out[i] = maximum(out[i], sent);
  })));
  return { f: out, gs: news };
}

/** The beliefs after each of the layers: entry t has those after layer t + 1. */
export function networkBeliefs(network, iterations) {
  let state = { f: network.f, gs: network.groups.map((group) => group.g) };
  return Array.from({ length: iterations }, () => {
    state = layer(network, state);
    return state.f.map((x, i) => times(network.readout, x).slice(0, network.cards[i]).map((v) => (v < -EDGE ? -Infinity : v)));
  });
}
