/** The sheet of keys, made from the same table as the keys themselves. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { put } from "../app/app";
import { useApp } from "../app/hooks";
import { BINDINGS } from "../core/keys";
import { Button } from "./Controls";

export function HelpSheet() {
  const app = useApp();
  if (app.dialog.value !== "help") return null;
  return <OpenSheet onClose={() => put(app.dialog, null)} />;
}

function OpenSheet({ onClose }: { onClose: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const root = box.current!.getRootNode() as ShadowRoot;
    const before = root.activeElement as HTMLElement | null;
    box.current!.focus();
    return () => before?.focus?.();
  }, []);
  const groups = [...new Set(BINDINGS.map((b) => b.group))];
  return (
    <div class="backdrop" onClick={onClose}>
      <div
        class="sheet"
        role="dialog"
        aria-modal="true"
        aria-label="Keys"
        tabIndex={-1}
        ref={box}
        onClick={(e) => e.stopPropagation()}
      >
        <header>
          <h1>Keys</h1>
          <Button icon="close" label="Close" keys="Esc" isQuiet onClick={onClose} />
        </header>
        <div class="sheet-columns">
          {groups.map((group) => (
            <section key={group}>
              <h2>{group}</h2>
              <dl>
                {BINDINGS.filter((b) => b.group === group && b.keys).map((b) => (
                  <div key={b.command}>
                    <dt>
                      <kbd>{b.keys}</kbd>
                    </dt>
                    <dd>{b.title}</dd>
                  </div>
                ))}
              </dl>
            </section>
          ))}
        </div>
        <p class="dim">
          In charts: click sets the cursor, drag chooses a stretch of steps, double-click shows all,
          Ctrl and wheel zooms. In the graph: drag the ground, turn the wheel, double-click looks
          inside.
        </p>
      </div>
    </div>
  );
}
