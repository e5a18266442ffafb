import { expect, test } from "vitest";
import type { FormatLoss, LevelEdge, LevelNode, Tree, TreeNode } from "../src/api.gen";
import { exponentRange, lossAt } from "../src/core/exponents";
import { edgeWidth, fitted, layoutLevel, smooth } from "../src/core/layout";
import { tintLimits } from "../src/core/tint";
import { missingInsides, slice, visibleLines } from "../src/core/tree";

const node = (module: string, parent: number, more: Partial<TreeNode> = {}): TreeNode => ({
  module,
  node: module,
  parent,
  depth: 0,
  label: module,
  path: module,
  type: "T",
  count: 1,
  instances: [],
  children: 0,
  parameters: 0,
  kinds: [],
  ...more,
});

const TREE: Tree = {
  nodes: [
    node(".", -1, { children: 2 }),
    node("h", 0, { children: 1 }),
    node("h.0", 1, {
      count: 3,
      children: 1,
      instances: ["h.0", "h.1", "h.2"].map((m) => ({ node: m, module: m, label: m })),
    }),
    node("h.0.attn", 2),
    node("head", 0),
  ],
  left_out: 0,
};
const NOTHING = { opened: new Map(), chosen: new Map(), insides: new Map() };

test("a short tree is open near the top, and repeats stay closed", () => {
  expect(visibleLines(TREE, NOTHING).map((l) => l.id)).toEqual([".", "h", "h.0", "head"]);
});

test("opening and closing by hand wins", () => {
  const open = visibleLines(TREE, { ...NOTHING, opened: new Map([["h.0", true]]) });
  expect(open.map((l) => l.id)).toEqual([".", "h", "h.0", "h.0.attn", "head"]);
  const closed = visibleLines(TREE, { ...NOTHING, opened: new Map([[".", false]]) });
  expect(closed.map((l) => l.id)).toEqual(["."]);
});

test("another instance shows its own inside once that has come", () => {
  const view = {
    opened: new Map([["h.0", true]]),
    chosen: new Map([["h.0", 2]]),
    insides: new Map(),
  };
  const before = visibleLines(TREE, view);
  expect(before.map((l) => l.id)).toEqual([".", "h", "h.0", "head"]);
  expect(missingInsides(before, view)).toEqual(["h.2"]);
  const inside: Tree = {
    nodes: [node("h.2", -1, { children: 1 }), node("h.2.attn", 0)],
    left_out: 0,
  };
  const after = visibleLines(TREE, { ...view, insides: new Map([["h.2", inside]]) });
  expect(after.map((l) => l.node.module)).toEqual([".", "h", "h.0", "h.2.attn", "head"]);
});

test("of a long list only what is on screen is made", () => {
  expect(slice(100000, 24, 24 * 500, 480)).toEqual({ first: 496, last: 524 });
  expect(slice(3, 24, 0, 480)).toEqual({ first: 0, last: 3 });
});

const box = (id: string) => ({ id, kind: "module" }) as unknown as LevelNode;
const edge = (source: string, target: string): LevelEdge => ({
  source,
  target,
  count: 1,
  label: "",
  bytes: 4,
});
const SIZE = () => ({ width: 100, height: 40 });

test("data flows down, or to the right", () => {
  const nodes = ["a", "b", "c"].map(box);
  const edges = [edge("a", "b"), edge("b", "c"), edge("a", "c"), edge("a", "gone"), edge("b", "b")];
  const down = layoutLevel(nodes, edges, SIZE, "TB", true);
  const y = (id: string) => down.boxes.get(id)!.y;
  expect(y("a")).toBeLessThan(y("b"));
  expect(y("b")).toBeLessThan(y("c"));
  expect(down.routes).toHaveLength(3);
  const right = layoutLevel(nodes, edges, SIZE, "LR", true);
  expect(right.boxes.get("a")!.x).toBeLessThan(right.boxes.get("b")!.x);
});

