/** The state of the page as the text after `#`, and back. Only what differs from the default is there. */

import type { Aggregate, Measure, Norm, RangeMode, ScaleChoice } from "../api.gen";
import { PAGES, type Page } from "./destinations";
import type { MapName } from "./lut";

/** A pinned thing: a call by its node, or a module where the graph knows no call of it. */
export interface Pin {
  letter: string;
  node?: string;
  module?: string;
}

export interface PageState {
  page: Page;
  runs: readonly string[];
  /** The window on the time axis; `last` is null when it is open to the right and grows. */
  x: { first: number; last: number | null } | null;
  /** The cursor; null for the latest step. */
  step: number | null;
  kind: string | null;
  stat: string | null;
  metric: string | null;
  phase: string | null;
  rank: number | null;
  /** The clock of the time axis: null for steps, `time`, or a scalar. */
  axis: string | null;
  /** The scalar in the timeline. */
  line: string | null;
  isLineLog: boolean;
  /** The value axis of kymographs. */
  scale: ScaleChoice;
  range: Exclude<RangeMode, "fixed">;
  /** Colours of heatmaps. */
  colour: "auto" | "linear" | "log";
  map: MapName;
  norm: Norm;
  aggregate: Aggregate;
  under: string | null;
  order: "module" | "max" | "change";
  /** Of several runs the one that the first is compared with, and how. */
  versus: string | null;
  measure: Measure;
  /** Modules that are matched by hand: `path=path`. */
  names: readonly string[];
  areRowsFolded: boolean;
  /** Layers as a table in place of the heatmap. */
  isTable: boolean;
  /** The site in the drawer. */
  site: string | null;
  formats: readonly string[];
  shift: number;
  /** The level of the graph, the box that is chosen on it, and how it is drawn. */
  at: string;
  on: string | null;
  isFolded: boolean;
  unfold: readonly string[];
  direction: "TB" | "LR";
  pins: readonly Pin[];
  /** Sections of panels that are closed, by kind. */
  closed: readonly string[];
  isFollowing: boolean;
  theme: "auto" | "light" | "dark";
  crosshair: "line" | "values" | "off";
  hasTree: boolean;
  hasDeck: boolean;
  /** What a newer page may have put there. */
  unknown: readonly (readonly [string, string])[];
}

export const DEFAULTS: PageState = {
  page: "overview",
  runs: [],
  x: null,
  step: null,
  kind: null,
  stat: null,
  metric: null,
  phase: null,
  rank: null,
  axis: null,
  line: null,
  isLineLog: false,
  scale: "auto",
  range: "robust",
  colour: "auto",
  map: "viridis",
  norm: "none",
  aggregate: "max_abs",
  under: null,
  order: "module",
  versus: null,
  measure: "ratio",
  names: [],
  areRowsFolded: false,
  isTable: false,
  site: null,
  formats: ["float8_e4m3fn", "float8_e5m2"],
  shift: 0,
  at: ".",
  on: null,
  isFolded: true,
  unfold: [],
  direction: "TB",
  pins: [],
  closed: [],
  isFollowing: true,
  theme: "auto",
  crosshair: "values",
  hasTree: true,
  hasDeck: true,
  unknown: [],
};

interface Field {
  key: string;
  write(state: PageState): string | null;
  read(text: string): Partial<PageState> | null;
}

type NameOf<T> = { [K in keyof PageState]: PageState[K] extends T ? K : never }[keyof PageState];

function text(key: string, name: NameOf<string | null>): Field {
  return {
    key,
    write: (s) => (s[name] === DEFAULTS[name] ? null : (s[name] as string | null)),
    read: (t) => (t ? { [name]: t } : null),
  };
}

function choice(key: string, name: NameOf<string>, allowed: readonly string[]): Field {
  return { ...text(key, name), read: (t) => (allowed.includes(t) ? { [name]: t } : null) };
}

function flag(key: string, name: NameOf<boolean>): Field {
  return {
    key,
    write: (s) => (s[name] === DEFAULTS[name] ? null : s[name] ? "1" : "0"),
    read: (t) => (t === "0" || t === "1" ? { [name]: t === "1" } : null),
  };
}

function whole(key: string, name: NameOf<number | null>): Field {
  return {
    key,
    write: (s) => (s[name] === DEFAULTS[name] ? null : String(s[name])),
    read: (t) => (/^-?\d{1,15}$/.test(t) ? { [name]: Number(t) } : null),
  };
}

function list(key: string, name: "runs" | "unfold" | "formats" | "closed" | "names"): Field {
  const join = (items: readonly string[]) => items.join(",");
  return {
    key,
    write: (s) => (join(s[name]) === join(DEFAULTS[name]) ? null : join(s[name])),
    read: (t) => ({ [name]: t.split(",").filter(Boolean) }),
  };
}

