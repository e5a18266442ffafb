/** The whole level, small, when it does not fit: with what is in view, to be dragged. */

import type { Signal } from "@preact/signals";
import type { Layout } from "../core/layout";
import type { ViewBox } from "./GraphView";

const MOST_WIDTH = 150;
const MOST_HEIGHT = 110;

interface Props {
  layout: Layout;
  view: Signal<ViewBox>;
  size: { width: number; height: number };
}

export function MiniMap({ layout, view, size }: Props) {
  const { x, y, k } = view.value;
  const isWhole =
    x >= -1 &&
    y >= -1 &&
    x + layout.width * k <= size.width + 1 &&
    y + layout.height * k <= size.height + 1;
  if (isWhole || layout.width === 0) return null;
  const scale = Math.min(MOST_WIDTH / layout.width, MOST_HEIGHT / layout.height);
  const [width, height] = [Math.max(12, layout.width * scale), Math.max(12, layout.height * scale)];
  const go = (e: PointerEvent) => {
    const box = (e.currentTarget as Element).getBoundingClientRect();
    const [mx, my] = [(e.clientX - box.left) / scale, (e.clientY - box.top) / scale];
    view.value = { x: size.width / 2 - mx * k, y: size.height / 2 - my * k, k };
  };
  return (
    <svg
      class="minimap"
      width={width}
      height={height}
      aria-hidden="true"
      onPointerDown={(e) => {
        (e.currentTarget as Element).setPointerCapture(e.pointerId);
        go(e);
      }}
      onPointerMove={(e) => e.buttons === 1 && go(e)}
    >
      {[...layout.boxes.values()].map((b) => (
        <rect
          key={b.id}
          class="mini-box"
          x={b.x * scale}
          y={b.y * scale}
          width={Math.max(1, b.width * scale)}
          height={Math.max(1, b.height * scale)}
        />
      ))}
      <rect
        class="mini-view"
        x={(-x / k) * scale}
        y={(-y / k) * scale}
        width={(size.width / k) * scale}
        height={(size.height / k) * scale}
      />
    </svg>
  );
}
