/** The top bar (runs, pages, search, live, theme) and the bar below it (what numbers are shown). */

import { put } from "../app/app";
import { useApp } from "../app/hooks";
import { perform } from "../app/keyboard";
import { DESTINATIONS } from "../core/destinations";
import { count, kind as kindLabel } from "../core/format";
import { DEFAULTS, hasPanels } from "../core/url";
import { Button, Icon, Key, type Option, Segments, Select } from "./Controls";
import { StatusDot } from "./StatusDot";
import { runColour } from "./Timeline";

export function TopBar() {
  const app = useApp();
  const { page } = app.state.value;
  const hasRun = app.run.value !== null;
  return (
    <header class="topbar">
      <a
        class="brand"
        href="#/runs"
        title="All runs (G R)"
        onClick={(e) => {
          e.preventDefault();
          app.set({ page: "runs" }, true);
        }}
      >
        <Mark />
        <span>Sonde</span>
      </a>
      <RunChips />
      {hasRun && (
        <nav class="tabs" aria-label="Pages">
          {DESTINATIONS.map((tab) => (
            <button
              key={tab.page}
              type="button"
              class="tab"
              aria-current={page === tab.page ? "page" : undefined}
              title={`${tab.label} (G ${tab.key.toUpperCase()})`}
              onClick={() => app.set({ page: tab.page }, true)}
            >
              {tab.label}
            </button>
          ))}
        </nav>
      )}
      <span class="stretch" />
      <button type="button" class="searchbox" onClick={() => put(app.dialog, "palette")}>
        <Icon name="search" />
        <span>Search modules, commands</span>
        <Key>{/Mac|iP/.test(navigator.platform) ? "⌘K" : "Ctrl K"}</Key>
      </button>
      <LiveButton />
      <Button
        icon="link"
        label="Copy a link to this view"
        isQuiet
        onClick={() => perform(app, "copyLink")}
      />
      <Button
        icon={app.theme.value.isDark ? "sun" : "moon"}
        label={app.theme.value.isDark ? "Light colours" : "Dark colours"}
        keys="T"
        isQuiet
        onClick={() => perform(app, "theme")}
      />
      <Button icon="help" label="Keys" keys="?" isQuiet onClick={() => put(app.dialog, "help")} />
    </header>
  );
}

function Mark() {
  return (
    <svg width="20" height="20" viewBox="0 0 24 24" aria-hidden="true" class="mark">
      <path d="M12 1.5v5" />
      <circle cx="12" cy="12" r="5" />
      <circle cx="12" cy="12" r="1.4" class="dot" />
      <path d="M3.5 17.6c2.3 2.6 5.3 3.9 8.5 3.9s6.2-1.3 8.5-3.9" class="wave" />
    </svg>
  );
}

function RunChips() {
  const app = useApp();
  const { runs, page } = app.state.value;
  const about = app.about.value;
  if (runs.length === 0) return <span class="crumb-text">Runs</span>;
  return (
    <div class="chips" role="group" aria-label="Runs">
      {runs.map((run, i) => {
        const isFirst = i === 0;
        const state = app.live.states.value.get(run);
        const name = app.nameOf(run);
        return (
          <span key={run} class={`chip ${isFirst ? "first" : ""}`}>
            <button
              type="button"
              class="chip-name"
              title={isFirst ? "All runs (G R)" : "Show this run in front"}
              onClick={() =>
                isFirst
                  ? app.set({ page: page === "runs" ? "overview" : "runs" }, true)
                  : app.set({ runs: [run, ...runs.filter((r) => r !== run)] }, true)
              }
            >
              <StatusDot
                status={state?.status ?? (isFirst ? (about?.status ?? "unknown") : "unknown")}
              />
              {runs.length > 1 && (
                <i
                  class="swatch"
                  style={{ background: runColour(i, app.theme.value.isDark) }}
                  data-run-colour
                />
              )}
              <span class="cut">{name}</span>
            </button>
            {runs.length > 1 && (
              <button
                type="button"
                class="chip-close"
                aria-label={`Remove ${name}`}
                onClick={() => app.set({ runs: runs.filter((r) => r !== run) }, true)}
              >
                <Icon name="close" size={12} />
              </button>
            )}
          </span>
        );
      })}
    </div>
  );
}

/** Following, paused with so many new steps, or how the run ended. */
function LiveButton() {
  const app = useApp();
  const status = app.runStatus.value;
  const { isFollowing, page } = app.state.value;
  if (page === "runs" || status === null) return null;
  if (status !== "live") {
    const words = {
      finished: "Finished",
      failed: "Failed",
      crashed: "Crashed",
      unknown: "Unknown",
    }[status];
    return (
      <span class={`livestate ${status}`} data-status={status}>
        <StatusDot status={status} />
        {words}
      </span>
    );
  }
  const fresh = app.newSteps();
  return (
    <button
      type="button"
      class={`livestate live ${isFollowing ? "on" : "paused"}`}
      data-status={isFollowing ? "live" : "paused"}
      aria-pressed={isFollowing}
      title={isFollowing ? "Following the run. Pause (Space)" : "Paused. Follow the run (Space)"}
      onClick={() => perform(app, "follow")}
    >
      {isFollowing ? <StatusDot status="live" /> : <Icon name="play" size={12} />}
      {isFollowing ? "Live" : fresh > 0 ? `Paused · ${count(fresh)} new` : "Paused"}
    </button>
  );
}

