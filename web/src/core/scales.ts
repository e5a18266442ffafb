/** Axes: from values to places between 0 and 1 and back, and where to put ticks. */

import type { Scale } from "../api.gen";
import { number } from "./format";

/** What colours a value: the ends are the limits, `mid` is where a signed map has its neutral. */
export interface ColourScale {
  kind: "linear" | "log" | "signed";
  low: number;
  high: number;
}

/** Place of a value on a colour scale, 0 to 1, clamped. */
export function place(scale: ColourScale, value: number): number {
  return placer(scale)(value);
}

/** The same for many values: what the scale alone decides is computed once. */
export function placer({ kind, low, high }: ColourScale): (value: number) => number {
  if (kind === "log") {
    const start = Math.log2(low);
    const width = Math.log2(high) - start || 1;
    return (value) => (value <= 0 ? 0 : clamp((Math.log2(value) - start) / width));
  }
  if (kind === "signed") {
    const width = 2 * (Math.max(Math.abs(low), Math.abs(high)) || 1);
    return (value) => clamp(0.5 + value / width);
  }
  const width = high - low || 1;
  return (value) => clamp((value - low) / width);
}

/** The scale that suits values within these limits. */
export function colourScale(
  limits: { low: number | null; high: number | null; least_positive: number | null },
  isSigned: boolean,
  wish: "auto" | "linear" | "log",
): ColourScale {
  let low = limits.low ?? 0;
  let high = limits.high ?? 1;
  if (isSigned && low < 0) {
    const end = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { kind: "signed", low: -end, high: end };
  }
  if (wish === "linear") return { kind: "linear", low, high: high > low ? high : low + 1 };
  const least = limits.least_positive;
  if (wish === "auto" && (least === null || high <= 0 || high / Math.max(low, least) < 4)) {
    return { kind: "linear", low, high: high > low ? high : low + 1 };
  }
  if (low <= 0) low = Math.min(least ?? 1e-30, high > 0 ? high : 1);
  if (high <= low) high = low * 2;
  return { kind: "log", low, high };
}

/** Place of a value on the axis of a kymograph, 0 (low end) to 1; cells are of equal height. */
export function placeOnEdges(edges: ArrayLike<number>, scale: Scale, value: number): number {
  const n = edges.length - 1;
  if (n < 1) return 0;
  const v = scale === "log" || scale === "exponent" ? Math.abs(value) : value;
  if (!(v > edges[0])) return 0;
  if (v >= edges[n]) return 1;
  let [low, high] = [0, n];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= v) low = middle;
    else high = middle;
  }
  const [a, b] = [edges[low], edges[low + 1]];
  const isGeometric = (scale === "log" || scale === "exponent") && a > 0;
  const t = isGeometric ? Math.log(v / a) / Math.log(b / a) : (v - a) / (b - a);
  return (low + t) / n;
}

export interface Tick {
  at: number;
  label: string;
  /** Set for powers of two: drawn as 2 with a raised exponent. */
  power?: number;
}

/** Ticks of a value axis made of cells; at most `most`, the places are between 0 and 1. */
export function edgeTicks(edges: ArrayLike<number>, scale: Scale, most: number): Tick[] {
  const n = edges.length - 1;
  if (n < 1) return [];
  if (scale === "exponent" || scale === "log") {
    const [first, last] = [Math.log2(edges[0]), Math.log2(edges[n])];
    const step = niceStep((last - first) / Math.max(1, most), [1, 2, 4, 5, 8, 10, 16, 20, 32, 64]);
    const ticks: Tick[] = [];
    for (let p = Math.ceil(first / step) * step; p <= last + 1e-9; p += step) {
      ticks.push({ at: (p - first) / (last - first), label: `2^${p}`, power: p });
    }
    return ticks;
  }
  const [low, high] = [edges[0], edges[n]];
  const wanted = scale === "linear" ? linearTicks(low, high, most) : asinhTicks(low, high, most);
  return wanted.map((v) => ({ at: placeOnEdges(edges, scale, v), label: number(v, 2) }));
}

/** Round numbers between two ends. */
export function linearTicks(low: number, high: number, most: number): number[] {
  if (!(high > low) || most < 1) return [];
  const step = niceNumber((high - low) / most);
  const ticks: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    ticks.push(i === 0 ? 0 : Number((i * step).toPrecision(12)));
  }
  return ticks;
}

/** Whole numbers for a step axis. */
export function stepTicks(first: number, last: number, most: number): number[] {
  if (last <= first) return [first];
  const ticks = linearTicks(first, last, most).filter((t) => Number.isInteger(t));
  return ticks.length ? ticks : [first, last];
}

function asinhTicks(low: number, high: number, most: number): number[] {
  const end = Math.max(Math.abs(low), Math.abs(high));
  if (!(end > 0)) return [0];
  const top = Math.floor(Math.log10(end));
  const perSide = Math.max(1, Math.floor((most - 1) / (low < 0 && high > 0 ? 2 : 1)));
  const sizes = Array.from({ length: perSide }, (_, i) => 10 ** (top - i));
  const all = [...sizes.map((s) => -s), 0, ...sizes].filter((v) => v >= low && v <= high);
  return all.sort((a, b) => a - b);
}

function niceNumber(rough: number): number {
  const unit = 10 ** Math.floor(Math.log10(rough));
  const m = rough / unit;
  return (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10) * unit;
}

function niceStep(rough: number, allowed: readonly number[]): number {
  return allowed.find((s) => s >= rough) ?? allowed[allowed.length - 1];
}

function clamp(v: number): number {
  return v < 0 ? 0 : v > 1 ? 1 : v;
}
