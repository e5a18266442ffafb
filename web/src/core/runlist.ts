/** The list of runs: filtered by words, sorted by a column, with the settings in which they differ. */

import type { RunRow } from "../api.gen";

/** Columns of settings that have room. */
const MOST_SETTINGS = 6;

export function settingOf(row: RunRow, name: string): string | null {
  return row.settings.find((s) => s.label === name)?.value ?? null;
}

/** Settings that are not the same in all runs. */
export function varied(rows: readonly RunRow[]): string[] {
  const names = new Set(rows.flatMap((row) => row.settings.map((s) => s.label)));
  const usable = rows.filter((row) => !row.problem);
  const differ = [...names].filter((n) => new Set(usable.map((row) => settingOf(row, n))).size > 1);
  return differ.slice(0, MOST_SETTINGS);
}

/** Runs that have all words in their name, model, state, tags, note or settings (`lr=0.1`). */
export function filterRuns(rows: readonly RunRow[], filter: string): readonly RunRow[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter((row) => {
    const settings = row.settings.map((s) => `${s.label}=${s.value}`);
    const text = [row.name, row.model ?? "", row.status, row.note, ...row.tags, ...settings];
    const all = text.join("\n").toLowerCase();
    return words.every((word) => all.includes(word));
  });
}

/** By a column; what has no value comes last. Without a column as they came: newest first. */
export function sortRuns(rows: readonly RunRow[], by: string, isDown: boolean): readonly RunRow[] {
  if (!by) return rows;
  const sign = isDown ? -1 : 1;
  return [...rows].sort((one, two) => {
    const [a, b] = [keyOf(one, by), keyOf(two, by)];
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  });
}

function keyOf(row: RunRow, by: string): string | number | null {
  if (!by.startsWith("setting:")) return row[by as keyof RunRow] as string | number | null;
  const text = settingOf(row, by.slice("setting:".length));
  return text === null
    ? null
    : text.trim() !== "" && Number.isFinite(Number(text))
      ? Number(text)
      : text;
}