/** Which kind and statistic is shown, on which scale. */
export function Toolbar() {
  const app = useApp();
  const about = app.about.value;
  const state = app.state.value;
  const kind = state.kind ?? about?.kind ?? "";
  const stat = state.metric ? `metric:${state.metric}` : (state.stat ?? about?.stat ?? "rms");
  const statistics: Option[] = (about?.statistics ?? []).map((s) => ({
    value: s.name,
    label: s.label,
  }));
  const metrics: Option[] = (about?.metrics ?? []).map((m) => ({
    value: `metric:${m.name}`,
    label: m.name,
    group: "Metrics",
  }));
  return (
    <div class="toolbar" role="toolbar" aria-label="What is shown">
      <Button
        icon="tree"
        label="Module tree"
        keys="["
        isQuiet
        isOn={state.hasTree}
        onClick={() => perform(app, "tree")}
      />
      {about !== null && about.kinds.length > 0 && (
        <Select
          label="Kind"
          value={kind}
          options={about.kinds.map((k) => ({
            value: k.kind,
            label: `${kindLabel(k.kind)} (${k.sites})`,
          }))}
          onChange={(value) => app.set({ kind: value, metric: null })}
          title="Which tensors (1 to 6)"
        />
      )}
      <Select
        label="Statistic"
        value={stat}
        options={[...statistics, ...metrics]}
        onChange={(value) =>
          value.startsWith("metric:")
            ? app.set({ metric: value.slice(7) })
            : app.set({ stat: value, metric: null })
        }
        title="Which number of each tensor (M)"
      />
      {about && about.phases.length > 1 && (
        <Select
          label="Phase"
          value={state.phase ?? "train"}
          options={about.phases.map((p) => ({ value: p, label: p }))}
          onChange={(phase) => app.set({ phase: phase === "train" ? null : phase })}
        />
      )}
      {about && about.ranks.length > 1 && (
        <Select
          label="Rank"
          value={state.rank === null ? "" : String(state.rank)}
          options={[
            { value: "", label: "all" },
            ...about.ranks.map((r) => ({ value: String(r), label: String(r) })),
          ]}
          onChange={(rank) => app.set({ rank: rank === "" ? null : Number(rank) })}
        />
      )}
      {about && about.last_step !== null && (
        <Select
          label="Axis"
          value={state.axis ?? ""}
          options={[
            { value: "", label: "step" },
            { value: "time", label: "wall time" },
            ...about.scalars.map((s) => ({ value: s.name, label: s.name, group: "Scalars" })),
          ]}
          onChange={(axis) => app.set({ axis: axis || null })}
          title="What stands on the time axis"
        />
      )}
      {hasPanels(state) && <PanelAxis />}
      <span class="stretch" />
      <WindowChip />
      <Button
        icon="panels"
        label="Panels"
        keys="]"
        isQuiet
        isOn={state.hasDeck}
        onClick={() => perform(app, "deck")}
      />
    </div>
  );
}

/** How the values of all panels are laid out. */
function PanelAxis() {
  const app = useApp();
  const state = app.state.value;
  return (
    <>
      <span class="divider" />
      <span class="select-name dim">Values</span>
      <Segments
        label="Value axis of panels (L)"
        value={state.scale}
        options={[
          {
            value: "auto",
            label: "auto",
            title: "Linear; logarithmic where values span more than four decades",
          },
          { value: "linear", label: "lin", title: "Values: linear" },
          { value: "log", label: "log", title: "Magnitudes: logarithmic" },
          {
            value: "asinh",
            label: "asinh",
            title: "Values: linear near zero, logarithmic far from it",
          },
          { value: "exponent", label: "2ⁿ", title: "Magnitudes: one cell for each power of two" },
        ]}
        onChange={(scale) => app.set({ scale })}
      />
      <Segments
        label="Range of panels"
        value={state.range}
        options={[
          {
            value: "robust",
            label: "99%",
            title: "Axis: 99 % of the values of each step, without steps that diverged",
          },
          { value: "all", label: "all", title: "Axis: from the smallest to the largest value" },
        ]}
        onChange={(range) => app.set({ range })}
      />
    </>
  );
}

/** The window on the time axis, when it is not all. */
function WindowChip() {
  const app = useApp();
  const { x } = app.state.value;
  if (x === DEFAULTS.x || !x) return null;
  return (
    <button
      type="button"
      class="chip window"
      title="Show all steps (0)"
      onClick={() => app.set({ x: null })}
    >
      steps {count(x.first)}–{x.last === null ? "now" : count(x.last)}
      <Icon name="close" size={12} />
    </button>
  );
}
