// The curve of score and bound over the iterations, with a mark at the step that is shown.
import { make } from "./drawing.js";
import { show } from "./numbers.js";
import { $, app, on } from "./state.js";
import { go } from "./player.js";

const LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 16, HEIGHT = 120;

/** The path through the finite values, with gaps at the others. */
function path(values, x, y) {
  let text = "", pen = false;
  values.forEach((v, t) => {
    if (!Number.isFinite(v)) { pen = false; return; }
    text += `${pen ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = true;
  });
  return text;
}

/** The names of the lines, below them. */
function key(svg, names) {
  names.forEach((name, k) => {
    const x = LEFT + 62 * k;
    make("line", { class: name, x1: x, x2: x + 12, y1: HEIGHT - 6, y2: HEIGHT - 6 }, svg);
    make("text", { x: x + 15, y: HEIGHT - 3 }, svg).textContent = name;
  });
}

export function drawCurve() {
  const svg = $("curve"), width = svg.clientWidth || 300, steps = app.steps;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  if (!steps.length) {
    make("text", { x: 4, y: 20 }, svg).textContent = "Run belief propagation to see its score.";
    return;
  }
  const scores = steps.map((s) => s.score), bounds = steps.bounds || [];
  const finite = [...scores, ...bounds, ...(app.optimum === null ? [] : [app.optimum])].filter(Number.isFinite);
  const low = Math.min(...finite), high = Math.max(...finite), span = high - low || 1;
  const x = (t) => LEFT + (width - LEFT - RIGHT) * (t / Math.max(1, steps.length - 1));
  const y = (v) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (v - low) / span);
  if (finite.length) {
    make("text", { x: 2, y: TOP + 6 }, svg).textContent = show(high);
    make("text", { x: 2, y: HEIGHT - BOTTOM }, svg).textContent = show(low);
  }
  key(svg, ["score", ...(bounds.length ? ["bound"] : []), ...(app.optimum === null ? [] : ["optimum"])]);
  make("text", { x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, svg).textContent = `${steps.length - 1} iterations`;
  if (app.optimum !== null && Number.isFinite(app.optimum)) make("line", { class: "optimum", x1: LEFT, x2: width - RIGHT, y1: y(app.optimum), y2: y(app.optimum) }, svg);
  if (bounds.length) make("path", { class: "bound", d: path(bounds, x, y) }, svg);
  make("path", { class: "score", d: path(scores, x, y) }, svg);
  scores.forEach((v, t) => { if (Number.isFinite(v)) make("circle", { cx: x(t), cy: y(v), r: 1.8, fill: "var(--blue)" }, svg); });
  make("line", { class: "now", x1: x(app.at), x2: x(app.at), y1: TOP, y2: HEIGHT - BOTTOM }, svg);
  svg.dataset.scores = scores.map(show).join(" ");
  svg.dataset.bounds = bounds.map(show).join(" ");
}

export function listenToCurve() {
  for (const event of ["step", "stale"]) on(event, drawCurve);
  new ResizeObserver(drawCurve).observe($("curve"));
  $("curve").onclick = (e) => {
    const box = $("curve").getBoundingClientRect(), part = (e.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    if (app.steps.length) go(Math.round(part * (app.steps.length - 1)));
  };
}
