/** The recorded steps of a run, as ranges: walking from one to the next without a list of all. */

import type { StepRange } from "../api.gen";

function lengthOf({ first, last, every }: StepRange): number {
  return Math.floor((last - first) / every) + 1;
}

/** How many recorded steps come at or before a step. */
export function upto(ranges: readonly StepRange[], step: number): number {
  let n = 0;
  for (const range of ranges) {
    if (step < range.first) break;
    n += Math.floor((Math.min(step, range.last) - range.first) / range.every) + 1;
  }
  return n;
}

/** The recorded step with `n` before it; null if there are not as many. */
export function stepNumber(ranges: readonly StepRange[], n: number): number | null {
  let left = n;
  for (const range of ranges) {
    const length = lengthOf(range);
    if (left < length) return left < 0 ? null : range.first + left * range.every;
    left -= length;
  }
  return null;
}

/** The recorded step so many on (or back) from a step, which need not be recorded itself. */
export function walk(ranges: readonly StepRange[], from: number, by: number): number | null {
  const total = ranges.reduce((n, range) => n + lengthOf(range), 0);
  if (total === 0) return null;
  const before = upto(ranges, from);
  const isRecorded = stepNumber(ranges, before - 1) === from;
  const at = before - 1 + by + (by < 0 && !isRecorded ? 1 : 0);
  return stepNumber(ranges, Math.max(0, Math.min(total - 1, at)));
}
