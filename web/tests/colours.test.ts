import { describe, expect, test } from "vitest";
import { contrast, diverging, luminance, parseHex } from "../src/core/lut";
import { cssName, DARK, LIGHT, PIN_DARK, PIN_LIGHT, pinColour } from "../src/core/tokens";

const ratio = (a: string, b: string) => contrast(parseHex(a), parseHex(b));

describe.each([
  ["light", LIGHT, PIN_LIGHT],
  ["dark", DARK, PIN_DARK],
])("%s colours can be read", (_, t, pins) => {
  const grounds = [t.ground, t.surface, t.raised];

  test.each(["text", "text2", "text3", "accent"] as const)(
    "%s has 4.5:1 on every ground",
    (name) => {
      for (const ground of grounds) expect(ratio(t[name], ground)).toBeGreaterThanOrEqual(4.5);
    },
  );

  test("text on soft grounds has 4.5:1", () => {
    expect(ratio(t.warn, t.warnSoft)).toBeGreaterThanOrEqual(4.5);
    expect(ratio(t.bad, t.badSoft)).toBeGreaterThanOrEqual(4.5);
    expect(ratio(t.text3, t.hover)).toBeGreaterThanOrEqual(4.5);
    expect(ratio(t.accent, t.accentSoft)).toBeGreaterThanOrEqual(4.5);
    expect(ratio(t.accentInk, t.accent)).toBeGreaterThanOrEqual(4.5);
    expect(ratio(t.good, t.surface)).toBeGreaterThanOrEqual(4.5);
  });

  test("edges, rings and pins have 3:1", () => {
    for (const colour of [t.edge, t.accent, t.signal, ...pins]) {
      for (const ground of [t.ground, t.surface])
        expect(ratio(colour, ground)).toBeGreaterThanOrEqual(3);
    }
  });
});

test("the middle of the signed map is neutral: light on light, dark on dark", () => {
  expect(luminance(diverging(128, false))).toBeGreaterThan(0.6);
  expect(luminance(diverging(128, true))).toBeLessThan(0.1);
});

test("letters keep their colours, names become properties", () => {
  expect(pinColour("A", false)).toBe(PIN_LIGHT[0]);
  expect(pinColour("B", true)).toBe(PIN_DARK[1]);
  expect(cssName("accentSoft")).toBe("--accent-soft");
  expect(cssName("text2")).toBe("--text-2");
});
