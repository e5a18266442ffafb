/** A bar between two parts that changes their width, by pointer and by keys. */

import type { Signal } from "@preact/signals";

interface Props {
  label: string;
  width: Signal<number>;
  /** 1: the part to the left is resized; -1: the one to the right. */
  sign: 1 | -1;
  least: number;
  most: number;
}

export function Splitter({ label, width, sign, least, most }: Props) {
  const set = (next: number) => {
    width.value = Math.max(least, Math.min(most, Math.round(next)));
  };
  const onDown = (e: PointerEvent) => {
    const bar = e.currentTarget as HTMLElement;
    const [x, before] = [e.clientX, width.peek()];
    bar.setPointerCapture(e.pointerId);
    const onMove = (m: PointerEvent) => set(before + sign * (m.clientX - x));
    bar.addEventListener("pointermove", onMove);
    bar.addEventListener(
      "lostpointercapture",
      () => bar.removeEventListener("pointermove", onMove),
      {
        once: true,
      },
    );
  };
  const onKeyDown = (e: KeyboardEvent) => {
    const by = { ArrowLeft: -24, ArrowRight: 24 }[e.key];
    if (by === undefined) return;
    e.preventDefault();
    set(width.peek() + sign * by);
  };
  return (
    <div
      class="splitter"
      role="separator"
      tabIndex={0}
      aria-label={label}
      aria-orientation="vertical"
      aria-valuenow={width.value}
      aria-valuemin={least}
      aria-valuemax={most}
      onPointerDown={onDown}
      onKeyDown={onKeyDown}
    />
  );
}
