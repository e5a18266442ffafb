/** The value of each box of a level at a step, and how it went. */

import { NONFINITE, type NodeTint, type Tint } from "../api.gen";
import { nearestColumn } from "./columns";

export interface BoxValue {
  value: number;
  isBad: boolean;
}

/** At the step that was asked for the answer is exact; under the pointer it is read off the small line. */
export function boxValue(tint: Tint, node: NodeTint, hover: number | null): BoxValue {
  if (hover === null || node.row < 0) {
    return { value: node.value ?? Number.NaN, isBad: node.flag === NONFINITE };
  }
  const wide = tint.columns.first.length;
  const c = nearestColumn(tint.columns.first, hover);
  if (c < 0) return { value: Number.NaN, isBad: false };
  const at = node.row * wide + c;
  return { value: tint.sparks[at], isBad: tint.spark_flags[at] === NONFINITE };
}

/** The small line of a box. */
export function sparkOf(tint: Tint, node: NodeTint): { y: Float32Array; flags: Uint8Array } | null {
  if (node.row < 0) return null;
  const wide = tint.columns.first.length;
  return {
    y: tint.sparks.subarray(node.row * wide, (node.row + 1) * wide),
    flags: tint.spark_flags.subarray(node.row * wide, (node.row + 1) * wide),
  };
}

export interface Limits {
  low: number | null;
  high: number | null;
  least_positive: number | null;
}

/** Colours span at least this factor: what differs by less is about equal. */
const LEAST_FACTOR = 2;

/**
 * The limits of the colours of a level. While a run is followed they only widen (`before` are those
 * in use), so that a colour keeps its meaning from one moment to the next.
 */
export function tintLimits(limits: Limits, before: Limits | null): Limits {
  let [low, high] = [limits.low, limits.high];
  if (before) [low, high] = [least(low, before.low), most(high, before.high)];
  if (low !== null && high !== null && low > 0 && high < LEAST_FACTOR * low) {
    const middle = Math.sqrt(low * high);
    low = middle / Math.sqrt(LEAST_FACTOR);
    high = middle * Math.sqrt(LEAST_FACTOR);
  }
  return {
    low,
    high,
    least_positive: least(limits.least_positive, before?.least_positive ?? null),
  };
}

function least(a: number | null, b: number | null): number | null {
  return a === null ? b : b === null ? a : Math.min(a, b);
}

function most(a: number | null, b: number | null): number | null {
  return a === null ? b : b === null ? a : Math.max(a, b);
}
