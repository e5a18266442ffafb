/** The timeline: the loss (or any scalar) of all runs, always in view; the window and the cursor. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Lines } from "../api.gen";
import { useApp, useQuery } from "../app/hooks";
import { clockAt, clockWords } from "../core/clock";
import type { Cell } from "../core/csv";
import { count, number } from "../core/format";
import { inkOn, parseHex } from "../core/lut";
import { DASHES, pinColour } from "../core/tokens";
import { ChartMenu } from "./ChartMenu";
import { Button, Select } from "./Controls";
import { LineChart, type Series, valueAt } from "./LineChart";

const HEIGHT = 92;
const COLUMNS = 2048;
/** Lines whose values have room beside the chart. */
const MOST_READ = 4;

export function Timeline() {
  const app = useApp();
  const about = app.about.value;
  const { runs, line, isLineLog, axis } = app.state.value;
  const name = line ?? about?.timeline ?? null;
  const found = useSignal<ReadonlyMap<string, Lines>>(new Map());
  const domain = app.wholeDomain.value;
  const isDark = app.theme.value.isDark;
  const names = runs.map((run) => app.nameOf(run));
  const series = useMemo(
    () => toSeries(runs, names, found.value, name, isDark),
    [runs, names.join("\n"), found.value, name, isDark],
  );
  const canBeLog = series.some((s) => s.low.some((v) => v > 0));
  const put = (run: string, lines: Lines | null) => {
    const next = new Map(found.peek());
    if (lines) next.set(run, lines);
    else next.delete(run);
    found.value = next;
  };
  const chart = useRef<HTMLElement>(null);
  const scalars = about?.scalars ?? [];
  return (
    <section class="timeline" aria-label="Timeline" ref={chart}>
      {name && runs.map((run) => <RunLines key={run} run={run} name={name} put={put} />)}
      <div class="timeline-head">
        {scalars.length > 0 ? (
          <Select
            label="Scalar in the timeline"
            isLabelShown={false}
            value={name ?? ""}
            options={scalars.map((s) => ({ value: s.name, label: s.name }))}
            onChange={(value) => app.set({ line: value === about?.timeline ? null : value })}
          />
        ) : (
          <span class="dim">no scalars</span>
        )}
        {canBeLog && (
          <Button
            label="Logarithmic timeline"
            isOn={isLineLog}
            class="small"
            onClick={() => app.set({ isLineLog: !isLineLog })}
          >
            log
          </Button>
        )}
        <Readout series={series} />
        {name && series.length > 0 && (
          <ChartMenu
            of={chart}
            name={`${about?.name ?? "run"}-${name}`}
            figure={{
              name: "lines",
              given: [name],
              options: [
                ["axis", axis ?? undefined],
                ["log", isLineLog || undefined],
              ],
            }}
            table={() => lineTable(series)}
          />
        )}
      </div>
      {domain && series.length > 0 ? (
        <LineChart
          series={series}
          domain={domain}
          isLog={isLineLog && canBeLog}
          height={HEIGHT}
          label={`${name} over steps ${count(domain.from)} to ${count(domain.to - domain.cadence)}`}
          flags={app.marks.value}
          frame={app.state.value.x ? app.domain.value : null}
          axis={app.axis.value}
          isWheelFree
        />
      ) : (
        <p class="hint timeline-empty">
          {about?.last_step === null
            ? app.runStatus.value === "live"
              ? "Waiting for the first step…"
              : "This run has no steps."
            : name
              ? ""
              : "Log a scalar to see it here: watch.log(loss=loss)"}
        </p>
      )}
    </section>
  );
}

/** The step of the cursor, and the value of each line there. */
function Readout({ series }: { series: readonly Series[] }) {
  const app = useApp();
  const step = app.hover.value ?? app.cursor.value;
  const clock = app.clock.value;
  return (
    <dl class="readout">
      <div>
        <dt>step</dt>
        <dd data-cursor-step>{count(step)}</dd>
      </div>
      {clock && step !== null && (
        <div>
          <dt class="cut">{clock.name}</dt>
          <dd data-clock>{clockWords(clock, clockAt(clock, step))}</dd>
        </div>
      )}
      {series.slice(0, MOST_READ).map((s) => (
        <div key={s.label} data-line={s.label}>
          <dt class="cut" title={s.label}>
            <LineKey colour={s.colour} dash={s.dash} />
            <span class="cut">{s.label}</span>
          </dt>
          <dd>{number(step === null ? null : valueAt(s, step))}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The numbers of all lines, one after the other. */
function lineTable(series: readonly Series[]): Cell[][] {
  const rows = series.flatMap((s) =>
    Array.from(s.x, (x, i): Cell[] => [s.label, x, s.y[i], s.low[i], s.high[i]]),
  );
  return [["line", "step", "mean", "lowest", "highest"], ...rows];
}

/** How a line is drawn: its colour and its dashes. */
function LineKey({ colour, dash }: { colour: string; dash: readonly number[] }) {
  return (
    <svg class="line-key" width="16" height="8" aria-hidden="true">
      <line x1="0" y1="4" x2="16" y2="4" stroke={colour} stroke-dasharray={dash.join(" ")} />
    </svg>
  );
}

/** One colour for each run, in the timeline and in the bar at the top. */
export function runColour(place: number, isDark: boolean): string {
  return pinColour(String.fromCharCode(65 + (place % 8)), isDark);
}

/** `A` for the first run, `B` for the second. */
export function letterOf(place: number): string {
  return String.fromCharCode(65 + (place % 26));
}

/** The letter of a run in its colour. */
export function RunKey({ place }: { place: number }) {
  const app = useApp();
  const colour = runColour(place, app.theme.value.isDark);
  return (
    <span class="run-key" style={{ background: colour, color: inkOn(parseHex(colour)) }}>
      {letterOf(place)}
    </span>
  );
}

/** Fetches the lines of one run and keeps them up to date. Draws nothing. */
function RunLines({
  run,
  name,
  put,
}: {
  run: string;
  name: string;
  put: (run: string, lines: Lines | null) => void;
}) {
  const { data } = useQuery("lines", { run, name: [name], columns: COLUMNS }).value;
  useEffect(() => put(run, data), [data]);
  useEffect(() => () => put(run, null), []);
  return null;
}

function toSeries(
  runs: readonly string[],
  names: readonly string[],
  found: ReadonlyMap<string, Lines>,
  name: string | null,
  isDark: boolean,
): Series[] {
  const made: Series[] = [];
  runs.forEach((run, r) => {
    const lines = found.get(run);
    const drawn = (lines?.lines ?? []).filter((l) => l.name === name && l.length > 0);
    for (const [phase, line] of drawn.entries()) {
      const cut = <T extends Float64Array | Uint8Array>(a: T) =>
        a.subarray(line.start, line.start + line.length) as T;
      const isBucketed = lines!.stride > 1;
      made.push({
        label: runs.length > 1 ? `${names[r]} ${line.phase}` : line.phase,
        colour: runs.length > 1 ? runColour(r, isDark) : runColour(phase, isDark),
        dash: DASHES[phase % DASHES.length],
        x: cut(lines!.first),
        y: cut(lines!.mean),
        low: cut(lines!.low),
        high: cut(lines!.high),
        flags: cut(lines!.flags),
        hasBand: isBucketed,
      });
    }
  });
  return made;
}
