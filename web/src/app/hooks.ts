/** Hooks: the app, questions that stay asked, the size of an element, whether it is on screen. */

import {
  type ReadonlySignal,
  type Signal,
  useComputed,
  useSignal,
  useSignalEffect,
} from "@preact/signals";
import { createContext, type RefObject } from "preact";
import { useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Heat, Kymograph, Lines, Routes } from "../api.gen";
import type { Command } from "../core/keys";
import type { View } from "../data/client";
import { mergeHeat, mergeKymograph, mergeLines } from "../data/merge";
import { Query, type Result } from "../data/query";
import { encode } from "../data/question";
import type { App } from "./app";

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  return useContext(AppContext)!;
}

interface Delta<T> {
  cursor: (data: T) => string;
  merge: (old: T, delta: T) => T;
}

const DELTAS: { [V in View]?: Delta<Routes[V]["answer"]> } = {
  heat: { cursor: (d: Heat) => d.columns.cursor, merge: mergeHeat },
  kymograph: { cursor: (d: Kymograph) => d.columns.cursor, merge: mergeKymograph },
  lines: { cursor: (d: Lines) => d.cursor, merge: mergeLines },
};

interface Wish {
  /** False for what is not on screen: it is neither asked nor kept up to date. */
  isActive?: boolean;
  /** For what does not change while a run grows. */
  isFixed?: boolean;
  /** Least time between two updates. */
  everyMs?: number;
}

/** Asks a question and keeps asking what came since, as long as the component is there. */
export function useQuery<V extends View>(
  view: V,
  question: Routes[V]["question"] | null,
  { isActive = true, isFixed = false, everyMs = 0 }: Wish = {},
): ReadonlySignal<Result<Routes[V]["answer"]>> {
  const app = useApp();
  const query = useMemo(() => {
    const delta = DELTAS[view] as Delta<Routes[V]["answer"]> | undefined;
    return new Query(app.client, app.ready, view, delta?.cursor ?? null, delta?.merge ?? null);
  }, []);
  const run =
    question && "run" in question && typeof question.run === "string" ? question.run : null;
  const other =
    question && "other" in question && typeof question.other === "string" ? question.other : null;
  const active = useSignal(isActive);
  const runSignal = useSignal(run);
  const otherSignal = useSignal(other);
  active.value = isActive;
  runSignal.value = run;
  otherSignal.value = other;
  useLayoutEffect(() => {
    if (isActive || question === null) query.ask(question);
  }, [question === null ? "" : encode(question), isActive]);
  useEffect(() => () => query.close(), []);
  useUpdates(app, query, active, [runSignal, otherSignal], isFixed, everyMs);
  return query.result;
}

function useUpdates<V extends View>(
  app: App,
  query: Query<V>,
  active: Signal<boolean>,
  [run, other]: readonly Signal<string | null>[],
  isFixed: boolean,
  everyMs: number,
): void {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const lastMs = useRef(0);
  useSignalEffect(() => {
    const isOpen = app.live.connection.value.is === "open";
    const state = run.value === null ? undefined : app.live.states.value.get(run.value);
    const beside = other.value === null ? undefined : app.live.states.value.get(other.value);
    const mayUpdate =
      active.value && isOpen && (app.state.value.isFollowing || state?.status !== "live");
    const { error } = query.result.peek();
    if (!mayUpdate || !(state || error) || (isFixed && !error)) return;
    clearTimeout(timer.current);
    const go = () => {
      lastMs.current = Date.now();
      if (error || beside?.status === "live") query.refresh();
      else query.refresh(state?.version);
    };
    const waitMs = lastMs.current + everyMs - Date.now();
    if (waitMs <= 0) go();
    else timer.current = setTimeout(go, waitMs);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
}

export interface Size {
  width: number;
  height: number;
}

/** The size of an element, in CSS pixels, whole numbers. */
export function useSize(ref: RefObject<Element | null>): Size {
  const [size, setSize] = useState<Size>({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const element = ref.current!;
    const measure = () => {
      const { width, height } = element.getBoundingClientRect();
      const next = { width: Math.floor(width), height: Math.floor(height) };
      setSize((old) => (old.width === next.width && old.height === next.height ? old : next));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return size;
}

/** Whether an element is on screen, or nearly. */
export function useOnScreen(ref: RefObject<Element | null>): boolean {
  const app = useApp();
  const [isOn, setOn] = useState(false);
  useLayoutEffect(() => {
    let isKnown = false;
    const know = () => {
      if (!isKnown) app.ready.end();
      isKnown = true;
    };
    app.ready.begin(); // until it is known, so is not what this will ask
    const observer = new IntersectionObserver(
      (entries) => {
        setOn(entries[entries.length - 1].isIntersecting);
        know();
      },
      { rootMargin: "120px" },
    );
    observer.observe(ref.current!);
    return () => {
      observer.disconnect();
      know();
    };
  }, []);
  return isOn;
}

/** A value that follows another one once it has stood still for a while. */
export function useSettled<T>(value: T, ms: number): T {
  const app = useApp();
  const [settled, setSettled] = useState(value);
  const key = JSON.stringify(value);
  useLayoutEffect(() => {
    if (key === JSON.stringify(settled)) return;
    app.ready.begin(); // what is shown is not yet what was asked for
    const timer = setTimeout(() => setSettled(value), ms);
    return () => {
      clearTimeout(timer);
      app.ready.end();
    };
  }, [key, JSON.stringify(settled)]);
  return settled;
}

/** A part of the page's state as a signal of its own: those who read it are called only for it. */
export function usePart<T>(of: (app: App) => T): ReadonlySignal<T> {
  const app = useApp();
  return useComputed(() => of(app));
}

/** What a command does while the component is there. */
export function useCommand(command: Command, perform: () => void, isOn = true): void {
  const app = useApp();
  const latest = useRef(perform);
  latest.current = perform;
  useEffect(() => {
    if (!isOn) return;
    const call = () => latest.current();
    app.handlers.set(command, call);
    return () => {
      if (app.handlers.get(command) === call) app.handlers.delete(command);
    };
  }, [command, isOn]);
}
