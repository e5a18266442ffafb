import { expect, test } from "vitest";
import type { RunRow } from "../src/api.gen";
import { filterRuns, sortRuns, varied } from "../src/core/runlist";

function row(name: string, settings: [string, string][], more: Partial<RunRow> = {}): RunRow {
  return {
    id: name,
    name,
    status: "finished",
    stamp: "",
    created_ms: 0,
    last_seen_ms: null,
    last_step: 1,
    records: 1,
    dropped: 0,
    ranks: 1,
    size_bytes: 1,
    model: "Net",
    problem: null,
    settings: settings.map(([label, value]) => ({ label, value })),
    tags: [],
    note: "",
    ...more,
  };
}

const ROWS = [
  row(
    "a",
    [
      ["lr", "0.1"],
      ["depth", "4"],
    ],
    { tags: ["baseline"] },
  ),
  row(
    "b",
    [
      ["lr", "0.02"],
      ["depth", "4"],
    ],
    { note: "warmer start" },
  ),
  row("c", [["depth", "4"]]),
];

test("settings that differ have columns", () => {
  expect(varied(ROWS)).toEqual(["lr"]);
});

test("all words must be found, in names, tags, notes and settings", () => {
  const names = (filter: string) => filterRuns(ROWS, filter).map((r) => r.name);
  expect(names("baseline")).toEqual(["a"]);
  expect(names("lr=0.02")).toEqual(["b"]);
  expect(names("warmer depth=4")).toEqual(["b"]);
  expect(names("")).toEqual(["a", "b", "c"]);
});

test("numbers are sorted as numbers, what is missing comes last", () => {
  const names = (isDown: boolean) => sortRuns(ROWS, "setting:lr", isDown).map((r) => r.name);
  expect(names(true)).toEqual(["a", "b", "c"]);
  expect(names(false)).toEqual(["b", "a", "c"]);
  expect(sortRuns(ROWS, "name", true).map((r) => r.name)).toEqual(["c", "b", "a"]);
});
