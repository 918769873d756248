// Calls to the local server, for what the page cannot compute itself.
import { served } from "./state.js";

/** The reply to a call; throws an Error with one line, or an AbortError. */
export async function call(name, value, signal) {
  if (!served()) throw Error("this page has no server; run 'fgnn play' for that");
  let reply;
  try {
    reply = await fetch(`/api/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Error("no answer from the server: is 'fgnn play' still running?");
  }
  const data = await reply.json();
  if (!reply.ok) throw Error(data.error);
  return data;
}

let weights = null;

/** The tensors of the packaged network, loaded at first use from the file beside the page. */
export function loadWeights(read) {
  weights ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "weights.js";
    script.onload = () => resolve(read(globalThis.fgnnWeights));
    script.onerror = () => { weights = null; reject(Error("the weights of the network could not be loaded")); };
    document.head.append(script);
  });
  return weights;
}
