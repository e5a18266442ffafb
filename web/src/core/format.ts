/** Numbers and words for people: three significant digits, no surprise units. */

import type { NumberFormat } from "../api.gen";

const MINUS = "\u2212";
const THIN = "\u202f";
export const NOTHING = "–";

/** Three significant digits: 0.0312 → 0.0312, 31234 → 3.12e4, NaN → NaN, nothing → – */
export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return NOTHING;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  if (value === 0) return "0";
  const size = Math.abs(value);
  const sign = value < 0 ? MINUS : "";
  if (size >= 0.001 && size < 9999.5) {
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return sign + trimZeros(size.toFixed(Math.min(decimals, 8)));
  }
  const [mantissa, power] = size.toExponential(digits - 1).split("e");
  return `${sign}${trimZeros(mantissa)}e${Number(power) < 0 ? MINUS : ""}${Math.abs(Number(power))}`;
}

/** A whole number, its digits in groups: 48 000. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const text = String(Math.abs(Math.round(value))).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
  return (value < 0 ? MINUS : "") + text;
}

/** A count that may be large: 1 230, 45.6k, 1.2M, 70.6B. */
export function amount(value: number): string {
  const size = Math.abs(value);
  for (const [unit, word] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e4, "k"],
  ] as const) {
    if (size >= unit)
      return `${trimZeros((value / (word === "k" ? 1e3 : unit)).toPrecision(3))}${word}`;
  }
  return count(value);
}

export function bytes(value: number | null): string {
  if (value === null) return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  let size = value;
  while (size >= 999.5 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  return `${at === 0 ? size : trimZeros(size.toPrecision(3))}${THIN}${units[at]}`;
}

/** A share between 0 and 1 as per cent; what is there but rounds to nothing says so. */
export function share(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return NOTHING;
  if (value === 0) return "0%";
  if (value < 0.0005) return "<0.1%";
  if (value === 1) return "100%";
  if (value > 0.9995) return ">99.9%";
  return `${trimZeros((100 * value).toPrecision(value < 0.01 ? 1 : value < 0.1 ? 2 : 3))}%`;
}

/** A statistic's number, as its definition says. */
export function value(of: number | null | undefined, format: NumberFormat): string {
  if (of === null || of === undefined || !Number.isFinite(of)) return number(of);
  if (format === "share") return of < 0 || of > 1 ? number(of) : share(of);
  return format === "count" && Number.isInteger(of) ? count(of) : number(of);
}

/** `[8, -1, 64]` → `8 × ? × 64`; a single number has no dimensions: `scalar`. */
export function shape(dims: readonly number[]): string {
  return dims.length === 0 ? "scalar" : dims.map((d) => (d < 0 ? "?" : String(d))).join("×");
}

/** How long ago, in the largest unit that says something. */
export function ago(thenMs: number | null, nowMs: number): string {
  if (thenMs === null) return NOTHING;
  const seconds = Math.max(0, Math.round((nowMs - thenMs) / 1000));
  if (seconds < 5) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** A column: `step 12`, or `steps 16–31` when it holds several. */
export function steps(first: number, last: number): string {
  return first === last ? `step ${count(first)}` : `steps ${count(first)}–${count(last)}`;
}

/** `output_grad` → `output grad`. */
export function kind(name: string): string {
  return name.replace(/_/g, " ");
}

/** A site for people: the path of its module, and which tensor of it. */
export function site(of: { name: string; label: string; kind: string }): string {
  const at = of.name.indexOf(`/${of.kind}/`);
  const path = at < 0 ? "" : of.name.slice(0, at);
  return `${path === "" || path === "." ? "(root)" : path} ${of.label}`;
}

/** The end of a path that fits in `limit` characters, cut at a dot. */
export function tail(path: string, parts = 2): string {
  const words = path.split(".");
  return words.length <= parts ? path : words.slice(-parts).join(".");
}

function trimZeros(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
