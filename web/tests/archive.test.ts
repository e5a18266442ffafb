import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import type { Hit } from "../src/api.gen";
import { find } from "../src/core/search";
import { Archive, archived } from "../src/data/archive";
import { decode } from "../src/data/decode";

const abort = new AbortController().signal;
const ABOUT = { made_ms: 0, version: "", was_live: false, holds: [], left_out: [] };

function packed(text: string): string {
  return gzipSync(text).toString("base64");
}

/** An archive of JSON answers: view, key, step, spec. */
function archive(views: unknown[], answers: [string, unknown[], number | null, unknown][]) {
  let body = "";
  const places = answers.map(([view, key, step, spec]) => {
    const text = JSON.stringify({ api: 1, version: "", view, run: null, spec });
    const place = [view, key, step, 0, body.length, text.length];
    body += text;
    return place;
  });
  const index = JSON.stringify({ format: 1, about: ABOUT, views, answers: places });
  const blocks = new Map([
    ["index", packed(index)],
    ["0", packed(body)],
  ]);
  return archived(Archive.read((name) => blocks.get(name) ?? null));
}

test("an answer is found by what tells its question from others", async () => {
  const views = [
    [
      "heat",
      [
        ["run", null],
        ["kind", null],
        ["stat", "rms"],
        ["fold", "0"],
      ],
      null,
    ],
  ];
  const transport = archive(views, [
    ["heat", ["a", "__proto__", "rms", "0"], null, "default"],
    ["heat", ["a", "__proto__", "max", "1"], null, "folded"],
  ]);
  const ask = async (question: object) => decode(await transport.get("heat", question, abort)).spec;
  expect(await ask({ run: "a", kind: "__proto__", columns: 512 })).toBe("default");
  expect(await ask({ run: "a", kind: "__proto__", stat: "max", fold: true })).toBe("folded");
  await expect(ask({ run: "a", kind: "constructor" })).rejects.toThrow("not in the report");
  await expect(ask({ run: "b", kind: "__proto__" })).rejects.toThrow("not in the report");
});

test("of several steps the nearest at or before is taken, and 0 is a step", async () => {
  const views = [["section", [["site", null]], "step"]];
  const transport = archive(views, [
    ["section", ["s"], 40, 40],
    ["section", ["s"], 0, 0],
    ["section", ["s"], 20, 20],
  ]);
  const ask = async (step?: number) =>
    decode(await transport.get("section", { site: "s", step }, abort)).spec;
  expect(await ask(0)).toBe(0);
  expect(await ask(19)).toBe(0);
  expect(await ask(20)).toBe(20);
  expect(await ask(99)).toBe(40);
  expect(await ask()).toBe(40);
  expect(await ask(-5)).toBe(0);
});

const hit = (path: string, type = "Linear"): Hit => ({
  module: path === "(root)" ? "." : path,
  node: null,
  path,
  type,
  kinds: [],
});
const HITS = {
  hits: ["(root)", "blocks", "blocks.0.q_proj", "blocks.10.q_proj", "q_proj"].map((p) => hit(p)),
  left_out: 0,
};

test.each([
  ["q_proj", ["q_proj", "blocks.0.q_proj", "blocks.10.q_proj"]],
  ["BLOCKS q_", ["blocks.0.q_proj", "blocks.10.q_proj"]],
  ["*.q_proj", ["blocks.0.q_proj", "blocks.10.q_proj"]],
  ["blocks.?.*", ["blocks.0.q_proj"]],
  ["blocks.[!0]*", ["blocks.10.q_proj"]],
  ["re:^blocks\\.\\d+\\.", ["blocks.0.q_proj", "blocks.10.q_proj"]],
  ["re:(", []],
  ["=blocks", ["blocks"]],
  ["=.", ["(root)"]],
  ["linear (root)", ["(root)"]],
])("a search for %s finds what the server would", (text, wanted) => {
  expect(find(HITS, text, 10).hits.map((h) => h.path)).toEqual(wanted);
});

test("a search is cut and says how many were left out", () => {
  expect(find(HITS, "q_proj", 1)).toEqual({ hits: [hit("q_proj")], left_out: 2 });
});
