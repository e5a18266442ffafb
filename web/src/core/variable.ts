/** A traced variable: how large its matrix is drawn, which cell is where, and what a cell says. */

import { type Matrix, NONFINITE } from "../api.gen";
import { count, number } from "./format";

/** Cells are square where there is room; a few are not blown up, many share pixels. */
const CELL_PX = 16;
const LEAST_PX = 14;

export interface Size {
  width: number;
  height: number;
}

export interface Cell {
  row: number;
  column: number;
}

/** Pixels for so many cells, no wider than `width` and no higher than `most`. */
export function sizeOf(rows: number, columns: number, width: number, most: number): Size {
  if (rows < 1 || columns < 1 || width < 1) return { width: 0, height: 0 };
  const cell = Math.min(CELL_PX, width / columns);
  const clamp = (v: number, high: number) => Math.round(Math.max(LEAST_PX, Math.min(high, v)));
  return { width: clamp(columns * cell, width), height: clamp(rows * cell, most) };
}

/** The cell under a place, both between 0 and 1. */
export function cellUnder({ rows, columns }: Matrix, x: number, y: number): Cell {
  const at = (place: number, n: number) => Math.max(0, Math.min(n - 1, Math.floor(place * n)));
  return { row: at(y, rows), column: at(x, columns) };
}

/** Where an arrow key, Home or End leads from a cell; null for any other key. */
export function moved({ rows, columns }: Matrix, from: Cell, key: string): Cell | null {
  const { row, column } = from;
  const to = {
    ArrowUp: { row: row - 1, column },
    ArrowDown: { row: row + 1, column },
    ArrowLeft: { row, column: column - 1 },
    ArrowRight: { row, column: column + 1 },
    Home: { row, column: 0 },
    End: { row, column: columns - 1 },
  }[key];
  if (!to) return null;
  return {
    row: Math.max(0, Math.min(rows - 1, to.row)),
    column: Math.max(0, Math.min(columns - 1, to.column)),
  };
}

/** The place of a matrix in its tensor: `[1, 3, :, :]`. A vector has `[:]`, a number `[]`. */
export function place(index: readonly number[], dims: number): string {
  const rest = new Array<string>(Math.min(2, dims)).fill(":");
  return `[${[...index.map(String), ...rest].join(", ")}]`;
}

/** The elements behind a cell along one side: `4`, or `4–7`. */
export function span(cell: number, per: number, size: number): string {
  const [first, last] = [cell * per, Math.min(size, (cell + 1) * per) - 1];
  return first === last ? String(first) : `${first}–${last}`;
}

export interface CellWords {
  title: string;
  rows: [string, string][];
}

/** What a cell says: which elements it stands for, and the numbers in them. */
export function cellWords(m: Matrix, dims: number, { row, column }: Cell): CellWords {
  const at = row * m.columns + column;
  const sides = [span(row, m.cell_rows, m.height), span(column, m.cell_columns, m.width)];
  const where = [...m.index.map(String), ...sides.slice(2 - Math.min(2, dims))];
  const title = `[${where.join(", ")}]`;
  const isOne = m.cell_rows * m.cell_columns === 1;
  const isBad = m.flags[at] === NONFINITE;
  // A single element that is not finite is NaN, or else both its own extremes.
  if (isOne) return { title, rows: [["value", number(isBad ? m.low[at] : m.values[at])]] };
  const rows: [string, string][] = [
    ["farthest from zero", number(m.values[at])],
    ["from", `${number(m.low[at])} to ${number(m.high[at])}`],
  ];
  if (isBad) rows.push(["holds", "NaN or infinite values"]);
  return { title, rows };
}

/** `2 of 8`, counted from one as people do. */
export function ordinal(n: number, of: number): string {
  return `${count(n + 1)} of ${count(of)}`;
}
