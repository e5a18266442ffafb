/** Deltas: what came since, joined with what is there (web/API.md, "The time axis"). */

import type { Bounds, Columns, Heat, Kymograph, Line, Lines } from "../api.gen";
import { append, appendRows, kept } from "../core/columns";

/** Limits that hold for both: while following, they only widen. */
export function widen(a: Bounds, b: Bounds): Bounds {
  return {
    low: pick(Math.min, a.low, b.low),
    high: pick(Math.max, a.high, b.high),
    min: pick(Math.min, a.min, b.min),
    max: pick(Math.max, a.max, b.max),
    least_positive: pick(Math.min, a.least_positive, b.least_positive),
    low_share: Math.max(a.low_share, b.low_share),
    high_share: Math.max(a.high_share, b.high_share),
  };
}

export function mergeHeat(old: Heat, delta: Heat): Heat {
  if (delta.columns.from_step === null || delta.rows.length !== old.rows.length) return delta;
  const keep = kept(old.columns.first, delta.columns.from_step);
  const [wide, more] = [old.columns.first.length, delta.columns.first.length];
  return {
    ...delta,
    columns: mergeColumns(old.columns, delta.columns, keep),
    values: appendRows(old.values, wide, keep, delta.values, more),
    flags: appendRows(old.flags, wide, keep, delta.flags, more),
    limits: widen(old.limits, delta.limits),
    is_signed: old.is_signed || delta.is_signed,
  };
}

export function mergeKymograph(old: Kymograph, delta: Kymograph): Kymograph {
  const from = delta.columns.from_step;
  if (from === null || delta.edges.length !== old.edges.length) return delta;
  const keep = kept(old.columns.first, from);
  const cells = old.edges.length - 1;
  const join = <T extends Float32Array | Float64Array>(name: JoinedNames<T>): T =>
    append(old[name] as unknown as T, keep, delta[name] as unknown as T);
  return {
    ...delta,
    columns: mergeColumns(old.columns, delta.columns, keep),
    edges: old.edges,
    counts: append(old.counts, keep, delta.counts, cells),
    density: append(old.density, keep, delta.density, cells),
    below: join("below"),
    above: join("above"),
    zeros: join("zeros"),
    nans: join("nans"),
    pos_infs: join("pos_infs"),
    neg_infs: join("neg_infs"),
    total: join("total"),
    p1: join("p1"),
    p50: join("p50"),
    p99: join("p99"),
    low: join("low"),
    high: join("high"),
    mean: join("mean"),
    rms: join("rms"),
    limits: widen(old.limits, delta.limits),
    max_density: Math.max(old.max_density, delta.max_density),
    min_density: Math.min(old.min_density, delta.min_density) || old.min_density,
    first_nonfinite_step: old.first_nonfinite_step ?? delta.first_nonfinite_step,
  };
}

type JoinedNames<T> = {
  [K in keyof Kymograph]: Kymograph[K] extends T ? K : never;
}[keyof Kymograph];

/** Lines are matched by name, phase and module; a line that a delta does not speak of stays. */
export function mergeLines(old: Lines, delta: Lines): Lines {
  const from = delta.from_step;
  if (from === null) return delta;
  const key = (l: Line) => JSON.stringify([l.name, l.phase, l.module]);
  const fresh = new Map(delta.lines.map((l) => [key(l), l]));
  const known = new Set(old.lines.map(key));
  if (delta.lines.some((l) => !known.has(key(l)))) {
    return mergeLines(
      {
        ...old,
        lines: [
          ...old.lines,
          ...delta.lines
            .filter((l) => !known.has(key(l)))
            .map((l) => ({ ...l, start: old.first.length, length: 0 })),
        ],
      },
      delta,
    );
  }
  const pieces: { source: Lines; start: number; end: number }[] = [];
  const lines: Line[] = [];
  let at = 0;
  for (const line of old.lines) {
    const keep = kept(old.first.subarray(line.start, line.start + line.length), from);
    const more = fresh.get(key(line));
    pieces.push({ source: old, start: line.start, end: line.start + keep });
    if (more) pieces.push({ source: delta, start: more.start, end: more.start + more.length });
    const length = keep + (more?.length ?? 0);
    lines.push({ ...(more?.length ? more : line), start: at, length });
    at += length;
  }
  const gather = <T extends Float64Array | Int32Array | Uint8Array>(of: (l: Lines) => T): T => {
    const made = new (of(old).constructor as new (n: number) => T)(at);
    let place = 0;
    for (const { source, start, end } of pieces) {
      made.set(of(source).subarray(start, end) as T & ArrayLike<number>, place);
      place += end - start;
    }
    return made;
  };
  return {
    ...delta,
    lines,
    first: gather((l) => l.first),
    until: gather((l) => l.until),
    low: gather((l) => l.low),
    high: gather((l) => l.high),
    mean: gather((l) => l.mean),
    last: gather((l) => l.last),
    count: gather((l) => l.count),
    flags: gather((l) => l.flags),
    limits: widen(old.limits, delta.limits),
  };
}

function mergeColumns(old: Columns, delta: Columns, keep: number): Columns {
  return {
    stride: delta.stride,
    first: append(old.first, keep, delta.first),
    last: append(old.last, keep, delta.last),
    steps: append(old.steps, keep, delta.steps),
    from_step: null,
    cursor: delta.cursor,
  };
}

function pick(
  best: (a: number, b: number) => number,
  a: number | null,
  b: number | null,
): number | null {
  return a === null ? b : b === null ? a : best(a, b);
}
