/** Moving the window and the cursor on the time axis. */

import { walk } from "../core/steps";
import type { App } from "./app";

/** Shows the steps between two places on the axis; all if that is everything. */
export function showWindow(app: App, from: number, to: number): void {
  const whole = app.wholeDomain.peek();
  if (!whole) return;
  const least = 2 * whole.cadence;
  let [a, b] = [Math.max(whole.from, from), Math.min(whole.to, to)];
  if (b - a < least) {
    const middle = (a + b) / 2;
    a = Math.max(whole.from, middle - least / 2);
    b = Math.min(whole.to, a + least);
  }
  const first = Math.round(a);
  const last = Math.round(b - whole.cadence);
  if (first <= whole.from && b >= whole.to) app.set({ x: null });
  else {
    const isOpen = b >= whole.to && app.runStatus.peek() === "live";
    app.set({ x: { first, last: isOpen ? null : Math.max(first, last) } });
  }
}

/** Zooms by a factor (below 1: in) around a place between 0 and 1. */
export function zoom(app: App, factor: number, around: number): void {
  const domain = app.domain.peek();
  if (!domain) return;
  const width = domain.to - domain.from;
  const centre = domain.from + around * width;
  showWindow(app, centre - (centre - domain.from) * factor, centre + (domain.to - centre) * factor);
}

/** Moves the window by a part of its width, and not beyond the run. */
export function pan(app: App, part: number): void {
  const [domain, whole] = [app.domain.peek(), app.wholeDomain.peek()];
  if (!domain || !whole || !app.state.peek().x) return;
  const width = domain.to - domain.from;
  const from = Math.max(whole.from, Math.min(whole.to - width, domain.from + part * width));
  showWindow(app, from, from + width);
}

/** Moves the cursor by recorded steps. */
export function moveCursor(app: App, by: number): void {
  const whole = app.wholeDomain.peek();
  const at = app.cursor.peek();
  if (!whole || at === null) return;
  const recorded = walk(app.about.peek()?.recorded ?? [], at, by);
  if (recorded !== null) {
    setCursor(app, recorded);
    return;
  }
  const last = whole.to - whole.cadence;
  const n = Math.round((at - whole.from) / whole.cadence) + by;
  const step = Math.max(whole.from, Math.min(last, whole.from + n * whole.cadence));
  setCursor(app, step);
}

/** Puts the cursor on a step; on the latest one it stays the latest while the run grows. */
export function setCursor(app: App, step: number | null): void {
  const whole = app.wholeDomain.peek();
  const isLatest = whole !== null && step !== null && step >= whole.to - whole.cadence;
  app.set({ step: isLatest ? null : step });
}

export function moveToEvent(app: App, direction: 1 | -1): void {
  const at = app.cursor.peek();
  if (at === null) return;
  const events = [...app.marks.peek()].sort((a, b) => a.step - b.step);
  const next =
    direction > 0 ? events.find((e) => e.step > at) : events.findLast((e) => e.step < at);
  if (!next) app.say(direction > 0 ? "No later event." : "No earlier event.");
  else {
    setCursor(app, next.step);
    app.say(`${next.label} at step ${next.step}`);
  }
}
