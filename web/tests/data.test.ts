import { expect, test } from "vitest";
import type { Heat, Spark } from "../src/api.gen";
import { decode, Refusal } from "../src/data/decode";
import { encode } from "../src/data/question";

const reply = (body: ArrayBuffer, status = 200) => ({ status, type: "", body, retryAfter: null });
const bytes = (text: string) => new TextEncoder().encode(text).buffer as ArrayBuffer;

function packed(header: object, arrays: ArrayBufferView[]): ArrayBuffer {
  let head = JSON.stringify(header);
  while ((head.length + 8) % 8) head += " ";
  const size = arrays.reduce((n, a) => n + Math.ceil(a.byteLength / 8) * 8, 8 + head.length);
  const body = new Uint8Array(size);
  body.set(new TextEncoder().encode("SND1"));
  new DataView(body.buffer).setUint32(4, head.length, true);
  body.set(new TextEncoder().encode(head), 8);
  let at = 8 + head.length;
  for (const a of arrays) {
    body.set(new Uint8Array(a.buffer, a.byteOffset, a.byteLength), at);
    at += Math.ceil(a.byteLength / 8) * 8;
  }
  return body.buffer;
}

test("arrays are put where the header says, without a copy", () => {
  const body = packed(
    {
      spec: { name: "loss", x: null, parts: [{ flags: null }] },
      arrays: [
        { path: ["x"], dtype: "f64", shape: [2], offset: 0 },
        { path: ["parts", 0, "flags"], dtype: "u8", shape: [3], offset: 16 },
      ],
    },
    [Float64Array.from([1, 2.5]), Uint8Array.from([1, 2, 3])],
  );
  const { spec } = decode<Spark & { parts: { flags: Uint8Array }[] }>(reply(body));
  expect([...spec.x]).toEqual([1, 2.5]);
  expect([...spec.parts[0].flags]).toEqual([1, 2, 3]);
  expect(spec.x.buffer).toBe(body);
});

test("an answer without arrays is JSON", () => {
  expect(decode<Heat>(reply(bytes('{"spec":{"title":"t"}}'))).spec.title).toBe("t");
});

test("a failure says what the server said, or at least its status", () => {
  const body = bytes(
    '{"version":"1","error":{"status":404,"code":"no_such_run","message":"Gone."}}',
  );
  expect(() => decode(reply(body, 404))).toThrow("Gone.");
  try {
    decode(reply(bytes("<html>Bad gateway"), 502));
  } catch (error) {
    expect(error).toBeInstanceOf(Refusal);
    expect((error as Refusal).problem.status).toBe(502);
  }
});

test("questions: lists are repeated, booleans are digits, what is not there is left out", () => {
  expect(encode({ run: "a b", name: ["x", "y&"], fold: true, last: undefined, first: 0 })).toBe(
    "run=a+b&name=x&name=y%26&fold=1&first=0",
  );
});
