// One job at a time, with a sign that it runs and a way to cancel it.
import { $, showError } from "./state.js";

let controller = null, idle = Promise.resolve();

/** Run a job: `work(signal)`. Shows what is going on after 150 ms, errors in one line, and a cancel button. */
export async function busy(text, work) {
  if (controller) return null;
  controller = new AbortController();
  let done;
  idle = new Promise((resolve) => { done = resolve; });
  const { signal } = controller, sign = setTimeout(() => { $("busy").hidden = false; }, 150);
  $("busy-text").textContent = text;
  document.body.setAttribute("aria-busy", "true");
  for (const id of ["solve", "compare", "run"]) $(id).disabled = true;
  showError("");
  try {
    return await work(signal);
  } catch (error) {
    showError(error.name === "AbortError" ? "cancelled" : error.message);
    return null;
  } finally {
    clearTimeout(sign);
    controller = null;
    $("busy").hidden = true;
    document.body.removeAttribute("aria-busy");
    for (const id of ["solve", "compare", "run"]) $(id).disabled = false;
    done();
  }
}

/** Cancel the job and wait for its end. */
export async function stop() { cancel(); await idle; }

export const tellBusy = (text) => { $("busy-text").textContent = text; };
export const cancel = () => { if (controller) controller.abort(); };
