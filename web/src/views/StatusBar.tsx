/** The line at the bottom: what the pointer is on, and how what is shown was made. */

import type { RunHeader } from "../api.gen";
import { VERSION } from "../app/app";
import { useApp } from "../app/hooks";
import { count } from "../core/format";

export function StatusBar() {
  const app = useApp();
  const about = app.about.value;
  const isRuns = app.state.value.page === "runs";
  const { is } = app.live.connection.value;
  return (
    <footer class="statusbar">
      <output class="status-text" aria-live="off">
        {app.status.value || (!isRuns && about ? summary(about) : "")}
      </output>
      <span class="stretch" />
      {!isRuns && (
        <span class="notes" data-notes>
          {app.notes.value.join(" · ")}
        </span>
      )}
      <span class={`connection ${is}`}>
        {
          {
            connecting: "connecting…",
            open: app.report.value ? "report" : "connected",
            lost: "disconnected",
            refused: "refused",
          }[is]
        }
      </span>
      <span class="version">{VERSION}</span>
    </footer>
  );
}

function summary({ model, modules, recorded_steps: steps }: RunHeader): string {
  return `${model ?? "model"} · ${count(modules)} modules · ${count(steps)} recorded ${steps === 1 ? "step" : "steps"}`;
}
