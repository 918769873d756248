// The guided tour: six models, each with what to look at.
import { stop } from "./busy.js";
import { setModel } from "./editing.js";
import { readModel } from "./model.js";
import { applySettings, go, pause, play, run } from "./player.js";
import { solveBy } from "./solving.js";
import { $, app, emit, showError } from "./state.js";

const BARE = { rule: "max", iterations: 12, damping: 0, network: false };

export const TOUR = [
  { title: "A tree: exact", example: "tree", settings: BARE, solve: ["exact"],
    text: "Circles are variables, squares are tables of log-potentials. In every iteration each factor tells its variables how good each state can be, and a belief adds up what arrives. On a tree the messages stop changing once they have crossed it, and the best states of the beliefs are the optimum: the score (blue) meets the bound (yellow)." },
  { title: "A loop: it oscillates", example: "loop", settings: { ...BARE, iterations: 20 }, solve: ["exact"],
    text: "Four variables in a loop; two tables prefer equal states and two prefer different ones. A message returns to where it started and is counted again. The beliefs swing between two answers for ever, and neither is the optimum (dashed)." },
  { title: "Damp it", example: "loop", settings: { ...BARE, iterations: 20, damping: 0.5 }, solve: ["exact"],
    text: "The same loop, but each message is now the mean of the new one and the old one. The swing dies out, and the optimum remains. Move the damping slider: the messages are computed again at once." },
  { title: "A budget", example: "budget", settings: { ...BARE, damping: 0.3 }, solve: ["exact"],
    text: "The yellow square is a budget: at most two of its six variables may be 1, though five of them would like to be. As a table it would have 2⁶ entries. Its messages need none of them: they come from counting from both ends." },
  { title: "The network that does the same", example: "grid", settings: { ...BARE, network: true }, solve: [],
    text: "A factor graph neural network with weights that are set, not learned: each of its layers is one iteration of max-product. Its beliefs are drawn here, and the line below the drawing says by how much they differ from the messages." },
  { title: "What learning adds", example: "spin-glass", settings: { ...BARE, iterations: 30 }, solve: ["max-product", "exact", "network"],
    text: "A grid full of contradicting loops, with a budget on every patch. Max-product settles for less than the optimum. A network of the same layers with trained weights reads the model once and names the best states; compare the scores in the table." },
];

let at = 0;

async function showStep(n) {
  at = n;
  const step = TOUR[n];
  pause();
  await stop();
  setModel(readModel(JSON.parse($("examples").textContent)[step.example].model), true);
  applySettings(step.settings);
  $("tour-count").textContent = `step ${n + 1} of ${TOUR.length}`;
  $("tour-title").textContent = step.title;
  $("tour-text").textContent = step.text;
  $("tour-back").disabled = n === 0;
  $("tour-next").textContent = n === TOUR.length - 1 ? "finish" : "next";
  $("tour").hidden = false;
  showError("");
  await present(step);
}

async function present(step) {
  const model = app.model;
  for (const [n, method] of step.solve.entries()) {
    await solveBy(method, n > 0);
    if (app.model !== model) return;
  }
  if (!await run() || app.model !== model) return;
  go(0);
  play();
}

export function endTour() { $("tour").hidden = true; pause(); emit("settings"); }

export function listenToTour() {
  $("tour-start").onclick = () => showStep(0);
  $("tour-back").onclick = () => showStep(at - 1);
  $("tour-next").onclick = () => (at === TOUR.length - 1 ? endTour() : showStep(at + 1));
  $("tour-end").onclick = endTour;
}
