/** Keys to commands, and what each command does. */

import { PAGES, type Page } from "../core/destinations";
import { type Command, commandOf, KIND_KEYS } from "../core/keys";
import { read } from "../core/url";
import { type App, put } from "./app";
import { moveCursor, moveToEvent, pan, setCursor, zoom } from "./time";

/** Fields in which people write: their keys are their own. */
function isWriting(root: ShadowRoot): boolean {
  const at = root.activeElement;
  if (at instanceof HTMLInputElement) return !["range", "checkbox", "button"].includes(at.type);
  return at instanceof HTMLTextAreaElement || at instanceof HTMLSelectElement;
}

const OF_FOCUS = new Set([
  "enter",
  " ",
  "arrowup",
  "arrowdown",
  "arrowleft",
  "arrowright",
  "home",
  "end",
]);

export function listenToKeys(app: App, on: Document | HTMLElement, root: ShadowRoot): () => void {
  let before: string | null = null;
  let beforeMs = 0;
  const onKey = (event: Event) => {
    const press = event as KeyboardEvent;
    if (press.defaultPrevented || press.isComposing) return;
    const last = Date.now() - beforeMs < 1200 ? before : null;
    before = press.key.toLowerCase();
    beforeMs = Date.now();
    const command = commandOf(press, last);
    if (!command) return;
    const isEscape = command === "clear" || command === "palette";
    if (isWriting(root) && !isEscape) return;
    if (app.dialog.peek() !== null && !isEscape) return;
    const at = root.activeElement;
    const isControl =
      at instanceof HTMLButtonElement ||
      at instanceof HTMLAnchorElement ||
      at instanceof HTMLInputElement;
    if (isControl && OF_FOCUS.has(press.key.toLowerCase())) return;
    before = null;
    if (perform(app, command)) press.preventDefault();
  };
  on.addEventListener("keydown", onKey);
  return () => on.removeEventListener("keydown", onKey);
}

/** Does what a command says. False if there was nothing to do. */
export function perform(app: App, command: Command): boolean {
  const own = app.handlers.get(command);
  if (own) {
    own();
    return true;
  }
  const general = GENERAL[command];
  if (!general) return false;
  general(app);
  return true;
}

const SCALES = ["auto", "linear", "log", "asinh", "exponent"] as const;
const HAIRS = ["values", "line", "off"] as const;

function next<T>(list: readonly T[], now: T, by = 1): T {
  return list[(list.indexOf(now) + by + list.length) % list.length];
}

function chooseKind(app: App, key: number): void {
  const kinds = app.about.peek()?.kinds.map((k) => k.kind) ?? [];
  const kind = KIND_KEYS[key - 1].find((k) => kinds.includes(k));
  if (kind) app.set({ kind, metric: null });
  else app.say(`${KIND_KEYS[key - 1][0].replace("_", " ")} was not recorded in this run.`);
}

function moveStat(app: App, by: number): void {
  const about = app.about.peek();
  if (about)
    app.set({
      stat: next(
        about.statistics.map((s) => s.name),
        app.state.peek().stat ?? about.stat,
        by,
      ),
      metric: null,
    });
}

function go(app: App, page: Page): void {
  if (page !== "runs" && app.run.peek() === null) app.say("Choose a run first.");
  else app.set({ page }, true);
}

const GENERAL: { [C in Command]?: (app: App) => void } = {
  palette: (app) => put(app.dialog, "palette"),
  search: (app) => put(app.dialog, "search"),
  help: (app) => put(app.dialog, "help"),
  clear,
  ...Object.fromEntries(PAGES.map((page) => [`go:${page}`, (app: App) => go(app, page)])),
  stepBack: (app) => moveCursor(app, -1),
  stepOn: (app) => moveCursor(app, 1),
  stepBack10: (app) => moveCursor(app, -10),
  stepOn10: (app) => moveCursor(app, 10),
  stepFirst: (app) => setCursor(app, app.wholeDomain.peek()?.from ?? null),
  stepLast: (app) => setCursor(app, null),
  zoomIn: (app) => zoom(app, 0.7, cursorPlace(app)),
  zoomOut: (app) => zoom(app, 1 / 0.7, cursorPlace(app)),
  panLeft: (app) => pan(app, -0.25),
  panRight: (app) => pan(app, 0.25),
  resetWindow: (app) => app.set({ x: null }),
  follow: (app) => app.set({ isFollowing: !app.state.peek().isFollowing }),
  eventBack: (app) => moveToEvent(app, -1),
  eventOn: (app) => moveToEvent(app, 1),
  kind1: (app) => chooseKind(app, 1),
  kind2: (app) => chooseKind(app, 2),
  kind3: (app) => chooseKind(app, 3),
  kind4: (app) => chooseKind(app, 4),
  kind5: (app) => chooseKind(app, 5),
  kind6: (app) => chooseKind(app, 6),
  statOn: (app) => moveStat(app, 1),
  statBack: (app) => moveStat(app, -1),
  scale: (app) => app.set({ scale: next(SCALES, app.state.peek().scale) }),
  crosshair: (app) => {
    const crosshair = next(HAIRS, app.state.peek().crosshair);
    app.set({ crosshair });
    app.say(`Crosshair: ${crosshair}`);
  },
  theme: (app) => app.set({ theme: app.theme.peek().isDark ? "light" : "dark" }),
  map: (app) => app.set({ map: app.state.peek().map === "viridis" ? "cividis" : "viridis" }),
  tree: (app) => app.set({ hasTree: !app.state.peek().hasTree }),
  deck: (app) => app.set({ hasDeck: !app.state.peek().hasDeck }),
  fold: (app) => app.set({ isFolded: !app.state.peek().isFolded, unfold: [] }),
  direction: (app) => app.set({ direction: app.state.peek().direction === "TB" ? "LR" : "TB" }),
  copyLink: (app) => {
    navigator.clipboard?.writeText(app.link()).then(
      () => app.say("Link copied."),
      () => app.say("The link could not be copied. It is in the address bar."),
    );
  },
};

/** Esc: closes what is open, the innermost first. */
function clear(app: App): void {
  if (app.dialog.peek() !== null) app.dialog.value = null;
  else if (app.toast.peek()) app.toast.value = "";
  else if (app.state.peek().site !== null) app.set({ site: null });
  else if (app.state.peek().on !== null) app.set({ on: null });
  else if (app.state.peek().under !== null) app.set({ under: null });
  else app.set({ step: read("").step });
}

/** Where the cursor is in the window; the middle if it is outside. */
function cursorPlace(app: App): number {
  const [domain, step] = [app.domain.peek(), app.hover.peek() ?? app.cursor.peek()];
  if (!domain || step === null) return 0.5;
  const place = (step - domain.from) / (domain.to - domain.from);
  return place >= 0 && place <= 1 ? place : 0.5;
}
