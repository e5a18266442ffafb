/** Dragging something to the panels: from the graph, from the tree, or a panel to another place. */

import type { App } from "../app/app";
import { type Pinnable, pin } from "../app/pins";

const START_PX = 6;

/**
 * Follows the pointer from a press on. A short press without a move is a click and nothing happens
 * here; `onStart` is called once the drag begins.
 */
export function followDrag(
  app: App,
  event: PointerEvent,
  label: string,
  thing: Pinnable,
  onStart?: () => void,
): void {
  if (event.button !== 0) return;
  const [x, y] = [event.clientX, event.clientY];
  const ended = new AbortController();
  const { signal } = ended;
  let isDragging = false;
  const onMove = (e: PointerEvent) => {
    if (!isDragging && Math.hypot(e.clientX - x, e.clientY - y) < START_PX) return;
    if (!isDragging) {
      isDragging = true;
      onStart?.();
    }
    app.dragged.value = { label, x: e.clientX, y: e.clientY };
  };
  const finish = (e: PointerEvent | null) => {
    ended.abort();
    if (!isDragging) return;
    app.dragged.value = null;
    const place = e && dropPlace(app, e.clientX, e.clientY);
    if (place !== null) pin(app, thing, place);
  };
  addEventListener("pointermove", onMove, { signal });
  addEventListener("pointerup", finish, { signal });
  addEventListener("pointercancel", () => finish(null), { signal });
  addEventListener("keydown", (e) => e.key === "Escape" && finish(null), { signal });
}

/** Before which panel something dropped here belongs; null outside the panels. */
export function dropPlace(app: App, x: number, y: number): number | null {
  const deck = app.host.shadowRoot?.querySelector("[data-deck]");
  if (!deck) return null;
  const box = deck.getBoundingClientRect();
  if (x < box.left || x > box.right || y < box.top || y > box.bottom) return null;
  const cards = [...deck.querySelectorAll("[data-pin]")].map((card) =>
    card.getBoundingClientRect(),
  );
  const holds = (b: DOMRect) => x >= b.left && x <= b.right && y >= b.top && y <= b.bottom;
  const end = deck.querySelector(".dropzone")?.getBoundingClientRect();
  const over = end && holds(end) ? -1 : cards.findIndex(holds);
  if (over < 0) return cards.length;
  const { left, width, top, height } = cards[over];
  const isBefore = deck.clientWidth > 1.5 * width ? x < left + width / 2 : y < top + height / 2;
  return isBefore ? over : over + 1;
}
