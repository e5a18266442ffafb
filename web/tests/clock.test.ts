import { describe, expect, test } from "vitest";
import { clockAt, stepOf, timeTicks } from "../src/core/clock";

const EPOCHS = {
  name: "epoch",
  steps: new Float64Array([0, 100, 200, 400]),
  values: new Float64Array([0, 1, 2, 3]),
};

describe("a clock", () => {
  test("stands between its values by the rule of three", () => {
    expect(clockAt(EPOCHS, 50)).toBe(0.5);
    expect(clockAt(EPOCHS, 300)).toBe(2.5);
    expect(clockAt(EPOCHS, 900)).toBe(3);
    expect(stepOf(EPOCHS, 2.5)).toBe(300);
  });
  test("puts round values where their steps are", () => {
    const ticks = timeTicks(EPOCHS, 0, 400, 3);
    expect(ticks.map((t) => [t.label, t.step])).toEqual([
      ["0", 0],
      ["1", 100],
      ["2", 200],
      ["3", 400],
    ]);
  });
  test("is the step where there is none", () => {
    expect(timeTicks(null, 0, 10, 5).map((t) => t.step)).toEqual([0, 2, 4, 6, 8, 10]);
  });
  test("tells seconds as time", () => {
    const time = { ...EPOCHS, name: "time", values: new Float64Array([0, 60, 120, 7200]) };
    expect(timeTicks(time, 400, 400, 3)[0].label).toBe("2 h");
  });
});
