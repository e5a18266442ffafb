/**
 * The lines of a heatmap: its rows, under a header for each group. A folded group is one line that
 * stands for all its rows; the strongest of their cells is drawn.
 */

import type { RowGroup } from "../api.gen";
import type { PixelMap } from "./columns";

export interface HeatLine {
  kind: "row" | "header" | "folded";
  /** Index of the group; -1 where rows are sorted and there are none. */
  group: number;
  /** The rows it draws, from `start` to `end` (excluded), as places in the order. */
  start: number;
  end: number;
}

/** With more rows than this, groups are folded until they are opened. */
export const FOLD_ROWS = 120;

export function heatLines(
  groups: readonly RowGroup[],
  rows: number,
  isFolded: (group: number) => boolean,
): HeatLine[] {
  const lines: HeatLine[] = [];
  const row = (i: number, group: number) =>
    lines.push({ kind: "row", group, start: i, end: i + 1 });
  if (groups.length === 0) for (let i = 0; i < rows; i++) row(i, -1);
  for (const [g, { start, length }] of groups.entries()) {
    const end = start + length;
    if (length > 1 && isFolded(g)) lines.push({ kind: "folded", group: g, start, end });
    else {
      if (length > 1) lines.push({ kind: "header", group: g, start, end: start });
      for (let i = start; i < end; i++) row(i, g);
    }
  }
  return lines;
}

/** The line on which a row is drawn: its own, or that of its group. */
export function lineOf(lines: readonly HeatLine[], row: number): number {
  return lines.findIndex((line) => line.start <= row && row < line.end);
}

/** From pixels of lines (see `mapRows`) to pixels of rows. Headers have none. */
export function rowPixels(lines: readonly HeatLine[], pixels: PixelMap): PixelMap {
  const from = pixels.from.map((at) => lines[at]?.start ?? 0);
  const to = pixels.to.map((at) => lines[at - 1]?.end ?? 0);
  return { from, to };
}

export interface PlacedLabel {
  line: number;
  /** Of its middle, from the top of the plot. */
  y: number;
}

/**
 * Which lines have a label, so that none overlap: headers and folded groups first, then rows where
 * there is room. The header of a group that is scrolled half out of sight stays at the top.
 */
export function placeLabels(
  lines: readonly HeatLine[],
  lineHeight: number,
  scrollTop: number,
  height: number,
  labelHeight: number,
): { headers: PlacedLabel[]; rows: PlacedLabel[] } {
  const headers: PlacedLabel[] = [];
  const rows: PlacedLabel[] = [];
  if (!lines.length || !(lineHeight > 0)) return { headers, rows };
  const half = labelHeight / 2;
  const y = (i: number) => (i + 0.5) * lineHeight - scrollTop;
  const first = Math.max(0, Math.floor(scrollTop / lineHeight));
  const last = Math.min(lines.length, Math.ceil((scrollTop + height) / lineHeight));
  const inside = (at: number) => Math.max(half, Math.min(height - half, at));
  let free = -Infinity;
  const above = lines[first]?.kind === "row" ? headerAbove(lines, first) : -1;
  if (above >= 0) {
    // It is pushed out by the next header.
    let next = first;
    while (next < last && lines[next].group === lines[above].group) next++;
    const room = next < last ? y(next) - lineHeight / 2 - half : half;
    if (room >= half - labelHeight) headers.push({ line: above, y: Math.min(half, room) });
    free = Math.min(half, room) + half;
  }
  for (let i = first; i < last; i++) {
    if (lines[i].kind === "row") continue;
    const at = inside(y(i));
    if (at - half < free - 0.5) continue;
    headers.push({ line: i, y: at });
    free = at + half;
  }
  let next = 0;
  let end = -Infinity;
  for (let i = first; i < last; i++) {
    if (lines[i].kind !== "row") continue;
    const at = y(i);
    if (at < -half || at > height + half || at - half < end - 0.5) continue;
    while (next < headers.length && headers[next].y + half <= at - half + 0.5) next++;
    if (next < headers.length && headers[next].y - half < at + half - 0.5) continue;
    rows.push({ line: i, y: at });
    end = at + half;
  }
  return { headers, rows };
}

function headerAbove(lines: readonly HeatLine[], from: number): number {
  for (let i = from; i >= 0 && lines[i].group === lines[from].group; i--) {
    if (lines[i].kind === "header") return i;
  }
  return -1;
}
