// Model files: the page reads JSON, UAI and .fgm, plain or gzipped, and leaves other formats to the server.
import { eachCombination } from "./domains.js";
import { through, toBase64 } from "./link.js";
import { modelData, readModel } from "./model.js";
import { readSafetensors } from "./safetensors.js";
import { call } from "./server.js";
import { served } from "./state.js";

const MOST_BYTES = 3e6, MOST_BUDGET = 16;
const HERE = { json: readJson, uai: readUai, fgm: readFgm };
const THERE = ["fg", "bif", "wcsp", "cfn"];

/** Thrown by a file with factors of kinds that only the server turns into tables. */
class Structured extends Error {}

/** The model of a file: a name and its bytes. Throws an Error with one line that names the file. */
export async function readFile(name, bytes, signal) {
  const [, kind, packed] = /\.([a-z]+?)(?:\.(gz|xz))?$/i.exec(name.toLowerCase()) || [];
  if (bytes.length > MOST_BYTES) throw Error(`${name}: Expected a file of at most 3 MB here; use 'fgnn solve' for larger ones`);
  if (!(kind in HERE) && !THERE.includes(kind)) {
    throw Error(`${name}: Expected a file in ${[...Object.keys(HERE), ...THERE].map((k) => `.${k}`).join(" ")}, or one of them with .gz or .xz`);
  }
  try {
    if (!(kind in HERE) || packed === "xz") return readModel(await call("import", { name, base64: toBase64(bytes) }, signal));
    const plain = packed ? await unpack(bytes) : bytes;
    try {
      return readModel(HERE[kind](plain));
    } catch (error) {
      if (!(error instanceof Structured && served())) throw error;
      return readModel(await call("import", { name, base64: toBase64(bytes) }, signal));
    }
  } catch (error) {
    if (error.name === "AbortError" || error.message.includes(name)) throw error;
    throw Error(`${name}: ${error.message}`);
  }
}

async function unpack(bytes) {
  try {
    return await through(bytes, new DecompressionStream("gzip"));
  } catch (error) {
    throw Error(error.message.startsWith("Expected") ? error.message : "Expected a whole gzip file");
  }
}

function readJson(bytes) {
  try {
    const data = JSON.parse(new TextDecoder().decode(bytes));
    return data && data.model ? data.model : data;
  } catch {
    throw Error("Expected JSON");
  }
}

/** UAI: MARKOV or BAYES, sizes, scopes, tables. Tables over one variable are unaries. */
function readUai(bytes) {
  const words = new TextDecoder().decode(bytes).split(/\s+/).filter(Boolean);
  let at = 1;
  const next = (what, whole) => {
    const word = words[at], value = Number(word);
    at += 1;
    if (word === undefined || !Number.isFinite(value) || (whole && !(Number.isInteger(value) && value >= 0))) {
      throw Error(`word ${at}: Expected ${what} (got ${word === undefined ? "the end" : `'${word.slice(0, 20)}'`})`);
    }
    return value;
  };
  if (words[0] !== "MARKOV" && words[0] !== "BAYES") throw Error(`word 1: Expected MARKOV or BAYES (got '${String(words[0]).slice(0, 20)}')`);
  const count = next("the number of variables", true);
  if (count > words.length) throw Error("Expected a whole UAI file");
  const variables = Array.from({ length: count }, () => { const states = next("a number of states", true); return { states, unary: Array(states).fill(0) }; });
  const factors = next("the number of factors", true);
  if (factors > words.length) throw Error("Expected a whole UAI file");
  const scopes = Array.from({ length: factors }, () => Array.from({ length: Math.min(next("the size of a scope", true), words.length) }, () => {
    const i = next("a variable", true);
    if (i >= count) throw Error(`word ${at}: Expected a variable below ${count} (got ${i})`);
    return i;
  }));
  const tables = [];
  for (const scope of scopes) {
    const size = scope.reduce((p, i) => p * variables[i].states, 1), stated = next("the size of a table", true);
    if (stated !== size) throw Error(`word ${at}: Expected ${size} values over variables ${scope.join(", ")} (got ${stated})`);
    const values = Array.from({ length: Math.min(size, words.length) }, () => {
      const v = next("a potential", false);
      if (v < 0) throw Error(`word ${at}: Expected potentials of 0 or more (got ${v})`);
      return v === 0 ? -Infinity : Math.log(v);
    });
    if (scope.length === 1) values.forEach((v, s) => { variables[scope[0]].unary[s] += v; });
    else if (scope.length) tables.push({ kind: "table", scope, values });
  }
  return { variables, factors: tables };
}

