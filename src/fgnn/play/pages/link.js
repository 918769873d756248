// The page's state in its address and in the browser's storage, so that a reload and a shared link lose nothing.

const KEY = "fgnn-play";
// Longer addresses do not survive mail and chat; the browser's storage holds what does not fit.
export const MOST_LINK = 60000;

/** The state as text for the address: deflated JSON in URL-safe base64, marked "z.". */
export async function encodeLink(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  const packed = await through(bytes, new CompressionStream("deflate-raw"));
  return `z.${toBase64(packed).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** The state of such a text, or of plain JSON in base64 as older links have it; null if it holds none. */
export async function decodeLink(text) {
  try {
    const packed = text.startsWith("z.");
    const bytes = fromBase64((packed ? text.slice(2) : text).replaceAll("-", "+").replaceAll("_", "/"));
    const plain = packed ? await through(bytes, new DecompressionStream("deflate-raw")) : bytes;
    const data = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(plain));
    return data && data.variables ? { model: data } : data;
  } catch {
    return null;
  }
}

/** Bytes through a stream that packs or unpacks them; at most 64 MiB come out. */
export async function through(bytes, stream) {
  const reader = new Blob([bytes]).stream().pipeThrough(stream).getReader(), parts = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > 64 << 20) { reader.cancel(); throw Error("Expected a file that expands to at most 64 MiB"); }
    parts.push(value);
  }
  const out = new Uint8Array(size);
  let at = 0;
  for (const part of parts) { out.set(part, at); at += part.length; }
  return out;
}

export function toBase64(bytes) {
  let text = "";
  for (let k = 0; k < bytes.length; k += 8192) text += String.fromCharCode(...bytes.subarray(k, k + 8192));
  return btoa(text);
}

export function fromBase64(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k += 1) bytes[k] = raw.charCodeAt(k);
  return bytes;
}

/** Keep the state in the browser, if it allows that. */
export function remember(state) {
  try { localStorage.setItem(KEY, JSON.stringify(state)); } catch { /* private windows and full storage: the link remains */ }
}

export function remembered() {
  try { return JSON.parse(localStorage.getItem(KEY)); } catch { return null; }
}
