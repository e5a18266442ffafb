/**
 * A matrix of numbers to pixels. Values become classes (one byte), classes are pooled to pixels so
 * that no spike is lost, and a palette makes colours of them.
 *
 * Classes: 0 nothing recorded, 1 not finite, 2..255 the place on the colour scale. When several cells
 * share a pixel, not finite wins, then the largest; with a signed scale the farthest from zero.
 */

import { EMPTY, NONFINITE } from "../api.gen";
import type { PixelMap } from "./columns";
import { diverging, type MapName, packed, parseHex, sequential } from "./lut";
import { type ColourScale, placer } from "./scales";

export const CLASS_EMPTY = 0;
export const CLASS_NONFINITE = 1;
export const CLASS_LOW = 2;
export const CLASS_TOP = 255;
const LEVELS = CLASS_TOP - CLASS_LOW;

export function toClass(t: number): number {
  return CLASS_LOW + Math.round(t * LEVELS);
}

/** The class of each value. */
export function classify(
  values: Float32Array | Float64Array,
  flags: Uint8Array,
  scale: ColourScale,
): Uint8Array {
  const classes = new Uint8Array(values.length);
  const place = placer(scale);
  for (let i = 0; i < values.length; i++) {
    if (flags[i] === EMPTY) continue;
    if (flags[i] === NONFINITE) classes[i] = CLASS_NONFINITE;
    else if (!Number.isNaN(values[i])) classes[i] = toClass(place(values[i]));
  }
  return classes;
}

export interface Palette {
  colours: Uint32Array;
  /** The stripes over what is not finite. */
  hatch: number;
  isSigned: boolean;
}

export function palette(
  map: MapName,
  isSigned: boolean,
  isDark: boolean,
  nonfinite: string,
  hatch: string,
): Palette {
  const colours = new Uint32Array(256);
  colours[CLASS_NONFINITE] = packed(parseHex(nonfinite));
  for (let c = CLASS_LOW; c <= CLASS_TOP; c++) {
    const i = Math.round(((c - CLASS_LOW) / LEVELS) * 255);
    colours[c] = packed(isSigned ? diverging(i, isDark) : sequential(map, i));
  }
  return { colours, hatch: packed(parseHex(hatch)), isSigned };
}

/** A plane of classes, row by row, as `rows` × `columns`. */
export interface Plane {
  classes: Uint8Array;
  rows: number;
  columns: number;
}

/** Draws a plane into pixels, one number each. `x` and `y` say which cells lie on which pixel. */
export function drawPlane(
  plane: Plane,
  x: PixelMap,
  y: PixelMap,
  pixels: Uint32Array,
  { colours, hatch, isSigned }: Palette,
): void {
  const width = x.from.length;
  const height = y.from.length;
  const line = new Uint8Array(width);
  let lastFrom = -1;
  let lastTo = -1;
  for (let py = 0; py < height; py++) {
    if (y.from[py] !== lastFrom || y.to[py] !== lastTo) {
      poolLine(plane, x, y.from[py], y.to[py], line, isSigned);
      lastFrom = y.from[py];
      lastTo = y.to[py];
    }
    const at = py * width;
    for (let px = 0; px < width; px++) {
      const c = line[px];
      pixels[at + px] = c === CLASS_NONFINITE && (px + py) % 6 < 2 ? hatch : colours[c];
    }
  }
}

function poolLine(
  { classes, columns }: Plane,
  x: PixelMap,
  rowFrom: number,
  rowTo: number,
  line: Uint8Array,
  isSigned: boolean,
): void {
  for (let px = 0; px < line.length; px++) {
    let best = 0;
    for (let r = rowFrom; r < rowTo; r++) {
      const at = r * columns;
      for (let c = x.from[px]; c < x.to[px]; c++) best = stronger(best, classes[at + c], isSigned);
    }
    line[px] = best;
  }
}

const MIDDLE = (CLASS_LOW + CLASS_TOP) / 2;

/** Of two classes the one that must not be lost. */
export function stronger(a: number, b: number, isSigned: boolean): number {
  if (a === CLASS_NONFINITE || b === CLASS_NONFINITE) return CLASS_NONFINITE;
  if (!isSigned || a === CLASS_EMPTY || b === CLASS_EMPTY) return a > b ? a : b;
  return Math.abs(a - MIDDLE) >= Math.abs(b - MIDDLE) ? a : b;
}

/** The median of a row's numbers, for "2.4× its median". NaN if there are none. */
export function rowMedian(
  values: Float32Array,
  flags: Uint8Array,
  from: number,
  n: number,
): number {
  const found: number[] = [];
  for (let i = from; i < from + n; i++)
    if (flags[i] !== EMPTY && !Number.isNaN(values[i])) found.push(values[i]);
  found.sort((a, b) => a - b);
  return found.length ? found[found.length >> 1] : Number.NaN;
}
