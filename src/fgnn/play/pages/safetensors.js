// Safetensors files: a JSON header and the bytes of the tensors.

const word = new DataView(new ArrayBuffer(4));

// Bytes and reader of each type; the upper half of a float32 is a BF16.
const KINDS = {
  F64: [8, (view, at) => view.getFloat64(at, true)],
  F32: [4, (view, at) => view.getFloat32(at, true)],
  BF16: [2, (view, at) => { word.setUint16(2, view.getUint16(at, true), true); return word.getFloat32(0, true); }],
  I64: [8, (view, at) => Number(view.getBigInt64(at, true))],
};

/** The tensors of a file, by name as {shape, values}, and its metadata. */
export function readSafetensors(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.byteLength < 8) throw Error("Expected a safetensors file");
  const length = Number(view.getBigUint64(0, true));
  if (length > bytes.byteLength - 8) throw Error("Expected a whole safetensors file");
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length))), tensors = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: [begin, end] } = entry;
    if (!KINDS[dtype]) throw Error(`Expected tensors of ${Object.keys(KINDS).join(", ")} (got ${dtype} in ${name})`);
    const [size, read] = KINDS[dtype], count = shape.reduce((p, k) => p * k, 1), start = 8 + length + begin;
    if (end - begin !== count * size || start + count * size > bytes.byteLength) throw Error("Expected a whole safetensors file");
    tensors[name] = { shape, values: Float64Array.from({ length: count }, (_, n) => read(view, start + n * size)) };
  }
  return { tensors, metadata: header.__metadata__ || {} };
}
