import { expect, test } from "vitest";
import type { Kymograph } from "../src/api.gen";
import { CLASS_EMPTY, CLASS_LOW } from "../src/core/heat";
import { cellAt, density, kymoPlane, nonfiniteShare, shareAt } from "../src/core/kymo";
import { edgeTicks, linearTicks, placeOnEdges, stepTicks } from "../src/core/scales";

const made = {
  edges: Float64Array.from([0, 1, 2, 3]),
  counts: Float32Array.from([4, 0, 1, 0, 0, 0]),
  total: Float64Array.from([5, 0]),
  nans: Float64Array.from([1, 0]),
  pos_infs: Float64Array.from([0, 0]),
  neg_infs: Float64Array.from([1, 0]),
} as unknown as Kymograph;

test("the highest cell is the first row; a column without values is empty", () => {
  const { classes, rows, columns } = kymoPlane(made, 0.8);
  expect([rows, columns]).toEqual([3, 2]);
  expect(classes[0]).toBeGreaterThan(CLASS_LOW); // cell 2, column 0
  expect(classes[2]).toBe(CLASS_LOW); // cell 1: counted, nothing there
  expect(classes[4]).toBe(255); // cell 0: the largest share
  expect(classes[1]).toBe(CLASS_EMPTY);
});

test("one value among many is told from none, and the legend reads back", () => {
  expect(density(0, 1)).toBe(0);
  expect(density(1e-9, 1)).toBeGreaterThanOrEqual(0.08);
  expect(density(0.5, 0.5)).toBe(1);
  expect(shareAt(density(0.2, 0.8), 0.8)).toBeCloseTo(0.2);
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