const WINDOW: Field = {
  key: "x",
  write: ({ x }) => (x === null ? null : `${x.first}:${x.last ?? ""}`),
  read: (t) => {
    const found = /^(-?\d{1,15}):(-?\d{1,15})?$/.exec(t);
    if (!found) return null;
    const first = Number(found[1]);
    const last = found[2] === undefined ? null : Number(found[2]);
    return last !== null && last < first ? null : { x: { first, last } };
  },
};

const PINS: Field = {
  key: "pins",
  write: ({ pins }) =>
    pins.length ? pins.map((p) => `${p.letter}:${p.node ?? `=${p.module}`}`).join(",") : null,
  read: (t) => {
    const pins: Pin[] = [];
    for (const one of t.split(",")) {
      const found = /^([A-Z]):(=?)(.+)$/.exec(one);
      if (!found || pins.some((p) => p.letter === found[1])) continue;
      pins.push({ letter: found[1], [found[2] ? "module" : "node"]: found[3] });
    }
    return { pins };
  },
};

const FIELDS: readonly Field[] = [
  list("run", "runs"),
  WINDOW,
  whole("step", "step"),
  text("kind", "kind"),
  text("stat", "stat"),
  text("metric", "metric"),
  text("phase", "phase"),
  whole("rank", "rank"),
  text("axis", "axis"),
  text("line", "line"),
  flag("linelog", "isLineLog"),
  choice("scale", "scale", ["auto", "linear", "log", "asinh", "exponent"]),
  choice("range", "range", ["robust", "all"]),
  choice("colour", "colour", ["auto", "linear", "log"]),
  choice("map", "map", ["viridis", "cividis"]),
  choice("norm", "norm", ["none", "start", "z"]),
  choice("agg", "aggregate", ["max_abs", "max", "min", "mean", "last"]),
  choice("order", "order", ["module", "max", "change"]),
  text("vs", "versus"),
  choice("by", "measure", ["ratio", "distance"]),
  list("match", "names"),
  flag("rows", "areRowsFolded"),
  flag("table", "isTable"),
  text("under", "under"),
  text("site", "site"),
  list("fmt", "formats"),
  whole("k", "shift"),
  text("at", "at"),
  text("on", "on"),
  flag("fold", "isFolded"),
  list("unfold", "unfold"),
  choice("dir", "direction", ["TB", "LR"]),
  PINS,
  list("closed", "closed"),
  flag("live", "isFollowing"),
  choice("th", "theme", ["auto", "light", "dark"]),
  choice("hair", "crosshair", ["line", "values", "off"]),
  flag("tree", "hasTree"),
  flag("deck", "hasDeck"),
];

/** `#/layers?run=a&step=1200`, without what is as it always is. */
export function write(state: PageState): string {
  const parts: string[] = [];
  for (const field of FIELDS) {
    const value = field.write(state);
    if (value !== null) parts.push(`${field.key}=${encode(value)}`);
  }
  for (const [key, value] of state.unknown) parts.push(`${encode(key)}=${encode(value)}`);
  return `#/${state.page}${parts.length ? `?${parts.join("&")}` : ""}`;
}

/** The state in an address. What cannot be read has its default; what is not known is kept. */
export function read(hash: string): PageState {
  const [path, query = ""] = splitOnce(hash.replace(/^#?\/?/, ""), "?");
  const page = PAGES.find((p) => p === path);
  const state: PageState = { ...DEFAULTS };
  const unknown: [string, string][] = [];
  for (const part of query.split("&").filter(Boolean)) {
    const [key, value] = splitOnce(part, "=").map(decode);
    const field = FIELDS.find((f) => f.key === key);
    if (field) Object.assign(state, field.read(value) ?? {});
    else unknown.push([key, value]);
  }
  // Every page but the list is about a run.
  return { ...state, page: state.runs.length ? (page ?? DEFAULTS.page) : "runs", unknown };
}

/** Readable where it may be: dots, commas, colons and slashes stay. */
function encode(value: string): string {
  return encodeURIComponent(value).replace(/%(2C|3A|2F|3D|7E|23)/g, (_, code: string) =>
    code === "23" ? "%23" : String.fromCharCode(Number.parseInt(code, 16)),
  );
}

function decode(value: string): string {
  try {
    return decodeURIComponent(value);
  } catch {
    return value;
  }
}

function splitOnce(value: string, by: string): [string, string] {
  const at = value.indexOf(by);
  return at < 0 ? [value, ""] : [value.slice(0, at), value.slice(at + by.length)];
}

/** Whether panels are shown: without pins only the graph has something to put there. */
export function hasPanels({ hasDeck, pins, page }: PageState): boolean {
  return hasDeck && (pins.length > 0 || page === "explore");
}
