import { expect, test } from "vitest";
import { mapRows } from "../src/core/columns";
import { heatLines, lineOf, placeLabels, rowPixels } from "../src/core/heatlines";
import { cutMiddle, cutPath } from "../src/core/pathcut";

const group = (path: string, start: number, length: number) => ({
  label: path,
  path,
  start,
  length,
});
const GROUPS = [group("embed", 0, 1), group("layers.0", 1, 3), group("layers.1", 4, 3)];

test("a group of several rows has a header; folded it is one line", () => {
  const open = heatLines(GROUPS, 7, () => false);
  expect(open.map((l) => l.kind).join(" ")).toBe("row header row row row header row row row");
  const folded = heatLines(GROUPS, 7, (g) => g === 2);
  expect(folded.map((l) => [l.kind, l.start, l.end]).at(-1)).toEqual(["folded", 4, 7]);
  expect(lineOf(folded, 0)).toBe(0);
  expect(lineOf(folded, 2)).toBe(3);
  expect(lineOf(folded, 6)).toBe(5);
  expect(heatLines([], 3, () => true)).toHaveLength(3);
});

test("pixels of a folded line are those of all its rows, and a header has none", () => {
  const lines = heatLines(GROUPS, 7, (g) => g === 2); // embed, header, three rows, folded
  const pixels = rowPixels(lines, mapRows(lines.length, lines.length));
  expect([...pixels.from]).toEqual([0, 1, 1, 2, 3, 4]);
  expect([...pixels.to]).toEqual([1, 1, 2, 3, 4, 7]);
});

const overlaps = (all: { y: number }[], height: number) =>
  all
    .map((l) => l.y)
    .sort((a, b) => a - b)
    .some((y, i, ys) => i > 0 && y - ys[i - 1] < height - 1);

test("headers always have their label before rows do, and none overlap", () => {
  const many = Array.from({ length: 80 }, (_, i) => group(`layers.${i}`, 14 * i, 14));
  for (const isFolded of [true, false]) {
    const lines = heatLines(many, 80 * 14, () => isFolded);
    for (const lineHeight of [0.4, 2, 6, 13, 26]) {
      const height = Math.min(560, lines.length * lineHeight);
      for (const top of [0, 7, 100.5]) {
        if (top > lines.length * lineHeight - height) continue;
        const { headers, rows } = placeLabels(lines, lineHeight, top, height, 13);
        expect(overlaps([...headers, ...rows], 13)).toBe(false);
        expect(headers.length).toBeGreaterThan(0);
        if (lineHeight < 0.9) expect(headers.length).toBeGreaterThan(height / 13 / 4);
        if (isFolded) expect(rows).toEqual([]);
        if (!isFolded && lineHeight >= 13) expect(rows.length).toBeGreaterThan(10);
      }
    }
  }
});

test("the header of a group that is scrolled out of sight stays on top", () => {
  const lines = heatLines([group("a", 0, 50), group("b", 50, 50)], 100, () => false);
  const { headers } = placeLabels(lines, 13, 20 * 13, 300, 13);
  expect(lines[headers[0].line].group).toBe(0);
  expect(headers[0].y).toBeLessThan(13);
});

const within = (n: number) => (text: string) => [...text].length <= n;

test("a path is cut in its middle: index and leaf stay", () => {
  const path = "encoder.block.11.layer.1.EncDecAttention.q weight";
  expect(cutPath(path, within(99))).toBe(path);
  expect(cutPath(path, within(30))).toMatch(/11.*1.*q weight$/);
  expect(cutPath(path, within(30))).toMatch(/^encoder/);
  expect(cutPath(path, within(12))).toBe("…11…q weight");
  expect(cutPath("model.layers.79.self_attn.q_proj", within(20))).toBe("model…79…q_proj");
  for (let n = 1; n < path.length; n++) {
    expect([...cutPath(path, within(n))].length).toBeLessThanOrEqual(n);
  }
});

test("other text is cut in its middle too", () => {
  expect(cutMiddle("abcdefgh", within(5))).toBe("ab…gh");
  expect(cutMiddle("abcdefgh", within(0))).toBe("");
});
