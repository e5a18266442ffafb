/**
 * The time axis: which pixels a column of steps covers, and how a delta joins what is there.
 *
 * A column is drawn from its first recorded step to the first one of the next column, but not over a
 * hole in the recording: where nothing was recorded for longer than usual, nothing is drawn.
 */

import type { Columns } from "../api.gen";

/** What is shown of the time axis: `from` is its left end, `to` its right end, in steps. */
export interface Domain {
  from: number;
  to: number;
  /** Usual distance between two recorded steps. */
  cadence: number;
}

export interface Spans {
  start: Float64Array;
  end: Float64Array;
}

type Ends = Pick<Columns, "first" | "last">;

/** The stretch of the axis that each column covers. */
export function spans({ first, last }: Ends): Spans {
  const n = first.length;
  const usual = cadence({ first, last });
  const end = new Float64Array(n);
  for (let c = 0; c < n; c++) {
    const limit = last[c] + 1.5 * usual;
    end[c] = c + 1 < n && first[c + 1] <= limit ? first[c + 1] : last[c] + usual;
  }
  return { start: first, end };
}

/** The usual distance between the end of a column and the next one: their median, at least 1. */
export function cadence({ first, last }: Ends): number {
  const n = first.length;
  if (n < 2) return 1;
  const gaps = new Float64Array(n - 1);
  for (let c = 0; c + 1 < n; c++) gaps[c] = first[c + 1] - last[c];
  gaps.sort();
  return Math.max(1, gaps[(n - 1) >> 1]);
}

/** For each pixel the columns on it, `from[p]` to `to[p]` (excluded); none when they are equal. */
export interface PixelMap {
  from: Int32Array;
  to: Int32Array;
}

/** Puts columns on `width` pixels. Every column lands on at least one pixel: none is lost. */
export function mapColumns(columns: Spans, domain: Domain, width: number): PixelMap {
  const map = { from: new Int32Array(width), to: new Int32Array(width) };
  const scale = width / (domain.to - domain.from || 1);
  for (let c = 0; c < columns.start.length; c++) {
    if (columns.end[c] <= domain.from || columns.start[c] >= domain.to) continue;
    const a = Math.max(0, Math.round((columns.start[c] - domain.from) * scale));
    const b = Math.max(a + 1, Math.round((columns.end[c] - domain.from) * scale));
    for (let p = Math.min(a, width - 1); p < Math.min(b, width); p++) {
      if (map.from[p] === map.to[p]) map.from[p] = c;
      map.to[p] = c + 1;
    }
  }
  return map;
}

/**
 * Puts `n` rows of equal height on `height` pixels. A row that is a pixel or more has the pixels whose
 * middle lies in it; of smaller rows several share a pixel. `offset`: pixels scrolled away above.
 */
export function mapRows(n: number, height: number, rowHeight = height / n, offset = 0): PixelMap {
  const map = { from: new Int32Array(height), to: new Int32Array(height) };
  const isWide = rowHeight >= 1;
  for (let p = 0; p < height; p++) {
    const from = Math.min(n - 1, Math.floor((p + offset + (isWide ? 0.5 : 0)) / rowHeight));
    map.from[p] = from;
    map.to[p] = isWide
      ? from + 1
      : Math.min(n, Math.max(from + 1, Math.floor((p + 1 + offset) / rowHeight)));
  }
  return map;
}

/** The column that holds a step: the last one that begins at or before it; -1 if there is none. */
export function columnAt(first: ArrayLike<number>, step: number): number {
  let [low, high] = [0, first.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (first[middle] <= step) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** As `columnAt`, but before the first column it is the first one. -1 only when there are none. */
export function nearestColumn(first: ArrayLike<number>, step: number): number {
  return first.length === 0 ? -1 : Math.max(0, columnAt(first, step));
}

/** Where a step is drawn, 0 to 1: in the middle of what it covers. */
export function placeOf(step: number, domain: Domain): number {
  return (step + domain.cadence / 2 - domain.from) / (domain.to - domain.from || 1);
}

/** The step under a place between 0 and 1, before it is rounded to a recorded one. */
export function stepAt(place: number, domain: Domain): number {
  return domain.from + place * (domain.to - domain.from);
}

/** How many columns stay when a delta beginning at `fromStep` comes. */
export function kept(first: ArrayLike<number>, fromStep: number): number {
  return columnAt(first, fromStep - 0.5) + 1;
}

/** The first `keep` entries of `old`, then all of `more`; `per` entries to a column. */
export function append<T extends Float64Array | Float32Array | Int32Array | Uint8Array>(
  old: T,
  keep: number,
  more: T,
  per = 1,
): T {
  const made = new (old.constructor as new (n: number) => T)(keep * per + more.length);
  made.set(old.subarray(0, keep * per) as T & ArrayLike<number>);
  made.set(more as T & ArrayLike<number>, keep * per);
  return made;
}

/** The same for a matrix stored row by row. */
export function appendRows<T extends Float32Array | Uint8Array>(
  old: T,
  oldColumns: number,
  keep: number,
  more: T,
  moreColumns: number,
): T {
  const rows = oldColumns ? old.length / oldColumns : more.length / (moreColumns || 1);
  const wide = keep + moreColumns;
  const made = new (old.constructor as new (n: number) => T)(rows * wide);
  for (let r = 0; r < rows; r++) {
    const part = old.subarray(r * oldColumns, r * oldColumns + keep);
    made.set(part as T & ArrayLike<number>, r * wide);
    const fresh = more.subarray(r * moreColumns, (r + 1) * moreColumns);
    made.set(fresh as T & ArrayLike<number>, r * wide + keep);
  }
  return made;
}
