// Pan, zoom and fit; dragging nodes, and selecting them with a rectangle. A drag moves what it moves, nothing else.
import { drawn, moveNode } from "./drawing.js";
import { $, app, choose, emit, moved } from "./state.js";

const view = { x: 0, y: 0, scale: 1, own: false }; // own: the user has moved the view, so a resize keeps it

function apply() { $("view").setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`); }

export const currentView = () => ({ ...view });

/** Show the whole drawing. */
export function fitView() {
  const things = [...app.model.variables, ...app.model.factors], box = $("drawing").getBoundingClientRect();
  view.own = false;
  if (!things.length || !box.width) { Object.assign(view, { x: box.width / 2, y: box.height / 2, scale: 1 }); apply(); return; }
  const xs = things.map((t) => t.x), ys = things.map((t) => t.y), edge = 30;
  const left = Math.min(...xs) - edge, right = Math.max(...xs) + edge, top = Math.min(...ys) - edge - 10, bottom = Math.max(...ys) + edge;
  const foot = 44; // the row of zoom buttons
  const scale = Math.min(1.6, (box.width - 8) / (right - left), (box.height - foot) / (bottom - top));
  Object.assign(view, { scale, x: box.width / 2 - scale * (left + right) / 2, y: (box.height - foot) / 2 + 4 - scale * (top + bottom) / 2 });
  apply();
}

/** Zoom by a factor around a place of the window, by default the middle of the drawing. */
export function zoomBy(factor, clientX = null, clientY = null) {
  const box = $("drawing").getBoundingClientRect();
  const px = clientX === null ? box.width / 2 : clientX - box.left, py = clientY === null ? box.height / 2 : clientY - box.top;
  const scale = Math.min(8, Math.max(0.05, view.scale * factor)), ratio = scale / view.scale;
  Object.assign(view, { x: px - ratio * (px - view.x), y: py - ratio * (py - view.y), scale, own: true });
  apply();
}

export function panBy(dx, dy) { view.x += dx; view.y += dy; view.own = true; apply(); }

function select(key, more) {
  if (more) choose(app.chosen.includes(key) ? app.chosen.filter((k) => k !== key) : [...app.chosen, key]);
  else if (!app.chosen.includes(key)) choose([key]);
}

function dragNodes(event, key) {
  const moving = (app.chosen.includes(key) ? app.chosen : [key]).map((k) => drawn.nodes.get(k));
  const start = moving.map(({ thing }) => [thing.x, thing.y]), from = [event.clientX, event.clientY];
  let far = false, waiting = 0, last = event;
  const place = () => {
    waiting = 0;
    moving.forEach((node, k) => {
      node.thing.x = start[k][0] + (last.clientX - from[0]) / view.scale;
      node.thing.y = start[k][1] + (last.clientY - from[1]) / view.scale;
      moveNode(node);
    });
    $("drawing").dataset.moves = Number($("drawing").dataset.moves || 0) + 1;
  };
  follow((e) => {
    last = e;
    far ||= Math.hypot(e.clientX - from[0], e.clientY - from[1]) > 3;
    if (far && !waiting) waiting = requestAnimationFrame(place);
  }, () => {
    if (waiting) { cancelAnimationFrame(waiting); place(); }
    if (far) moved();
    else if (!event.shiftKey && !event.ctrlKey && !event.metaKey && app.chosen.length > 1) choose([key]);
  });
}

/** Call `move` for every movement of the pointer until it is released. */
function follow(move, end) {
  const stop = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", stop); removeEventListener("pointercancel", stop); end(); };
  addEventListener("pointermove", move); addEventListener("pointerup", stop); addEventListener("pointercancel", stop);
}

function selectRectangle(event) {
  const box = $("drawing").getBoundingClientRect(), from = [event.clientX - box.left, event.clientY - box.top], mark = $("marquee");
  const before = app.chosen;
  let to = from;
  follow((e) => {
    to = [e.clientX - box.left, e.clientY - box.top];
    const [x, y] = [Math.min(from[0], to[0]), Math.min(from[1], to[1])];
    for (const [k, v] of Object.entries({ x, y, width: Math.abs(to[0] - from[0]), height: Math.abs(to[1] - from[1]) })) mark.setAttribute(k, v);
    mark.removeAttribute("hidden");
  }, () => {
    mark.setAttribute("hidden", "");
    const inside = (t) => {
      const x = view.x + view.scale * t.x, y = view.y + view.scale * t.y;
      return x >= Math.min(from[0], to[0]) && x <= Math.max(from[0], to[0]) && y >= Math.min(from[1], to[1]) && y <= Math.max(from[1], to[1]);
    };
    choose([...new Set([...before, ...[...drawn.nodes.values()].filter((n) => inside(n.thing)).map((n) => n.key)])]);
  });
}

const fingers = new Map();

function pinch() {
  const [a, b] = [...fingers.values()];
  return { distance: Math.hypot(a.x - b.x, a.y - b.y), x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
}

function background(event) {
  if (event.shiftKey) { selectRectangle(event); return; }
  let from = [event.clientX, event.clientY], far = false;
  follow((e) => {
    if (fingers.size > 1 || e.pointerId !== event.pointerId) return;
    far ||= Math.hypot(e.clientX - from[0], e.clientY - from[1]) > 3;
    if (far) { panBy(e.clientX - from[0], e.clientY - from[1]); from = [e.clientX, e.clientY]; }
  }, () => { if (!far && app.chosen.length) choose([]); });
}

/** Arrow keys move the focused node, or the view. */
function arrows(event, key) {
  const way = { ArrowLeft: [-10, 0], ArrowRight: [10, 0], ArrowUp: [0, -10], ArrowDown: [0, 10] }[event.key];
  if (!way) return false;
  if (key) {
    const node = drawn.nodes.get(key);
    node.thing.x += way[0]; node.thing.y += way[1];
    moveNode(node); moved();
  } else panBy(-4 * way[0], -4 * way[1]);
  event.preventDefault();
  return true;
}

export function listenToPointer() {
  const svg = $("drawing");
  svg.addEventListener("pointerdown", (e) => {
    if (e.button > 0) return;
    fingers.set(e.pointerId, { x: e.clientX, y: e.clientY });
    if (fingers.size > 1) return;
    const node = e.target.closest(".node");
    if (!node) { background(e); return; }
    e.preventDefault(); node.focus();
    select(node.dataset.key, e.shiftKey || e.ctrlKey || e.metaKey);
    dragNodes(e, node.dataset.key);
  });
  addEventListener("pointermove", (e) => {
    if (!fingers.has(e.pointerId)) return;
    const before = fingers.size === 2 ? pinch() : null;
    fingers.set(e.pointerId, { x: e.clientX, y: e.clientY });
    if (before) { const now = pinch(); zoomBy(now.distance / Math.max(1, before.distance), now.x, now.y); panBy(now.x - before.x, now.y - before.y); }
  });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, (e) => fingers.delete(e.pointerId));
  svg.addEventListener("wheel", (e) => { e.preventDefault(); zoomBy(Math.exp(-e.deltaY * 0.0015), e.clientX, e.clientY); }, { passive: false });
  svg.addEventListener("keydown", (e) => {
    const key = e.target.closest(".node")?.dataset.key;
    if (arrows(e, key)) return;
    if (key && e.key === "Enter") { if (e.shiftKey) select(key, true); else choose([key]); e.preventDefault(); }
    if (key && (e.key === "Delete" || e.key === "Backspace")) { if (!app.chosen.includes(key)) choose([key]); emit("delete"); e.preventDefault(); }
  });
  $("zoom-in").onclick = () => zoomBy(1.25); $("zoom-out").onclick = () => zoomBy(0.8); $("fit").onclick = fitView;
  new ResizeObserver(() => { if (!view.own) fitView(); }).observe(svg);
}
