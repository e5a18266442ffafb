import { expect, test } from "vitest";
import { mapColumns, mapRows, spans } from "../src/core/columns";
import {
  CLASS_EMPTY,
  CLASS_NONFINITE,
  classify,
  drawPlane,
  palette,
  rowMedian,
  stronger,
  toClass,
} from "../src/core/heat";
import { packed, parseHex, sequential } from "../src/core/lut";
import { colourScale, place } from "../src/core/scales";

const LINEAR = { kind: "linear", low: 0, high: 10 } as const;

test("classes: nothing, not finite, and the place on the scale", () => {
  const values = Float32Array.from([0, 10, 5, Number.NaN, 3, 99]);
  const flags = Uint8Array.from([1, 1, 1, 1, 2, 1]);
  const classes = classify(values, flags, LINEAR);
  expect(classes[0]).toBe(2);
  expect(classes[1]).toBe(255);
  expect(classes[2]).toBe(toClass(0.5));
  expect(classes[3]).toBe(CLASS_EMPTY);
  expect(classes[4]).toBe(CLASS_NONFINITE);
  expect(classes[5]).toBe(255);
});

test("what must not be lost wins a pixel", () => {
  expect(stronger(200, CLASS_NONFINITE, false)).toBe(CLASS_NONFINITE);
  expect(stronger(20, 200, false)).toBe(200);
  expect(stronger(CLASS_EMPTY, 2, true)).toBe(2);
  expect(stronger(2, 140, true)).toBe(2); // far below zero beats just above
});

function drawn(values: number[], rows: number, width: number, height: number): Uint32Array {
  const columns = values.length / rows;
  const first = Float64Array.from({ length: columns }, (_, i) => i);
  const classes = classify(
    Float32Array.from(values),
    new Uint8Array(values.length).fill(1),
    LINEAR,
  );
  const pixels = new Uint32Array(width * height);
  const x = mapColumns(spans({ first, last: first }), { from: 0, to: columns, cadence: 1 }, width);
  const colours = palette("viridis", false, false, "#ff00c8", "#000000");
  drawPlane({ classes, rows, columns }, x, mapRows(rows, height), pixels, colours);
  return pixels;
}

test("a cell has the colour of its value", () => {
  const pixels = drawn([0, 10, 10, 0], 2, 2, 2);
  const [low, high] = [packed(sequential("viridis", 0)), packed(sequential("viridis", 255))];
  expect([...pixels]).toEqual([low, high, high, low]);
});

test("one spike in a thousand columns is on the screen", () => {
  const values = new Array<number>(1000).fill(0);
  values[437] = 10;
  const pixels = drawn(values, 1, 50, 1);
  expect([...pixels].filter((p) => p === packed(sequential("viridis", 255)))).toHaveLength(1);
});

test("viridis is viridis", () => {
  expect(sequential("viridis", 0)).toEqual(parseHex("440154"));
  expect(sequential("viridis", 255)).toEqual(parseHex("fde725"));
  expect(sequential("cividis", 0)).toEqual(parseHex("00224e"));
});

test("colours are logarithmic when values span decades, signed when they have signs", () => {
  const limits = { low: 1e-6, high: 1, least_positive: 1e-7 };
  const scale = colourScale(limits, false, "auto");
  expect(scale.kind).toBe("log");
  expect(place(scale, 1e-3)).toBeCloseTo(0.5);
  expect(place(scale, 0)).toBe(0);
  expect(colourScale({ low: 1, high: 2, least_positive: 1 }, false, "auto").kind).toBe("linear");
  const signed = colourScale({ low: -1, high: 4, least_positive: 1 }, true, "auto");
  expect(place(signed, 0)).toBe(0.5);
  expect(place(signed, -4)).toBe(0);
  expect(colourScale({ low: null, high: null, least_positive: null }, false, "log").kind).toBe(
    "log",
  );
});

test("the median of a row leaves out what is not there", () => {
  const values = Float32Array.from([5, Number.NaN, 1, 3, 100]);
  expect(rowMedian(values, Uint8Array.from([1, 1, 1, 1, 0]), 0, 5)).toBe(3);
  expect(rowMedian(values, new Uint8Array(5), 0, 5)).toBeNaN();
});
