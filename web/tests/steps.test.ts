import { expect, test } from "vitest";
import { stepNumber, upto, walk } from "../src/core/steps";

// 0 to 5, then 8, 11, 14, then 100
const RANGES = [
  { first: 0, last: 5, every: 1 },
  { first: 8, last: 14, every: 3 },
  { first: 100, last: 100, every: 1 },
];
const ALL = [0, 1, 2, 3, 4, 5, 8, 11, 14, 100];

test("every recorded step has a number, and back", () => {
  expect(ALL.map((_, i) => stepNumber(RANGES, i))).toEqual(ALL);
  expect(ALL.map((step) => upto(RANGES, step) - 1)).toEqual(ALL.map((_, i) => i));
  expect([stepNumber(RANGES, -1), stepNumber(RANGES, ALL.length)]).toEqual([null, null]);
});

test("walking goes from one recorded step to the next, and stays at the ends", () => {
  expect(walk(RANGES, 5, 1)).toBe(8);
  expect(walk(RANGES, 8, -1)).toBe(5);
  expect(walk(RANGES, 9, 1)).toBe(11);
  expect(walk(RANGES, 9, -1)).toBe(8);
  expect(walk(RANGES, 14, 10)).toBe(100);
  expect(walk(RANGES, 3, -10)).toBe(0);
  expect(walk(RANGES, 60, 1)).toBe(100);
  expect(walk([], 60, 1)).toBeNull();
});
