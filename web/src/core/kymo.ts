/** Kymographs: how values are spread over time, one column per stretch of steps, to a plane. */

import type { Kymograph } from "../api.gen";
import { CLASS_EMPTY, CLASS_LOW, type Plane, toClass } from "./heat";

/** A single value among millions must be told from none: where anything is, colour begins here. */
const FLOOR = 0.08;

/** The place on the colour scale of a share of a column's values. */
export function density(share: number, maxShare: number): number {
  if (!(share > 0) || !(maxShare > 0)) return 0;
  return Math.min(1, FLOOR + (1 - FLOOR) * Math.sqrt(share / maxShare));
}

/** The share of a column's values that a place on the colour scale stands for: for the legend. */
export function shareAt(t: number, maxShare: number): number {
  const root = Math.max(0, (t - FLOOR) / (1 - FLOOR));
  return root * root * maxShare;
}

/** The plane to draw: cells as rows, the highest on top. Columns without values are empty. */
export function kymoPlane(k: Kymograph, maxShare: number): Plane {
  const columns = k.total.length;
  const rows = Math.max(0, k.edges.length - 1);
  const classes = new Uint8Array(rows * columns);
  for (let c = 0; c < columns; c++) {
    const total = k.total[c];
    for (let i = 0; i < rows; i++) {
      const at = (rows - 1 - i) * columns + c;
      const count = k.counts[c * rows + i];
      if (!(total > 0)) classes[at] = CLASS_EMPTY;
      else classes[at] = count > 0 ? toClass(density(count / total, maxShare)) : CLASS_LOW;
    }
  }
  return { classes, rows, columns };
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
