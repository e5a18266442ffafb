/** What is being dragged, at the pointer. */

import { useApp } from "../app/hooks";

export function DragGhost() {
  const dragged = useApp().dragged.value;
  if (!dragged) return null;
  return (
    <div class="ghost" style={{ transform: `translate(${dragged.x + 10}px, ${dragged.y + 6}px)` }}>
      {dragged.label}
    </div>
  );
}
