// A force-directed layout: nodes repel each other and edges pull, from a fixed start, so that equal models look equal.

/** Places for all variables and factors; factors are placed again later, but they carry the forces. */
export function forceLayout(model, gap) {
  const n = model.variables.length, count = n + model.factors.length, length = gap * 0.62;
  const edges = model.factors.flatMap((f, c) => f.scope.map((i) => [i, n + c]));
  const degree = new Float64Array(count), x = new Float64Array(count), y = new Float64Array(count);
  for (const [a, b] of edges) { degree[a] += 1; degree[b] += 1; }
  for (let k = 0; k < count; k += 1) { // a sunflower; factors start at the middle of their scope
    const r = gap * 0.6 * Math.sqrt(k + 0.5), angle = 2.399963 * k;
    x[k] = r * Math.cos(angle); y[k] = r * Math.sin(angle);
  }
  model.factors.forEach((f, c) => {
    x[n + c] = f.scope.reduce((s, i) => s + x[i], 0) / f.scope.length + 0.1 * c;
    y[n + c] = f.scope.reduce((s, i) => s + y[i], 0) / f.scope.length - 0.1 * c;
  });
  const rounds = Math.max(40, Math.min(300, Math.floor(4e7 / (count * Math.min(count, 120)))));
  for (let t = 0; t < rounds; t += 1) round(x, y, edges, degree, length, gap * 1.5 * (1 - t / rounds) ** 1.5 + 1);
  const spread = 1.35; // room for the bars above the variables
  model.variables.forEach((v, i) => { v.x = x[i] * spread; v.y = y[i] * spread; });
}

function round(x, y, edges, degree, length, most) {
  const count = x.length, fx = new Float64Array(count), fy = new Float64Array(count);
  repel(x, y, fx, fy, length);
  for (const [a, b] of edges) {
    const dx = x[b] - x[a], dy = y[b] - y[a], d = Math.hypot(dx, dy) || 0.1;
    const pull = d / length / Math.sqrt(Math.max(1, Math.min(degree[a], degree[b]) / 2));
    fx[a] += dx * pull; fy[a] += dy * pull; fx[b] -= dx * pull; fy[b] -= dy * pull;
  }
  let cx = 0, cy = 0;
  for (let k = 0; k < count; k += 1) { cx += x[k] / count; cy += y[k] / count; }
  for (let k = 0; k < count; k += 1) {
    fx[k] += (cx - x[k]) * 0.06; fy[k] += (cy - y[k]) * 0.06; // keeps separate parts together
    const step = Math.hypot(fx[k], fy[k]) || 1, move = Math.min(step * 0.35, most) / step;
    x[k] += fx[k] * move; y[k] += fy[k] * move;
  }
}

/** Repulsion between nodes within five lengths, found by cells of that size. */
function repel(x, y, fx, fy, length) {
  const reach = 5 * length, cells = new Map();
  for (let k = 0; k < x.length; k += 1) {
    const key = Math.floor(x[k] / reach) * 65536 + Math.floor(y[k] / reach);
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(k);
  }
  for (const [key, inside] of cells) {
    for (const [dx, dy] of [[0, 0], [1, 0], [0, 1], [1, 1], [-1, 1]]) {
      const other = dx || dy ? cells.get(key + dx * 65536 + dy) : inside;
      if (!other) continue;
      for (let p = 0; p < inside.length; p += 1) {
        for (let q = other === inside ? p + 1 : 0; q < other.length; q += 1) apart(x, y, fx, fy, inside[p], other[q], length, reach);
      }
    }
  }
}

function apart(x, y, fx, fy, a, b, length, reach) {
  let dx = x[b] - x[a], dy = y[b] - y[a];
  if (dx === 0 && dy === 0) { dx = 0.01 * ((a % 7) + 1); dy = 0.01 * ((b % 5) + 1); }
  const square = dx * dx + dy * dy;
  if (square > reach * reach) return;
  const push = (length * length * 1.1) / Math.max(square, 1);
  fx[a] -= dx * push; fy[a] -= dy * push; fx[b] += dx * push; fy[b] += dy * push;
}
