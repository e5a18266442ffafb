/** The panels: one card for each pin, and a preview of what is chosen in the graph. */

import { useApp } from "../app/hooks";
import { letterOf } from "../app/pins";
import { Boundary } from "./Boundary";
import { PanelCard } from "./PanelCard";

export function Deck() {
  const app = useApp();
  const { pins, on, page } = app.state.value;
  const run = app.run.value;
  const hasPreview = page === "explore" && on !== null && letterOf(pins, { node: on }) === null;
  const isDropping = app.dragged.value !== null;
  if (!run) return null;
  return (
    <div class={`deck ${isDropping ? "dropping" : ""}`} data-deck>
      {hasPreview && (
        <Boundary what="The preview" key={on} of={run}>
          <PanelCard run={run} node={on} letter={null} />
        </Boundary>
      )}
      {pins.map((p) => (
        <Boundary what={`Panel ${p.letter}`} key={`${p.letter} ${p.node ?? p.module}`} of={run}>
          <PanelCard run={run} node={p.node} module={p.module} letter={p.letter} />
        </Boundary>
      ))}
      {pins.length === 0 && !hasPreview && <DeckHint />}
      {isDropping && <div class="dropzone">Drop to pin</div>}
    </div>
  );
}

function DeckHint() {
  return (
    <div class="deck-hint">
      <h3>Panels</h3>
      <p>Put modules side by side and watch their values, gradients and updates change.</p>
      <ul>
        <li>
          <b>Click</b> a module for a preview
        </li>
        <li>
          <b>Drag</b> it here, click its pin, or press <kbd>P</kbd> to keep it
        </li>
        <li>
          <b>Double-click</b> or <kbd>Enter</kbd> looks inside
        </li>
      </ul>
    </div>
  );
}
