import { expect, test } from "vitest";
import type { Matrix } from "../src/api.gen";
import { classify } from "../src/core/heat";
import { colourScale } from "../src/core/scales";
import { cellUnder, cellWords, moved, ordinal, place, sizeOf, span } from "../src/core/variable";

const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];

/** Five by seven elements in cells of two by four. */
const POOLED: Matrix = {
  items: 6,
  item: 4,
  index: [1, 1],
  height: 5,
  width: 7,
  rows: 3,
  columns: 2,
  cell_rows: 2,
  cell_columns: 4,
  values: Float64Array.from([-4, 2, 1, 1, NAN, 0]),
  low: Float64Array.from([-4, 1, 1, 1, NAN, 0]),
  high: Float64Array.from([3, INF, 1, 1, NAN, 0]),
  flags: Uint8Array.from([1, 2, 1, 1, 2, 1]),
  not_finite: 5,
  limits: {
    low: -4,
    high: 2,
    min: -4,
    max: 3,
    least_positive: 1,
    low_share: 0,
    high_share: 0,
  },
  is_signed: true,
};

const PLAIN: Matrix = {
  ...POOLED,
  index: [],
  items: 1,
  item: 0,
  height: 1,
  width: 3,
  rows: 1,
  columns: 3,
  cell_rows: 1,
  cell_columns: 1,
  values: Float64Array.from([1.5, NAN, NAN]),
  low: Float64Array.from([1.5, -INF, NAN]),
  high: Float64Array.from([1.5, -INF, NAN]),
  flags: Uint8Array.from([1, 2, 2]),
};

test("few cells are square and not blown up, many fit", () => {
  expect(sizeOf(3, 4, 300, 200)).toEqual({ width: 64, height: 48 });
  expect(sizeOf(256, 256, 300, 200)).toEqual({ width: 300, height: 200 });
  expect(sizeOf(1, 256, 300, 200)).toEqual({ width: 300, height: 14 });
  expect(sizeOf(256, 1, 300, 200)).toEqual({ width: 16, height: 200 });
  expect(sizeOf(0, 0, 300, 200)).toEqual({ width: 0, height: 0 });
});

test("a cell is found under the pointer and by keys, and neither leaves the matrix", () => {
  expect(cellUnder(POOLED, 0, 0)).toEqual({ row: 0, column: 0 });
  expect(cellUnder(POOLED, 0.51, 0.99)).toEqual({ row: 2, column: 1 });
  expect(cellUnder(POOLED, 1, 1.2)).toEqual({ row: 2, column: 1 });
  expect(moved(POOLED, { row: 0, column: 0 }, "ArrowDown")).toEqual({ row: 1, column: 0 });
  expect(moved(POOLED, { row: 0, column: 0 }, "ArrowLeft")).toEqual({ row: 0, column: 0 });
  expect(moved(POOLED, { row: 2, column: 1 }, "ArrowRight")).toEqual({ row: 2, column: 1 });
  expect(moved(POOLED, { row: 1, column: 0 }, "End")).toEqual({ row: 1, column: 1 });
  expect(moved(POOLED, { row: 1, column: 0 }, "x")).toBeNull();
});

test("places and elements are told as one would index them", () => {
  expect(place([1, 3], 4)).toBe("[1, 3, :, :]");
  expect(place([], 1)).toBe("[:]");
  expect(place([], 0)).toBe("[]");
  expect(span(1, 1, 9)).toBe("1");
  expect(span(2, 4, 10)).toBe("8–9");
  expect(ordinal(0, 3)).toBe("1 of 3");
});

test("a cell of several elements tells its extremes and what is not finite", () => {
  expect(cellWords(POOLED, 4, { row: 0, column: 0 })).toEqual({
    title: "[1, 1, 0–1, 0–3]",
    rows: [
      ["farthest from zero", "\u22124"],
      ["from", "\u22124 to 3"],
    ],
  });
  expect(cellWords(POOLED, 4, { row: 0, column: 1 }).rows).toEqual([
    ["farthest from zero", "2"],
    ["from", "1 to ∞"],
    ["holds", "NaN or infinite values"],
  ]);
  expect(cellWords(POOLED, 4, { row: 2, column: 1 }).title).toBe("[1, 1, 4, 4–6]");
});

test("a cell of one element is its value, whatever that is", () => {
  const values = [0, 1, 2].map((column) => cellWords(PLAIN, 1, { row: 0, column }).rows[0][1]);
  expect(values).toEqual(["1.5", "\u2212∞", "NaN"]);
  expect(cellWords(PLAIN, 1, { row: 0, column: 2 }).title).toBe("[2]");
  expect(cellWords({ ...PLAIN, width: 1, columns: 1 }, 0, { row: 0, column: 0 }).title).toBe("[]");
});

test("what is not finite has its own class, signs have a scale of their own", () => {
  const scale = colourScale(POOLED.limits, POOLED.is_signed, "auto");
  expect(scale).toEqual({ kind: "signed", low: -4, high: 4 });
  expect([...classify(POOLED.values, POOLED.flags, scale)]).toEqual([2, 1, 160, 160, 1, 129]);
});
