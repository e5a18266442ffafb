/** Kymographs: how values are spread over time, one column per stretch of steps, to a plane. */

import type { Kymograph, Scale } from "../api.gen";
import { CLASS_EMPTY, type Plane, toClass } from "./heat";

/** A single value among millions must differ from none: where anything is, colour begins here. */
const FLOOR = 0.08;

/** What colours stand for: the brightest, and the smallest density that is not 0. */
export interface Shades {
  scale: Scale;
  max_density: number;
  min_density: number;
}

export function isMagnitude(scale: Scale): boolean {
  return scale === "log" || scale === "exponent";
}

/**
 * The place of a density on the colour scale. Cells of an axis of magnitudes differ in width by many
 * powers of ten, and so do densities: there the logarithm is drawn, else the square root.
 */
export function shade(density: number, shades: Shades): number {
  const { max_density: most, min_density: least } = shades;
  if (!(density > 0) || !(most > 0)) return 0;
  if (density >= most) return 1;
  const t = isMagnitude(shades.scale)
    ? 1 - Math.log(most / density) / Math.log(Math.max(most / least, 2))
    : Math.sqrt(density / most);
  return FLOOR + (1 - FLOOR) * Math.max(0, t);
}

/** The plane to draw: cells as rows, the highest on top. Columns without values are empty. */
export function kymoPlane(k: Kymograph): Plane {
  const columns = k.total.length;
  const rows = Math.max(0, k.edges.length - 1);
  const classes = new Uint8Array(rows * columns);
  for (let c = 0; c < columns; c++) {
    for (let i = 0; i < rows; i++) {
      const at = (rows - 1 - i) * columns + c;
      classes[at] = k.total[c] > 0 ? toClass(shade(k.density[c * rows + i], k)) : CLASS_EMPTY;
    }
  }
  return { classes, rows, columns };
}

/** How far the bars of one column reach, 0 to 1: densities, on an axis of magnitudes their shade. */
export function bars(k: Kymograph, column: number): Float64Array {
  const cells = k.edges.length - 1;
  const found = Float64Array.from(k.density.subarray(column * cells, (column + 1) * cells));
  let most = 0;
  for (let i = 0; i < cells; i++) {
    if (isMagnitude(k.scale)) found[i] = shade(found[i], k);
    most = Math.max(most, found[i]);
  }
  if (most > 0) for (let i = 0; i < cells; i++) found[i] /= most;
  return found;
}

/** The shares of a column's values above and below the axis. */
export function outside(k: Kymograph, column: number): { above: number; below: number } {
  const total = k.total[column];
  if (!(total > 0)) return { above: 0, below: 0 };
  return { above: k.above[column] / total, below: k.below[column] / total };
}

/** How many columns have most of their values beyond the axis, as a sentence; none without any. */
export function beyondNote(k: Kymograph): string[] {
  let found = 0;
  for (let c = 0; c < k.total.length; c++) {
    const { above, below } = outside(k, c);
    if (above + below > 0.5) found++;
  }
  if (!found) return [];
  return [`${found} ${found === 1 ? "column lies" : "columns lie"} mostly outside the axis`];
}

/** For each column: 0 all finite, else the share that is not. */
export function nonfiniteShare(k: Kymograph, column: number): number {
  const bad = k.nans[column] + k.pos_infs[column] + k.neg_infs[column];
  return k.total[column] > 0 ? bad / k.total[column] : 0;
}

export function zeroShare(k: Kymograph, column: number): number {
  return k.total[column] > 0 ? k.zeros[column] / k.total[column] : 0;
}

/** The cell in which a place between 0 (low end) and 1 lies. */
export function cellAt(cells: number, place: number): number {
  return Math.max(0, Math.min(cells - 1, Math.floor(place * cells)));
}