test("boxes may have any name", () => {
  const names = ["__proto__", "constructor", "toString", "hasOwnProperty", "valueOf", ""];
  const edges = names.slice(1).map((name, i) => edge(names[i], name));
  const { boxes, routes } = layoutLevel(names.map(box), edges, SIZE, "TB", true);
  expect([...boxes.keys()]).toEqual(names);
  expect(routes.map((r) => r.edge)).toEqual(edges);
  const tops = names.map((name) => boxes.get(name)?.y);
  expect(tops).toEqual([...tops].sort((a, b) => (a ?? 0) - (b ?? 0)));
  expect(new Set(tops).size).toBe(names.length);
});

test("without a flow, and with too many boxes, they stand in order and do not overlap", () => {
  const nodes = Array.from({ length: 500 }, (_, i) => box(String(i)));
  const grid = layoutLevel(nodes, [edge("0", "1")], SIZE, "TB", true);
  expect(grid.isGrid).toBe(true);
  expect(grid.routes).toHaveLength(0);
  const places = [...grid.boxes.values()];
  for (let i = 1; i < places.length; i++) {
    const [p, q] = [places[i - 1], places[i]];
    expect(q.x >= p.x + p.width || q.y >= p.y + p.height).toBe(true);
  }
  expect(layoutLevel(nodes.slice(0, 3), [], SIZE, "TB", false).isGrid).toBe(false);
});

test("a cycle is laid out too", () => {
  const found = layoutLevel(
    ["a", "b"].map(box),
    [edge("a", "b"), edge("b", "a")],
    SIZE,
    "TB",
    true,
  );
  expect(found.boxes.size).toBe(2);
});

test("edges are smooth and as wide as what flows, within reason", () => {
  expect(
    smooth([
      { x: 0, y: 0 },
      { x: 0, y: 9 },
    ]),
  ).toBe("M0 0L0 9");
  expect(
    smooth([
      { x: 0, y: 0 },
      { x: 5, y: 5 },
      { x: 0, y: 9 },
    ]),
  ).toBe("M0 0Q5 5 0 9");
  expect(edgeWidth(null)).toBe(1.5);
  expect(edgeWidth(1e12)).toBe(4);
});

test("a graph that fits is shown whole and in the middle", () => {
  const { x, k } = fitted({ width: 100, height: 100 }, { width: 400, height: 200 });
  expect(k).toBeGreaterThan(1);
  expect(x).toBeCloseTo((400 - 100 * k) / 2);
});

const E4M3 = { smallest_exponent: -9, normal_exponent: -6, top_exponent: 8 } as FormatLoss;

test("formats lose what lies outside of them, and scaling moves it inside", () => {
  const data = {
    exponents: Int32Array.from([-20, -8, 0, 12]),
    exponent_counts: Float64Array.from([1, 2, 4, 1]),
    total: 8,
  };
  expect(lossAt(data, E4M3, 0)).toEqual({ underflow: 0.125, subnormal: 0.25, overflow: 0.125 });
  expect(lossAt(data, E4M3, -4).overflow).toBe(0);
  expect(lossAt({ ...data, total: 0 }, E4M3, 0)).toEqual({
    underflow: 0,
    subnormal: 0,
    overflow: 0,
  });
  const [low, high] = exponentRange(data, [E4M3], 0);
  expect([low, high]).toEqual([-21, 13]);
});

test("colours of boxes span at least a factor of two, and only widen while a run is followed", () => {
  const limits = (low: number, high: number) => ({ low, high, least_positive: low });
  const narrow = tintLimits(limits(0.975, 1.01), null);
  expect(narrow.high! / narrow.low!).toBeCloseTo(2);
  expect(narrow.low! * narrow.high!).toBeCloseTo(0.975 * 1.01);
  expect(tintLimits(limits(0.1, 5), null)).toMatchObject({ low: 0.1, high: 5 });
  const next = tintLimits(limits(0.2, 4), limits(0.1, 5));
  expect(next).toMatchObject({ low: 0.1, high: 5 });
  expect(tintLimits(limits(0.05, 9), next)).toMatchObject({ low: 0.05, high: 9 });
  const none = { low: null, high: null, least_positive: null };
  expect(tintLimits(none, null)).toEqual(none);
  expect(tintLimits(limits(-1, 1), null)).toMatchObject({ low: -1, high: 1 });
});
