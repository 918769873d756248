// Long computations are generators: a page that runs them in slices stays alive and can cancel them.

/** Run a generator to its end without giving way. */
export function finish(generator) {
  for (;;) { const { done, value } = generator.next(); if (done) return value; }
}

/** Run a generator in slices of about 30 ms, so that the page stays alive; rejects when `signal` aborts. */
export async function finishSlowly(generator, signal, onProgress = () => {}) {
  let until = performance.now() + 30;
  for (;;) {
    const { done, value } = generator.next();
    if (done) return value;
    if (performance.now() < until) continue;
    onProgress(value);
    await new Promise((resume) => { setTimeout(resume, 0); });
    if (signal && signal.aborted) throw new DOMException("cancelled", "AbortError");
    until = performance.now() + 30;
  }
}
