import { describe, expect, test } from "vitest";
import { ago, amount, bytes, count, number, shape, share, site, steps } from "../src/core/format";

describe("numbers have three significant digits", () => {
  test.each([
    [0, "0"],
    [1, "1"],
    [0.03121, "0.0312"],
    [-0.5, "−0.5"],
    [2.34567, "2.35"],
    [9999.4, "9999"],
    [12345, "1.23e4"],
    [0.000123456, "1.23e−4"],
    [-1e-30, "−1e−30"],
    [Number.NaN, "NaN"],
    [Number.POSITIVE_INFINITY, "∞"],
    [Number.NEGATIVE_INFINITY, "−∞"],
    [null, "–"],
  ])("%s is %s", (value, text) => expect(number(value)).toBe(text));
});

test("counts are whole and grouped", () => {
  expect(count(1234567)).toBe("1\u202f234\u202f567");
  expect(count(-5)).toBe("−5");
  expect(count(null)).toBe("–");
});

test("amounts and bytes use the largest unit that fits", () => {
  expect(amount(9999)).toBe("9\u202f999");
  expect(amount(45600)).toBe("45.6k");
  expect(amount(70_600_000_000)).toBe("70.6B");
  expect(bytes(999)).toBe("999\u202fB");
  expect(bytes(8040612)).toBe("8.04\u202fMB");
  expect(bytes(null)).toBe("–");
});

test("a share that rounds to nothing, or to all, is not called so", () => {
  expect(share(0)).toBe("0%");
  expect(share(1e-7)).toBe("<0.1%");
  expect(share(0.0312)).toBe("3.1%");
  expect(share(0.5)).toBe("50%");
  expect(share(0.99999)).toBe(">99.9%");
  expect(share(1)).toBe("100%");
});

test("shapes name what varies", () => {
  expect(shape([8, -1, 64])).toBe("8×?×64");
  expect(shape([])).toBe("scalar");
});

test("steps are one or a stretch", () => {
  expect(steps(12, 12)).toBe("step 12");
  expect(steps(16, 31)).toBe("steps 16–31");
});

test("times are told in their largest unit", () => {
  expect(ago(1000, 3000)).toBe("now");
  expect(ago(0, 59_000)).toBe("59 s ago");
  expect(ago(0, 7_200_000)).toBe("2 h ago");
  expect(ago(null, 0)).toBe("–");
});

test("a site is its module and which tensor of it", () => {
  expect(site({ name: "h.0.attn/output/0", kind: "output", label: "output 0" })).toBe(
    "h.0.attn output 0",
  );
  expect(site({ name: "./output/0", kind: "output", label: "output 0" })).toBe("(root) output 0");
});
