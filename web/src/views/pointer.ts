/** The pointer on a time axis: hover, click for the cursor, drag for a window, wheel to zoom. */

import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useApp } from "../app/hooks";
import { setCursor, showWindow, zoom } from "../app/time";
import type { Domain } from "../core/columns";

export interface PointerWishes {
  /** The step meant by a place between 0 and 1; null if there is none. */
  snap: (place: number) => number | null;
  /** The axis of this plot; the window that all share if not given. */
  domain?: () => Domain | null;
  /** Called with every move (y between 0 and 1 from the top), null when the pointer left. */
  onMove?: (at: { x: number; y: number; clientX: number; clientY: number } | null) => void;
  onClick?: (at: { x: number; y: number; step: number | null; isShift: boolean }) => void;
  /** True where nothing scrolls: the wheel zooms without a modifier. */
  isWheelFree?: boolean;
  /** The element that shows the stretch being dragged over. */
  brush?: RefObject<HTMLElement | null>;
}

const DRAG_PX = 4;

export function useTimePointer(ref: RefObject<HTMLElement | null>, wishes: PointerWishes): void {
  const app = useApp();
  const latest = useRef(wishes);
  latest.current = wishes;
  useEffect(() => {
    const element = ref.current!;
    const ended = new AbortController();
    let start: { x: number; id: number } | null = null;
    let isDragging = false;
    const place = (e: PointerEvent | WheelEvent | MouseEvent) => {
      const box = element.getBoundingClientRect();
      return {
        x: clamp((e.clientX - box.left) / box.width),
        y: clamp((e.clientY - box.top) / box.height),
        clientX: e.clientX,
        clientY: e.clientY,
      };
    };
    const domain = () => (latest.current.domain ? latest.current.domain() : app.domain.peek());
    const drawBrush = (from: number, to: number) => {
      const brush = latest.current.brush?.current;
      if (!brush) return;
      brush.style.display = from === to ? "none" : "block";
      brush.style.left = `${100 * Math.min(from, to)}%`;
      brush.style.width = `${100 * Math.abs(to - from)}%`;
    };
    const on = <K extends keyof HTMLElementEventMap>(
      type: K,
      listen: (event: HTMLElementEventMap[K]) => void,
    ) => element.addEventListener(type, listen, { signal: ended.signal, passive: false });

    on("pointermove", (e) => {
      const at = place(e);
      app.hover.value = latest.current.snap(at.x);
      latest.current.onMove?.(at);
      if (!start) return;
      if (!isDragging && Math.abs(e.clientX - start.x) > DRAG_PX) {
        isDragging = true;
        element.setPointerCapture(start.id);
      }
      if (isDragging) drawBrush(startPlace(), at.x);
    });
    const startPlace = () => {
      const box = element.getBoundingClientRect();
      return clamp((start!.x - box.left) / box.width);
    };
    on("pointerleave", () => {
      if (isDragging) return;
      app.hover.value = null;
      latest.current.onMove?.(null);
    });
    on("pointerdown", (e) => {
      if (e.button === 0) start = { x: e.clientX, id: e.pointerId };
    });
    const finish = (e: PointerEvent, isDone: boolean) => {
      const axis = domain();
      if (start && isDone && axis) {
        const at = place(e);
        const width = axis.to - axis.from;
        if (isDragging) {
          const [a, b] = [startPlace(), at.x].sort((p, q) => p - q);
          showWindow(app, axis.from + a * width, axis.from + b * width);
        } else {
          const step = latest.current.snap(at.x);
          if (step !== null) setCursor(app, step);
          latest.current.onClick?.({ x: at.x, y: at.y, step, isShift: e.shiftKey });
        }
      }
      start = null;
      isDragging = false;
      drawBrush(0, 0);
    };
    on("pointerup", (e) => finish(e, true));
    on("pointercancel", (e) => finish(e, false));
    on("dblclick", () => app.set({ x: null }));
    on("wheel", (e) => {
      const isWanted = e.ctrlKey || e.metaKey || (latest.current.isWheelFree && !e.shiftKey);
      if (!isWanted || e.deltaY === 0) return;
      e.preventDefault();
      zoom(app, Math.exp(clampTo(e.deltaY, 60) * 0.006), place(e).x);
    });
    return () => ended.abort();
  }, []);
}

function clamp(v: number): number {
  return v < 0 ? 0 : v > 1 ? 1 : v;
}

function clampTo(v: number, most: number): number {
  return Math.max(-most, Math.min(most, v));
}
