/** Pins: which modules have a panel, each with a letter that it keeps. */

import type { Pin } from "../core/url";
import type { App } from "./app";

export const MOST_PINS = 8;

/** What can be pinned. `node` where the graph knows it, else `module`. */
export interface Pinnable {
  node?: string | null;
  module?: string;
}

export function samePin(pin: Pinnable, other: Pinnable): boolean {
  return pin.node ? pin.node === other.node : !other.node && pin.module === other.module;
}

export function letterOf(pins: readonly Pin[], thing: Pinnable): string | null {
  return pins.find((p) => samePin(p, asPin("", thing)))?.letter ?? null;
}

/** The first letter that is free; null when there are enough. */
export function freeLetter(pins: readonly Pin[]): string | null {
  for (let i = 0; i < MOST_PINS; i++) {
    const letter = String.fromCharCode(65 + i);
    if (!pins.some((p) => p.letter === letter)) return letter;
  }
  return null;
}

/** Adds a panel, at `place` if given. Something that has one is moved there. */
export function pin(app: App, thing: Pinnable, place?: number): void {
  const { pins } = app.state.peek();
  const known = letterOf(pins, thing);
  const letter = known ?? freeLetter(pins);
  if (letter === null) {
    app.say(`${MOST_PINS} panels are open. Close one to pin another.`);
    return;
  }
  if (known && place === undefined) return;
  const others = pins.filter((p) => p.letter !== letter);
  const at = Math.min(place ?? others.length, others.length);
  app.set({ pins: others.toSpliced(at, 0, asPin(letter, thing)), hasDeck: true }, true);
}

export function unpin(app: App, letter: string): void {
  app.set({ pins: app.state.peek().pins.filter((p) => p.letter !== letter) }, true);
}

/** Moves a panel one place on (1) or back (-1). */
export function movePin(app: App, letter: string, by: number): void {
  const { pins } = app.state.peek();
  const from = pins.findIndex((p) => p.letter === letter);
  const to = Math.max(0, Math.min(pins.length - 1, from + by));
  if (from < 0 || to === from) return;
  app.set({ pins: pins.toSpliced(from, 1).toSpliced(to, 0, pins[from]) }, true);
}

export function togglePin(app: App, thing: Pinnable): void {
  const letter = letterOf(app.state.peek().pins, thing);
  if (letter) unpin(app, letter);
  else pin(app, thing);
}

function asPin(letter: string, { node, module }: Pinnable): Pin {
  return node ? { letter, node } : { letter, module: module ?? "." };
}