/** The native format: safetensors with groups of tables and budgets. */
function readFgm(bytes) {
  const { tensors, metadata } = readSafetensors(bytes);
  if (metadata["fgnn-model"] !== "1") throw Error("Expected a model written by fgnn");
  const other = Object.keys(tensors).find((name) => !/^(cardinalities|unary|constant|(tables|budgets)\.\d+\.\w+)$/.test(name));
  if (other) throw new Structured(`Expected tables and budgets (got ${other.split(".")[0]} factors)`);
  let from = 0;
  const variables = Array.from(tensors.cardinalities.values, (states) => {
    from += states;
    return { states, unary: Array.from(tensors.unary.values.slice(from - states, from)) };
  });
  const factors = [];
  const group = (kind, g, name) => tensors[`${kind}.${g}.${name}`];
  for (let g = 0; group("tables", g, "scopes"); g += 1) {
    const [count, arity] = group("tables", g, "scopes").shape, size = group("tables", g, "values").values.length / count;
    for (let c = 0; c < count; c += 1) {
      factors.push({ kind: "table", order: group("tables", g, "index").values[c], scope: Array.from(group("tables", g, "scopes").values.slice(c * arity, (c + 1) * arity)), values: Array.from(group("tables", g, "values").values.slice(c * size, (c + 1) * size)) });
    }
  }
  const tables = factors.length;
  for (let g = 0; group("budgets", g, "scopes"); g += 1) {
    const [count, arity] = group("budgets", g, "scopes").shape;
    for (let c = 0; c < count; c += 1) {
      factors.push({ kind: "budget", order: tables + group("budgets", g, "index").values[c], scope: Array.from(group("budgets", g, "scopes").values.slice(c * arity, (c + 1) * arity)), at_least: group("budgets", g, "at_least").values[c], at_most: group("budgets", g, "at_most").values[c] });
    }
  }
  return { variables, factors: factors.sort((a, b) => (a.kind === b.kind ? a.order - b.order : a.kind === "table" ? -1 : 1)) };
}

/** The model as the text of a UAI file, in which potentials are exp(θ) and budgets are tables. */
export function writeUai(model) {
  const factors = model.variables.map((v, i) => ({ scope: [i], values: v.unary }));
  for (const f of model.factors) factors.push(f.kind === "table" ? f : { scope: f.scope, values: budgetValues(f) });
  const potentials = ({ values }) => {
    const top = Math.max(...values), shift = Math.abs(top) > 600 && Number.isFinite(top) ? top : 0; // exp must not overflow
    return values.map((v) => Math.exp(v - shift)).join(" ");
  };
  return `${["MARKOV", model.variables.length, model.variables.map((v) => v.states).join(" "), factors.length,
    ...factors.map((f) => [f.scope.length, ...f.scope].join(" ")), ...factors.map((f) => `\n${f.values.length}\n${potentials(f)}`)].join("\n")}\n`;
}

function budgetValues(f) {
  if (f.scope.length > MOST_BUDGET) throw Error(`Expected budgets over at most ${MOST_BUDGET} variables in a UAI file (got ${f.scope.length}): it holds a budget as a table`);
  const values = [];
  eachCombination(f.scope.map(() => 2), (at) => {
    const ones = at.reduce((s, x) => s + x, 0);
    values.push(ones >= f.at_least && ones <= f.at_most ? 0 : -Infinity);
  });
  return values;
}

/** The model as the text of a JSON file, with the places of its nodes. */
export const writeJson = (model) => JSON.stringify(modelData(model), null, 1);

/** Let the browser save a file. */
export function saveFile(name, text) {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([text]));
  a.download = name;
  a.click();
  URL.revokeObjectURL(a.href);
}
