/** The envelope of an answer (web/API.md, "Answers"): JSON, or a header and arrays after it. */

import type { Answer, Failure, Problem } from "../api.gen";
import type { Reply } from "./transport";

/** An answer that did not come: what the server said, or that it could not be reached. */
export class Refusal extends Error {
  constructor(
    readonly problem: Problem,
    readonly retryAfter: number | null = null,
  ) {
    super(problem.message);
  }

  get code(): string {
    return this.problem.code;
  }
}

export const UNREACHABLE = "unreachable";

const MAGIC = 0x31444e53; // "SND1", little-endian
const ARRAYS = { f64: Float64Array, f32: Float32Array, i32: Int32Array, u8: Uint8Array };

interface Place {
  path: (string | number)[];
  dtype: keyof typeof ARRAYS;
  shape: number[];
  offset: number;
}

/** The answer in a reply. Throws a `Refusal` if it holds none. */
export function decode<T>(reply: Reply): Answer<T> {
  if (reply.status >= 400) throw refusal(reply);
  const { body } = reply;
  if (body.byteLength < 8 || new DataView(body).getUint32(0, true) !== MAGIC) {
    return parse(new Uint8Array(body)) as Answer<T>;
  }
  const size = new DataView(body).getUint32(4, true);
  const answer = parse(new Uint8Array(body, 8, size)) as Answer<T> & { arrays: Place[] };
  for (const { path, dtype, shape, offset } of answer.arrays) {
    const length = shape.reduce((a, b) => a * b, 1);
    put(answer.spec as Tree, path, new ARRAYS[dtype](body, 8 + size + offset, length));
  }
  return answer;
}

type Tree = { [key: string | number]: unknown };

function put(inside: Tree, path: (string | number)[], array: ArrayBufferView): void {
  let at = inside;
  for (const key of path.slice(0, -1)) at = at[key] as Tree;
  at[path[path.length - 1]] = array;
}

function parse(bytes: Uint8Array): unknown {
  return JSON.parse(new TextDecoder().decode(bytes));
}

function refusal(reply: Reply): Refusal {
  try {
    const { error } = parse(new Uint8Array(reply.body)) as Failure;
    if (typeof error.message === "string") return new Refusal(error, reply.retryAfter);
  } catch {
    // Not ours: a proxy in between has answered.
  }
  const message = `The server answered with status ${reply.status}.`;
  return new Refusal({ status: reply.status, code: "failed", message }, reply.retryAfter);
}
