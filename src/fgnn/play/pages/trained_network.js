// The packaged network `deep-grid` (fgnn.nn.ResidualNetwork): residual FGNN layers with sums, read out at the variables.
//   g_c ← g_c + V_g σ(U_g ĝ_c + b_g + Σ_i Q(t_ci) f̂_i)
//   f_i ← f_i + V_f σ(U_f f̂_i + b_f + Σ_k W_k Σ_c ReLU(Q(t_ci) ĝ_c + P_k f̂_i + p_k)),   x̂: RMS norm, σ = SiLU
const EPSILON = 1e-6;
// Counts of a budget in units of 8, as in training.
const BUDGET_SCALE = 1 / 8;

/** Why the network cannot read a model; "" if it can. */
export function networkRefusal(model) {
  if (model.variables.some((v) => v.states !== 2)) return "the trained network reads binary variables";
  if (model.variables.some((v) => v.unary.includes(-Infinity))) return "the trained network reads finite log-potentials";
  for (const f of model.factors) {
    if (f.kind === "budget") continue;
    if (f.scope.length > 2) return "the trained network reads tables over at most two variables";
    if (f.values.includes(-Infinity)) return "the trained network reads finite log-potentials";
  }
  return "";
}

/** The features of nodes and the scopes, with 2 × 2 tables reduced to their entry (1, 1). */
export function networkFeatures(model) {
  const lift = model.variables.map((v) => v.unary[1] - v.unary[0]);
  const groups = { table2x2: { scopes: [], features: [] }, budget: { scopes: [], features: [] } };
  for (const f of model.factors) {
    if (f.kind === "budget") {
      const n = f.scope.length;
      groups.budget.scopes.push(f.scope);
      groups.budget.features.push([f.at_most * BUDGET_SCALE, n * BUDGET_SCALE, f.at_most / n, f.at_least * BUDGET_SCALE]);
    } else if (f.scope.length === 1) lift[f.scope[0]] += f.values[1] - f.values[0];
    else {
      const [v00, v01, v10, v11] = f.values;
      lift[f.scope[0]] += v10 - v00;
      lift[f.scope[1]] += v01 - v00;
      groups.table2x2.scopes.push(f.scope);
      groups.table2x2.features.push([0, 0, 0, v11 - v10 - v01 + v00]);
    }
  }
  return { variables: lift.map((d) => [d]), groups };
}

const silu = (x) => x / (1 + Math.exp(-x));

/** W x + b for the tensors `name`.weight and `name`.bias. */
function linear(tensors, name, x) {
  return plus(product(tensors[`${name}.weight`], 0, x), tensors[`${name}.bias`].values);
}

/** The matrix that starts at `offset` times x. */
function product({ shape, values }, offset, x) {
  const rows = shape[shape.length - 2], columns = shape[shape.length - 1], out = new Float64Array(rows);
  for (let r = 0, at = offset; r < rows; r += 1) {
    let total = 0;
    for (let c = 0; c < columns; c += 1, at += 1) total += values[at] * x[c];
    out[r] = total;
  }
  return out;
}

function plus(a, b) {
  for (let k = 0; k < a.length; k += 1) a[k] += b[k];
  return a;
}

function rmsNorm(scale, x) {
  let square = 0;
  for (const v of x) square += v * v;
  const factor = 1 / Math.sqrt(square / x.length + EPSILON);
  return x.map((v, k) => v * factor * scale.values[k]);
}

/** Q at a position of a scope: Σ_τ cos(π τ (a + ½) / A) W_τ, as one matrix. */
function positionMatrix(weight, place, arity) {
  const [terms, rows, columns] = weight.shape, size = rows * columns, values = new Float64Array(size);
  for (let tau = 0; tau < terms; tau += 1) {
    const c = Math.cos(Math.PI * tau * ((place + 0.5) / arity));
    for (let n = 0; n < size; n += 1) values[n] += c * weight.values[tau * size + n];
  }
  return { shape: [rows, columns], values };
}

/** Q at every position, by arity; computed once for a layer. */
function positionMatrices(weight) {
  const known = new Map();
  return (arity) => {
    if (!known.has(arity)) known.set(arity, Array.from({ length: arity }, (_, a) => positionMatrix(weight, a, arity)));
    return known.get(arity);
  };
}

function update(tensors, name, x, normed, incoming) {
  const hidden = plus(linear(tensors, `${name}.inner`, normed), incoming).map(silu);
  return plus(linear(tensors, `${name}.outer`, hidden), x);
}

function embed(tensors, name, x) {
  return linear(tensors, `${name}.2`, linear(tensors, `${name}.0`, x).map(silu));
}

/** One layer: new features of variables and, by group, of factors. */
function layer(tensors, name, groups, f, gs) {
  const wide = tensors[`${name}.update.inner.bias`].values.length, width = f[0].length;
  const toFactor = f.map((x) => rmsNorm(tensors[`${name}.to_factors_norm.scale`], x)), news = {};
  const normed = f.map((x) => rmsNorm(tensors[`${name}.to_variables_norm.scale`], x));
  const incoming = f.map(() => new Float64Array(wide));
  for (const [group, { scopes }] of Object.entries(groups)) {
    if (!scopes.length) continue;
    const half = `${name}.to_factors.${group}`, q = positionMatrices(tensors[`${half}.matrix.weight`]);
    news[group] = scopes.map((scope, c) => {
      const total = new Float64Array(wide), g = gs[group][c];
      scope.forEach((i, a) => plus(total, product(q(scope.length)[a], 0, toFactor[i])));
      return update(tensors, `${half}.update`, g, rmsNorm(tensors[`${half}.norm.scale`], g), total);
    });
    const back = `${name}.to_variables.${group}`, p = positionMatrices(tensors[`${back}.matrix.weight`]);
    const own = normed.map((x) => linear(tensors, `${back}.variable`, x)), sums = f.map(() => new Float64Array(width));
    scopes.forEach((scope, c) => {
      const g = rmsNorm(tensors[`${back}.norm.scale`], news[group][c]);
      scope.forEach((i, a) => plus(sums[i], plus(product(p(scope.length)[a], 0, g), own[i]).map((v) => (v > 0 ? v : 0))));
    });
    sums.forEach((s, i) => plus(incoming[i], product(tensors[`${back}.out.weight`], 0, s)));
  }
  return { f: f.map((x, i) => update(tensors, `${name}.update`, x, normed[i], incoming[i])), gs: news };
}

/** The scores of every state of every variable, as a generator that yields after each layer. */
export function* networkScores(tensors, model) {
  const { variables, groups } = networkFeatures(model), gs = {};
  let f = variables.map((x) => embed(tensors, "body.embed_variables", x)), features = gs;
  for (const [group, { features: rows }] of Object.entries(groups)) gs[group] = rows.map((x) => embed(tensors, `body.embed_factors.${group}`, x));
  for (let n = 0; tensors[`body.layers.${n}.update.inner.bias`]; n += 1) {
    ({ f, gs: features } = layer(tensors, `body.layers.${n}`, groups, f, features));
    yield n + 1;
  }
  return f.map((x) => linear(tensors, "body.readout", rmsNorm(tensors["body.norm.scale"], x)));
}
