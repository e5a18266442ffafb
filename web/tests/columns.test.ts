import { expect, test } from "vitest";
import {
  append,
  appendRows,
  cadence,
  columnAt,
  kept,
  mapColumns,
  mapRows,
  placeOf,
  spans,
} from "../src/core/columns";

const f64 = (...v: number[]) => Float64Array.from(v);

test("a column reaches to the next one, but not over a hole", () => {
  const columns = { first: f64(0, 10, 20, 100), last: f64(0, 10, 20, 100) };
  const { end } = spans(columns);
  expect([...end]).toEqual([10, 20, 30, 110]);
  expect(cadence(columns)).toBe(10);
});

test("every column lands on a pixel, however many there are", () => {
  const first = Float64Array.from({ length: 5000 }, (_, i) => i);
  const map = mapColumns(spans({ first, last: first }), { from: 0, to: 5000, cadence: 1 }, 313);
  const seen = new Set<number>();
  for (let p = 0; p < 313; p++) for (let c = map.from[p]; c < map.to[p]; c++) seen.add(c);
  expect(seen.size).toBe(5000);
});

test("wide columns do not share pixels", () => {
  const columns = spans({ first: f64(0, 1, 2), last: f64(0, 1, 2) });
  const map = mapColumns(columns, { from: 0, to: 3, cadence: 1 }, 10);
  for (let p = 0; p < 10; p++) expect(map.to[p] - map.from[p]).toBe(1);
  expect([...map.from]).toEqual([0, 0, 0, 1, 1, 1, 1, 2, 2, 2]);
});

test("columns outside of the window are not drawn", () => {
  const columns = spans({ first: f64(0, 1, 2, 3), last: f64(0, 1, 2, 3) });
  const map = mapColumns(columns, { from: 1, to: 3, cadence: 1 }, 4);
  expect([...map.from]).toEqual([1, 1, 2, 2]);
});

test("rows share pixels when there are more rows than pixels", () => {
  const map = mapRows(7, 3);
  expect(map.from[0]).toBe(0);
  expect(map.to[2]).toBe(7);
  for (let p = 1; p < 3; p++) expect(map.from[p]).toBeLessThanOrEqual(map.to[p - 1]);
});

test("a row of some pixels has those whose middle lies in it, wherever the list is scrolled", () => {
  expect([...mapRows(3, 5, 2.5).from]).toEqual([0, 0, 1, 1, 1]);
  const scrolled = mapRows(10, 4, 2, 3);
  expect([...scrolled.from]).toEqual([1, 2, 2, 3]);
  expect([...scrolled.to]).toEqual([2, 3, 3, 4]);
  expect(mapRows(2, 6, 2, 0).from[5]).toBe(1); // below the last row: not beyond it
});

test("a step is found in the column that began before it", () => {
  const first = f64(0, 8, 16);
  expect([-1, 0, 7, 8, 100].map((s) => columnAt(first, s))).toEqual([-1, 0, 0, 1, 2]);
  expect(kept(first, 8)).toBe(1);
  expect(kept(first, 9)).toBe(2);
  expect(kept(first, 2 ** 53)).toBe(3);
});

test("the first step is drawn in the middle of its column", () => {
  expect(placeOf(0, { from: 0, to: 10, cadence: 10 })).toBe(0.5);
});

test("appending keeps what was before, column by column and row by row", () => {
  expect([...append(f64(1, 2, 3), 2, f64(9))]).toEqual([1, 2, 9]);
  expect([...append(f64(1, 1, 2, 2), 1, f64(7, 7), 2)]).toEqual([1, 1, 7, 7]);
  const old = Float32Array.from([1, 2, 3, 4, 5, 6]);
  const more = Float32Array.from([9, 8]);
  expect([...appendRows(old, 3, 2, more, 1)]).toEqual([1, 2, 9, 4, 5, 8]);
});
