import { expect, test } from "vitest";
import type { Kymograph } from "../src/api.gen";
import { CLASS_EMPTY, CLASS_LOW } from "../src/core/heat";
import { bars, beyondNote, cellAt, kymoPlane, nonfiniteShare, shade } from "../src/core/kymo";
import { edgeTicks, linearTicks, placeOnEdges, stepTicks } from "../src/core/scales";

const made = {
  scale: "linear",
  density: Float32Array.from([0.8, 0, 0.2, 0, 0, 0]),
  max_density: 0.8,
  min_density: 0.2,
  above: Float32Array.from([3, 0]),
  below: Float32Array.from([0, 0]),
  edges: Float64Array.from([0, 1, 2, 3]),
  counts: Float32Array.from([4, 0, 1, 0, 0, 0]),
  total: Float64Array.from([5, 0]),
  nans: Float64Array.from([1, 0]),
  pos_infs: Float64Array.from([0, 0]),
  neg_infs: Float64Array.from([1, 0]),
} as unknown as Kymograph;

test("the highest cell is the first row; a column without values is empty", () => {
  const { classes, rows, columns } = kymoPlane(made);
  expect([rows, columns]).toEqual([3, 2]);
  expect(classes[0]).toBeGreaterThan(CLASS_LOW); // cell 2, column 0
  expect(classes[2]).toBe(CLASS_LOW); // cell 1: counted, nothing there
  expect(classes[4]).toBe(255); // cell 0: the largest density
  expect(classes[1]).toBe(CLASS_EMPTY);
});

test("one value among many differs from none, and what is denser is brighter", () => {
  for (const scale of ["linear", "asinh", "log", "exponent"] as const) {
    const shades = { scale, max_density: 4, min_density: 1e-9 };
    expect(shade(0, shades)).toBe(0);
    expect(shade(1e-9, shades)).toBeGreaterThanOrEqual(0.08);
    expect(shade(4, shades)).toBe(1);
    expect(shade(40, shades)).toBe(1);
    const all = [1e-9, 1e-6, 1e-3, 0.1, 1, 3.9].map((d) => shade(d, shades));
    expect(all).toEqual([...all].sort((a, b) => a - b));
  }
  // Densities on an axis of magnitudes span many powers of ten: each has a colour of its own.
  const shades = { scale: "log" as const, max_density: 1, min_density: 1e-8 };
  expect(shade(1e-4, shades)).toBeCloseTo(0.08 + 0.92 / 2);
});

test("bars reach as far as cells are dense", () => {
  const [low, none, high] = bars(made, 0);
  expect([low, none]).toEqual([1, 0]);
  expect(high).toBeCloseTo(0.25);
  expect([...bars(made, 1)]).toEqual([0, 0, 0]);
});

test("columns that lie beyond the axis are counted", () => {
  expect(beyondNote(made)).toEqual(["1 column lies mostly outside the axis"]);
  expect(beyondNote({ ...made, above: Float32Array.from([1, 0]) })).toEqual([]);
});

test("what is not finite is a share of all", () =>
  expect(nonfiniteShare(made, 0)).toBeCloseTo(0.4));

test("places on an axis of equal cells", () => {
  const edges = Float64Array.from([-2, 0, 2]);
  expect(placeOnEdges(edges, "linear", 0)).toBe(0.5);
  expect(placeOnEdges(edges, "linear", -9)).toBe(0);
  expect(placeOnEdges(edges, "linear", 9)).toBe(1);
  const powers = Float64Array.from([0.25, 0.5, 1, 2]);
  expect(placeOnEdges(powers, "exponent", -Math.SQRT2)).toBeCloseTo(2.5 / 3);
  expect([0, 0.5, 0.999, 1].map((p) => cellAt(4, p))).toEqual([0, 2, 3, 3]);
});

test("ticks are round and inside", () => {
  expect(linearTicks(-1, 1, 4)).toEqual([-1, -0.5, 0, 0.5, 1]);
  expect(stepTicks(0, 3, 10)).toEqual([0, 1, 2, 3]);
  const powers = edgeTicks(
    Float64Array.from({ length: 25 }, (_, i) => 2 ** (i - 12)),
    "exponent",
    4,
  );
  expect(powers.map((t) => t.power)).toEqual([-8, 0, 8]);
  for (const t of edgeTicks(Float64Array.from([-100, -1, 0, 1, 100]), "asinh", 5)) {
    expect(t.at).toBeGreaterThanOrEqual(0);
    expect(t.at).toBeLessThanOrEqual(1);
  }
});
