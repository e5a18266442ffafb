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
