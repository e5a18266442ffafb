import { expect, test } from "vitest";
import type { Bounds, Heat, Kymograph, Lines } from "../src/api.gen";
import { mergeHeat, mergeKymograph, mergeLines, widen } from "../src/data/merge";

const LIMITS: Bounds = {
  low: 1,
  high: 2,
  min: 0,
  max: 3,
  least_positive: 0.5,
  low_share: 0,
  high_share: 0.1,
};
const f64 = (...v: number[]) => Float64Array.from(v);

const columns = (first: number[], from: number | null, cursor: string) => ({
  stride: 1,
  first: f64(...first),
  last: f64(...first),
  steps: new Int32Array(first.length).fill(1),
  from_step: from,
  cursor,
});

const heat = (values: number[][], first: number[], from: number | null): Heat =>
  ({
    columns: columns(first, from, `to ${first[first.length - 1]}`),
    rows: values.map(() => ({})),
    values: Float32Array.from(values.flat()),
    flags: new Uint8Array(values.flat().length).fill(1),
    limits: LIMITS,
    is_signed: false,
  }) as unknown as Heat;

test("a delta replaces the columns from its step on", () => {
  const old = heat(
    [
      [1, 2, 3],
      [4, 5, 6],
    ],
    [0, 1, 2],
    null,
  );
  const joined = mergeHeat(
    old,
    heat(
      [
        [30, 40],
        [60, 70],
      ],
      [2, 3],
      2,
    ),
  );
  expect([...joined.values]).toEqual([1, 2, 30, 40, 4, 5, 60, 70]);
  expect([...joined.columns.first]).toEqual([0, 1, 2, 3]);
  expect(joined.columns.cursor).toBe("to 3");
});

test("an empty delta changes nothing but the cursor", () => {
  const old = heat([[1, 2]], [0, 1], null);
  const joined = mergeHeat(old, heat([[]], [], 2 ** 53));
  expect([...joined.values]).toEqual([1, 2]);
});

test("a whole answer takes the place of all", () => {
  const fresh = heat([[9]], [0], null);
  expect(mergeHeat(heat([[1, 2]], [0, 1], null), fresh)).toBe(fresh);
});

test("limits only widen", () => {
  const b = { ...LIMITS, low: 0.5, high: 1.5, max: null };
  expect(widen(LIMITS, b)).toMatchObject({ low: 0.5, high: 2, max: 3 });
});

test("a kymograph grows by whole columns of cells", () => {
  const one = (first: number[], counts: number[], from: number | null) => {
    const n = first.length;
    const many = (v: number) => new Float32Array(n).fill(v);
    return {
      columns: columns(first, from, "c"),
      edges: f64(0, 1, 2),
      counts: Float32Array.from(counts),
      density: Float32Array.from(counts, (n) => n / 10),
      ...Object.fromEntries(
        ["below", "above", "p1", "p50", "p99", "low", "high", "mean", "rms"].map((k) => [
          k,
          many(1),
        ]),
      ),
      ...Object.fromEntries(
        ["zeros", "nans", "pos_infs", "neg_infs", "total"].map((k) => [
          k,
          new Float64Array(n).fill(n),
        ]),
      ),
      limits: LIMITS,
      max_density: Math.max(...counts) / 10,
      min_density: Math.min(...counts) / 10,
      first_nonfinite_step: null,
    } as unknown as Kymograph;
  };
  const joined = mergeKymograph(one([0, 1], [1, 2, 3, 4], null), one([1, 2], [5, 6, 7, 8], 1));
  expect([...joined.counts]).toEqual([1, 2, 5, 6, 7, 8]);
  expect(joined.density.length).toBe(6);
  expect([joined.min_density, joined.max_density]).toEqual([0.1, 0.8]);
  expect(joined.total.length).toBe(3);
  expect(joined.p50.length).toBe(3);
});

test("lines grow one by one; a new one is added", () => {
  const make = (parts: Record<string, number[]>, from: number | null) => {
    const lines = [];
    const first: number[] = [];
    for (const [name, x] of Object.entries(parts)) {
      lines.push({
        name,
        phase: "train",
        module: null,
        label: name,
        start: first.length,
        length: x.length,
        last: null,
        last_step: null,
      });
      first.push(...x);
    }
    const array = f64(...first);
    return {
      lines,
      stride: 1,
      first: array,
      until: array,
      low: array,
      high: array,
      mean: array,
      last: array,
      count: new Int32Array(first.length),
      flags: new Uint8Array(first.length),
      limits: LIMITS,
      from_step: from,
      cursor: "c",
      notes: [],
    } as unknown as Lines;
  };
  const joined = mergeLines(
    make({ loss: [0, 1, 2], lr: [0, 1] }, null),
    make({ loss: [2, 3], acc: [2] }, 2),
  );
  const of = (name: string) => {
    const line = joined.lines.find((l) => l.name === name)!;
    return [...joined.mean.subarray(line.start, line.start + line.length)];
  };
  expect(of("loss")).toEqual([0, 1, 2, 3]);
  expect(of("lr")).toEqual([0, 1]);
  expect(of("acc")).toEqual([2]);
});
