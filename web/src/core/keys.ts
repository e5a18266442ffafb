/** Keys: one table for what they do, for the sheet behind `?` and for the palette. */

import { DESTINATIONS, type Page } from "./destinations";

export type Command =
  | "palette"
  | "search"
  | "help"
  | "clear"
  | `go:${Page}`
  | "stepBack"
  | "stepOn"
  | "stepBack10"
  | "stepOn10"
  | "stepFirst"
  | "stepLast"
  | "zoomIn"
  | "zoomOut"
  | "panLeft"
  | "panRight"
  | "resetWindow"
  | "follow"
  | "eventBack"
  | "eventOn"
  | "rowUp"
  | "rowDown"
  | "open"
  | "up"
  | "fit"
  | "graphIn"
  | "graphOut"
  | "fold"
  | "direction"
  | "pin"
  | "unpin"
  | "pinAll"
  | "kind1"
  | "kind2"
  | "kind3"
  | "kind4"
  | "kind5"
  | "kind6"
  | "statOn"
  | "statBack"
  | "scale"
  | "crosshair"
  | "theme"
  | "map"
  | "tree"
  | "deck"
  | "copyLink";

export interface Binding {
  command: Command;
  title: string;
  group: string;
  /** As shown to people; alternatives are apart by a comma. Empty: only in the palette. */
  keys: string;
  match: readonly Stroke[];
}

interface Stroke {
  /** `event.key`, compared without case. */
  key?: string;
  /** `event.code`: the physical key, the same on every layout. */
  code?: string;
  shift?: boolean;
  mod?: boolean;
  /** The key pressed just before. */
  after?: string;
}

const bind = (
  command: Command,
  group: string,
  title: string,
  keys: string,
  ...match: Stroke[]
): Binding => ({ command, group, title, keys, match });

const go = (command: Command, title: string, letter: string) =>
  bind(command, "Pages", title, `G ${letter.toUpperCase()}`, { key: letter, after: "g" });

export const BINDINGS: readonly Binding[] = [
  ...DESTINATIONS.map((d) => go(`go:${d.page}`, `Go to ${d.label}`, d.key)),
  go("go:runs", "Go to Runs", "r"),
  bind("palette", "Pages", "Search everything", "⌘K / Ctrl K", { key: "k", mod: true }),
  bind("search", "Pages", "Search modules", "/", { key: "/" }),
  bind("help", "Pages", "Show the keys", "?", { key: "?" }),
  bind("copyLink", "Pages", "Copy a link to this view", ""),
  bind("clear", "Pages", "Close, clear the selection", "Esc", { key: "escape" }),

  bind("stepBack", "Time", "Cursor one recorded step back", "←", {
    key: "arrowleft",
    shift: false,
  }),
  bind("stepOn", "Time", "Cursor one recorded step on", "→", { key: "arrowright", shift: false }),
  bind("stepBack10", "Time", "Ten steps back", "⇧ ←", { key: "arrowleft", shift: true }),
  bind("stepOn10", "Time", "Ten steps on", "⇧ →", { key: "arrowright", shift: true }),
  bind("stepFirst", "Time", "Cursor to the first step", "Home", { key: "home" }),
  bind("stepLast", "Time", "Cursor to the latest step", "End", { key: "end" }),
  bind("zoomIn", "Time", "Zoom in", "W", { code: "KeyW" }),
  bind("zoomOut", "Time", "Zoom out", "S", { code: "KeyS" }),
  bind("panLeft", "Time", "Move the window left", "A", { code: "KeyA" }),
  bind("panRight", "Time", "Move the window right", "D", { code: "KeyD" }),
  bind("resetWindow", "Time", "Show all steps", "0", { key: "0" }),
  bind("follow", "Time", "Follow the run, or pause", "Space", { key: " " }),
  bind("eventBack", "Time", "Previous event (non-finite, notice)", ",", { key: "," }),
  bind("eventOn", "Time", "Next event", ".", { key: "." }),

  bind("rowUp", "Modules", "Previous row or module", "↑", { key: "arrowup" }),
  bind("rowDown", "Modules", "Next row or module", "↓", { key: "arrowdown" }),
  bind("open", "Modules", "Open the module or cell", "Enter", { key: "enter" }),
  bind("up", "Modules", "Up one level", "Backspace", { key: "backspace" }),
  bind("pin", "Modules", "Pin to a panel", "P", { key: "p", shift: false }),
  bind("pinAll", "Modules", "Pin all instances of ×N (at most eight panels)", "⇧ P", {
    key: "p",
    shift: true,
  }),
  bind("unpin", "Modules", "Unpin", "X", { key: "x" }),
  bind("fold", "Modules", "Fold or unfold repeats", "O", { key: "o" }),
  bind("fit", "Modules", "Fit the graph, or the selection", "F", { key: "f" }),
  bind("graphIn", "Modules", "Enlarge the graph", "+", { key: "+" }, { key: "=" }),
  bind("graphOut", "Modules", "Shrink the graph", "−", { key: "-" }),
  bind("direction", "Modules", "Graph from top or from left", ""),

  bind("kind1", "Numbers", "Inputs", "1", { key: "1" }),
  bind("kind2", "Numbers", "Outputs", "2", { key: "2" }),
  bind("kind3", "Numbers", "Parameters", "3", { key: "3" }),
  bind("kind4", "Numbers", "Gradients of inputs, or of parameters", "4", { key: "4" }),
  bind("kind5", "Numbers", "Gradients of outputs", "5", { key: "5" }),
  bind("kind6", "Numbers", "Updates", "6", { key: "6" }),
  bind("statOn", "Numbers", "Next statistic", "M", { key: "m", shift: false }),
  bind("statBack", "Numbers", "Previous statistic", "⇧ M", { key: "m", shift: true }),
  bind("scale", "Numbers", "Auto, linear, log, asinh, exponent", "L", { key: "l" }),

  bind("crosshair", "Page", "Crosshair: values, line, off", "C", { key: "c" }),
  bind("theme", "Page", "Light or dark", "T", { key: "t" }),
  bind("map", "Page", "Colours: viridis or cividis", ""),
  bind("tree", "Page", "Show or hide the module tree", "[", { key: "[" }),
  bind("deck", "Page", "Show or hide the panels", "]", { key: "]" }),
];

/** The parts of a keyboard event that matter here. */
export interface Press {
  key: string;
  code: string;
  shiftKey: boolean;
  ctrlKey: boolean;
  metaKey: boolean;
  altKey: boolean;
}

/** What a press means, given the key pressed just before (`g` waits for the name of a page). */
export function commandOf(press: Press, before: string | null): Command | null {
  if (press.altKey) return null;
  const mod = press.ctrlKey || press.metaKey;
  const fits = (s: Stroke) =>
    (s.mod ?? false) === mod &&
    (s.after ?? null) === (before === "g" && !mod ? "g" : null) &&
    (s.shift === undefined || s.shift === press.shiftKey) &&
    (s.key !== undefined ? press.key.toLowerCase() === s.key : press.code === s.code);
  const inSequence = BINDINGS.find((b) => b.match.some(fits));
  if (inSequence || before !== "g") return inSequence?.command ?? null;
  return commandOf(press, null);
}

/** Kinds behind the keys 1 to 6; the first one that the run has is meant. */
export const KIND_KEYS: readonly (readonly string[])[] = [
  ["input"],
  ["output"],
  ["param"],
  ["input_grad", "param_grad"],
  ["output_grad"],
  ["update"],
];
