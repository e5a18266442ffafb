/** Exponent histograms against number formats, with a power of two by which values are scaled. */

import type { CrossSection, FormatLoss } from "../api.gen";

type Bins = Pick<CrossSection, "exponents" | "exponent_counts" | "total">;

export interface Loss {
  underflow: number;
  subnormal: number;
  overflow: number;
}

/**
 * What a format would lose if values were multiplied by 2**shift first, counted in whole columns: a
 * column that is partly beyond the largest value counts as inside.
 */
export function lossAt(data: Bins, format: FormatLoss, shift: number): Loss {
  const lost = { underflow: 0, subnormal: 0, overflow: 0 };
  if (!(data.total > 0)) return lost;
  for (let i = 0; i < data.exponents.length; i++) {
    const n = data.exponents[i] + shift;
    const part = data.exponent_counts[i] / data.total;
    if (n < format.smallest_exponent) lost.underflow += part;
    else if (n < format.normal_exponent) lost.subnormal += part;
    else if (n > format.top_exponent) lost.overflow += part;
  }
  return lost;
}

/** The exponents to show: all that hold anything and the limits of the formats near them. */
export function exponentRange(
  data: Bins,
  formats: readonly FormatLoss[],
  shift: number,
): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < data.exponents.length; i++) {
    if (!(data.exponent_counts[i] > 0)) continue;
    low = Math.min(low, data.exponents[i]);
    high = Math.max(high, data.exponents[i]);
  }
  if (low > high) [low, high] = [-8, 8];
  const far = 24;
  for (const f of formats) {
    for (const limit of [
      f.smallest_exponent - shift,
      f.normal_exponent - shift,
      f.top_exponent - shift,
    ]) {
      if (limit >= low - far && limit <= high + far) {
        low = Math.min(low, limit);
        high = Math.max(high, limit);
      }
    }
  }
  return [low - 1, high + 1];
}
