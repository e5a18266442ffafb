/** What a heatmap says in words: its rows, its cells, its folded groups; and how rows are sorted. */

import { EMPTY, type Heat, NONFINITE } from "../api.gen";
import type { Cell } from "../core/csv";
import { count, kind as kindLabel, number, value as shown, steps } from "../core/format";
import { rowMedian } from "../core/heat";
import type { TipContent } from "./Tip";

/** A row in its group: without what the header says. */
export function rowLabel(heat: Heat, row: Heat["rows"][number]): string {
  const { path: group } = heat.groups[row.group] ?? { path: "" };
  if (!group || !row.path.startsWith(group) || row.count > 1) return row.label;
  const rest = row.path.slice(group.length).replace(/^\./, "");
  return (
    `${rest}${slotWord(row) ? ` ${slotWord(row)}` : ""}`.trim() ||
    (row.path.split(".").at(-1) ?? "")
  );
}

export function rowTitle(row: Heat["rows"][number]): string {
  return `${row.path || "(root)"}${slotWord(row) ? ` ${slotWord(row)}` : ""}`;
}

/** The first output of a call needs no name. */
function slotWord(row: Heat["rows"][number]): string {
  const call = row.call > 0 ? ` #${row.call}` : "";
  return `${row.slot === "0" ? "" : row.slot}${call}`;
}

/** What a cell says: its row, its steps, its value and how it compares with the row. */
export function describe(heat: Heat, r: number, c: number): Omit<TipContent, "x" | "y"> {
  const row = heat.rows[r];
  const wide = heat.columns.first.length;
  const at = r * wide + c;
  const value = heat.values[at];
  const rows: [string, string][] = [];
  rows.push(["at", steps(heat.columns.first[c], heat.columns.last[c])]);
  const name = heat.label;
  if (heat.flags[at] === EMPTY) rows.push([name, "not recorded"]);
  else {
    if (heat.flags[at] === NONFINITE) rows.push(["holds", "NaN or infinite values"]);
    rows.push([
      heat.columns.steps[c] > 1 ? `${name}, ${aggregateWord(heat)}` : name,
      shown(value, heat.format),
    ]);
    const median = rowMedian(heat.values, heat.flags, r * wide, wide);
    if (median > 0 && Number.isFinite(value))
      rows.push(["of its median", `${number(value / median)}×`]);
  }
  if (row.count > 1) rows.push(["tensors in this row", count(row.count)]);
  return {
    title: rowTitle(row),
    note: heat.kind ? kindLabel(heat.kind) : "",
    rows,
  };
}

/** What a cell of a folded group says: the largest of its rows, and which it is. */
export function describeGroup(heat: Heat, group: number, c: number): Omit<TipContent, "x" | "y"> {
  const { label: title, start, length } = heat.groups[group];
  const wide = heat.columns.first.length;
  const rows: [string, string][] = [];
  rows.push(["at", steps(heat.columns.first[c], heat.columns.last[c])]);
  let [most, bad] = [-1, 0];
  for (let r = start; r < start + length; r++) {
    const at = r * wide + c;
    if (heat.flags[at] === NONFINITE) bad++;
    if (heat.flags[at] === EMPTY || !Number.isFinite(heat.values[at])) continue;
    if (most < 0 || Math.abs(heat.values[at]) > Math.abs(heat.values[most * wide + c])) most = r;
  }
  const name = heat.label;
  if (bad) rows.push(["not finite", `${count(bad)} of ${count(length)} rows`]);
  if (most >= 0) {
    rows.push([`largest ${name}`, shown(heat.values[most * wide + c], heat.format)]);
    rows.push(["in", rowLabel(heat, heat.rows[most])]);
  } else if (!bad) rows.push([name, "not recorded"]);
  return { title, note: `${count(length)} rows`, rows };
}

function aggregateWord(heat: Heat): string {
  return {
    max_abs: "max |x|",
    max: "largest",
    min: "smallest",
    mean: "mean",
    last: "last",
  }[heat.aggregate];
}

/** A row's change between the first and the last quarter of the window, for sorting. */
export function rowOrder(heat: Heat, by: "module" | "max" | "change"): number[] {
  const wide = heat.columns.first.length;
  const order = heat.rows.map((_, i) => i);
  if (by === "module" || wide === 0) return order;
  const quarter = Math.max(1, wide >> 2);
  const score = (r: number) => {
    const at = r * wide;
    for (let c = 0; c < wide; c++) if (heat.flags[at + c] === NONFINITE) return Infinity;
    if (by === "max") {
      let most = -Infinity;
      for (let c = 0; c < wide; c++)
        if (Number.isFinite(heat.values[at + c]))
          most = Math.max(most, Math.abs(heat.values[at + c]));
      return most;
    }
    const before = Math.abs(rowMedian(heat.values, heat.flags, at, quarter));
    const after = Math.abs(rowMedian(heat.values, heat.flags, at + wide - quarter, quarter));
    return before > 0 && after > 0 ? Math.abs(Math.log2(after / before)) : -1;
  };
  const scores = order.map(score);
  return order.sort((a, b) => scores[b] - scores[a] || a - b);
}

/** The numbers of a heatmap: a line per row, a column per column of steps. */
export function heatTable(heat: Heat): Cell[][] {
  const wide = heat.columns.first.length;
  const head: Cell[] = ["row", ...Array.from(heat.columns.first)];
  const rows = heat.rows.map((row, r): Cell[] => [
    rowTitle(row),
    ...Array.from({ length: wide }, (_, c): Cell => {
      const at = r * wide + c;
      if (heat.flags[at] === EMPTY) return null;
      return heat.flags[at] === NONFINITE ? "nonfinite" : heat.values[at];
    }),
  ]);
  return [head, ...rows];
}
