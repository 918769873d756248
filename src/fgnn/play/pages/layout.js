// Where nodes are drawn: grids as grids, chains in layers, everything else by forces. No two nodes overlap.
import { forceLayout } from "./force.js";

export const GAP = 92; // between neighbouring variables
const ROOM = 40; // the least distance of two nodes; a variable is 32 wide, a factor 22

/** Give every node of the model a place; nodes that have one keep it. */
export function layoutModel(model) {
  const placed = (node) => Number.isFinite(node.x) && Number.isFinite(node.y);
  const fresh = model.variables.filter((v) => !placed(v));
  if (fresh.length && fresh.length === model.variables.length) placeVariables(model);
  else for (const v of fresh) besideOthers(model, v);
  placeFactors(model, placed);
}

/** Forget all places and lay out again. */
export function relayout(model) {
  for (const node of [...model.variables, ...model.factors]) { delete node.x; delete node.y; }
  layoutModel(model);
}

/** Neighbours by tables over two variables, for each variable. */
function pairNeighbours(model) {
  const near = model.variables.map(() => new Set());
  for (const f of model.factors) {
    if (f.kind === "table" && f.scope.length === 2) { near[f.scope[0]].add(f.scope[1]); near[f.scope[1]].add(f.scope[0]); }
  }
  return near;
}

function placeVariables(model) {
  const near = pairNeighbours(model), places = gridPlaces(near) || chainPlaces(near);
  if (places) model.variables.forEach((v, i) => { v.x = GAP * places[i][0]; v.y = GAP * places[i][1]; });
  else forceLayout(model, GAP);
}

function distancesFrom(near, start) {
  const distance = near.map(() => Infinity), queue = [start];
  distance[start] = 0;
  for (const i of queue) for (const j of near[i]) if (distance[j] === Infinity) { distance[j] = distance[i] + 1; queue.push(j); }
  return distance;
}

/**
 * Column and row of each variable if the pairs form a grid, whatever the numbering; null otherwise. In a grid with
 * corners A and B on one side, d(A) = column + row and d(B) = columns − 1 − column + row.
 */
export function gridPlaces(near) {
  const corners = [...near.keys()].filter((i) => near[i].size === 2), n = near.length;
  if (n < 4 || corners.length < 4) return null;
  const from = distancesFrom(near, corners[0]);
  for (const other of corners.slice(1)) {
    const columns = from[other] + 1, rows = n / columns;
    if (!Number.isInteger(rows) || rows < 2 || columns < 2) continue;
    const back = distancesFrom(near, other);
    const places = from.map((d, i) => [(d - back[i] + columns - 1) / 2, (d + back[i] - columns + 1) / 2]);
    if (isGrid(near, places, columns, rows)) return upright(places, columns, rows);
  }
  return null;
}

function isGrid(near, places, columns, rows) {
  const at = new Map();
  for (const [i, [x, y]] of places.entries()) {
    if (!Number.isInteger(x) || !Number.isInteger(y) || x < 0 || y < 0 || x >= columns || y >= rows) return false;
    at.set(x + columns * y, i);
  }
  if (at.size !== near.length) return false;
  for (const [i, [x, y]] of places.entries()) {
    const expected = [[1, 0], [-1, 0], [0, 1], [0, -1]].map(([dx, dy]) => [x + dx, y + dy])
      .filter(([a, b]) => a >= 0 && b >= 0 && a < columns && b < rows).map(([a, b]) => at.get(a + columns * b));
    if (expected.length !== near[i].size || !expected.every((j) => near[i].has(j))) return false;
  }
  return true;
}

/** Turn a grid so that variable 1 is to the right of variable 0, as models are usually numbered. */
function upright(places, columns, rows) {
  const turned = places[1][0] === places[0][0] ? places.map(([x, y]) => [y, x]) : places;
  const [wide, high] = turned === places ? [columns, rows] : [rows, columns];
  const flipX = turned[1][0] < turned[0][0], flipY = turned[0][1] > (high - 1) / 2;
  return turned.map(([x, y]) => [flipX ? wide - 1 - x : x, flipY ? high - 1 - y : y]);
}

/** The order along a chain, as places in one row; null if the pairs form no path through all variables. */
export function chainPlaces(near) {
  const n = near.length, ends = [...near.keys()].filter((i) => near[i].size === 1);
  if (n < 3 || ends.length !== 2 || near.some((set) => set.size > 2)) return null;
  const distance = distancesFrom(near, Math.min(...ends));
  return distance.includes(Infinity) ? null : distance.map((d) => [d, 0]);
}

/** Factors at the middle of their scope; those over long scopes of a row in lanes above it. */
function placeFactors(model, placed) {
  const taken = new Spots();
  for (const v of model.variables) taken.add(v.x, v.y);
  for (const f of model.factors) if (placed(f)) taken.add(f.x, f.y);
  const inRow = model.variables.length > 2 && model.variables.every((v) => v.y === model.variables[0].y);
  const order = model.factors.filter((f) => !placed(f)).sort((a, b) => a.scope.length - b.scope.length);
  for (const f of order) {
    const mean = (axis) => f.scope.reduce((s, i) => s + model.variables[i][axis], 0) / f.scope.length;
    let [x, y] = [mean("x"), mean("y")];
    if (f.scope.length === 1) y += 46;
    if (inRow && f.scope.length > 2) y -= GAP;
    const lift = inRow && f.scope.length > 2;
    [x, y] = lift ? lane(taken, x, y) : taken.freeNear(x, y);
    Object.assign(f, { x, y });
    taken.add(x, y);
  }
}

function lane(taken, x, y) {
  let height = y;
  while (!taken.free(x, height)) height -= ROOM + 4;
  return [x, height];
}

function besideOthers(model, v) {
  const others = model.variables.filter((o) => o !== v && Number.isFinite(o.x));
  const taken = new Spots();
  for (const o of [...others, ...model.factors.filter((f) => Number.isFinite(f.x))]) taken.add(o.x, o.y);
  const right = others.length ? Math.max(...others.map((o) => o.x)) + GAP : 0, last = others[others.length - 1];
  [v.x, v.y] = taken.freeNear(right, last ? last.y : 0);
}

/** The places in use, by cells of a raster, to find free ones. */
export class Spots {
  constructor(room = ROOM) { this.room = room; this.cells = new Map(); }

  add(x, y) {
    const key = `${Math.floor(x / this.room)},${Math.floor(y / this.room)}`;
    if (!this.cells.has(key)) this.cells.set(key, []);
    this.cells.get(key).push([x, y]);
  }

  free(x, y) {
    const cx = Math.floor(x / this.room), cy = Math.floor(y / this.room);
    for (let a = cx - 1; a <= cx + 1; a += 1) {
      for (let b = cy - 1; b <= cy + 1; b += 1) {
        for (const [u, v] of this.cells.get(`${a},${b}`) || []) if (Math.hypot(x - u, y - v) < this.room - 1e-6) return false;
      }
    }
    return true;
  }

  /** The nearest free place on a spiral around a place. */
  freeNear(x, y) {
    for (let n = 0; ; n += 1) {
      const radius = 8 * Math.sqrt(n), angle = 2.399963 * n;
      const at = [x + radius * Math.cos(angle), y + radius * Math.sin(angle)];
      if (this.free(...at)) return at;
    }
  }
}
