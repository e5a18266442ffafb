/** The colours of the page in light and dark: one table for styles and for what is drawn. */

export interface Tokens {
  ground: string;
  surface: string;
  raised: string;
  hover: string;
  border: string;
  edge: string;
  text: string;
  text2: string;
  text3: string;
  accent: string;
  accentInk: string;
  accentSoft: string;
  good: string;
  warn: string;
  warnSoft: string;
  bad: string;
  badSoft: string;
  signal: string;
  band: string;
  cursor: string;
  halo: string;
  dots: string;
  nonfinite: string;
  hatch: string;
  zeros: string;
  shadow: string;
}

export const LIGHT: Tokens = {
  ground: "#f4f5f7",
  surface: "#ffffff",
  raised: "#f7f8fa",
  hover: "#eceff3",
  border: "#dfe3e8",
  edge: "#7b8594",
  text: "#171b22",
  text2: "#4b5563",
  text3: "#626c7a",
  accent: "#2952d9",
  accentInk: "#ffffff",
  accentSoft: "#e4eafd",
  good: "#16794c",
  warn: "#8a5a00",
  warnSoft: "#fdf1d6",
  bad: "#b3164f",
  badSoft: "#fde4ee",
  signal: "#2952d9",
  band: "#c3d0f7",
  cursor: "#171b22",
  halo: "#ffffff",
  dots: "#d5dae1",
  nonfinite: "#ff00c8",
  hatch: "#5c0048",
  zeros: "#4b5563",
  shadow: "#10182826",
};

export const DARK: Tokens = {
  ground: "#0d1014",
  surface: "#14181e",
  raised: "#1a1f27",
  hover: "#232a34",
  border: "#2a313b",
  edge: "#717d8e",
  text: "#e8ebf0",
  text2: "#aeb7c4",
  text3: "#909bab",
  accent: "#8fabff",
  accentInk: "#0b1020",
  accentSoft: "#1d2a4d",
  good: "#5cc690",
  warn: "#e3b04b",
  warnSoft: "#35290f",
  bad: "#ff7eb0",
  badSoft: "#3d1526",
  signal: "#8fabff",
  band: "#2c3a66",
  cursor: "#ffffff",
  halo: "#0d1014",
  dots: "#2b323d",
  nonfinite: "#ff00c8",
  hatch: "#ffffff",
  zeros: "#aeb7c4",
  shadow: "#00000080",
};

/** Colours of pins A, B, C …: apart for every kind of colour vision, and each has its letter. */
export const PIN_LIGHT = [
  "#0072b2",
  "#c65102",
  "#008060",
  "#a8437f",
  "#8a6d00",
  "#3b7fb8",
  "#6b4fbb",
  "#5f6773",
];
export const PIN_DARK = [
  "#56b4e9",
  "#ff9448",
  "#2fcfa0",
  "#e69ac8",
  "#f0e442",
  "#8ccbf5",
  "#b9a3ff",
  "#b9c2ce",
];

/** Runs A, B, … in the timeline: colour and dash. */
export const DASHES: readonly (readonly number[])[] = [
  [],
  [6, 3],
  [2, 3],
  [8, 3, 2, 3],
  [12, 4],
  [4, 4],
  [1, 2],
  [10, 2, 2, 2, 2, 2],
];

export function pinColour(letter: string, isDark: boolean): string {
  const list = isDark ? PIN_DARK : PIN_LIGHT;
  return list[(letter.charCodeAt(0) - 65 + 26 * list.length) % list.length];
}

/** `textSoft` to `--text-soft`. */
export function cssName(token: string): string {
  return `--${token.replace(/[A-Z0-9]/g, (c) => `-${c.toLowerCase()}`)}`;
}
