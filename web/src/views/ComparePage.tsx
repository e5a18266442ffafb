/** Two runs side by side: what differs as a whole, then layer by layer on one cursor. */

import { type Signal, useComputed, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { ComparedRuns, Heat, PairedHeat } from "../api.gen";
import { useApp, useQuery, useSettled, useSize } from "../app/hooks";
import { number } from "../core/format";
import { type ColourScale, colourScale } from "../core/scales";
import { Boundary } from "./Boundary";
import { ChartMenu } from "./ChartMenu";
import { CombineSteps } from "./CombineSteps";
import { FarList, Verdict } from "./CompareSummary";
import { Segments } from "./Controls";
import { HeatView, useHeatLink } from "./HeatView";
import { compareFigure, pairedQuestion } from "./heatquery";
import { heatTable, rowOrder } from "./heatwords";
import { PairedDrawer } from "./PairedDrawer";
import { RunPicker } from "./RunPicker";
import { Empty, Failed, Loading } from "./States";
import { letterOf, RunKey } from "./Timeline";

export function ComparePage() {
  const app = useApp();
  const { runs, measure, site } = app.state.value;
  const verdicts = useSignal<ReadonlyMap<string, ComparedRuns>>(new Map());
  if (runs.length < 2) return <RunPicker />;
  const others = runs.slice(1);
  const other = otherRun(app.state.value);
  return (
    <div class="compare">
      <div class="subbar" role="toolbar" aria-label="Comparison">
        <Segments
          label="Difference"
          value={measure}
          options={[
            {
              value: "ratio",
              label: "log2(A/B)",
              title: "How many times larger the statistic is in the first run, in octaves",
            },
            {
              value: "distance",
              label: "distance",
              title: "How far the values themselves are apart: W1 of log2|value|, in octaves",
            },
          ]}
          onChange={(value) => app.set({ measure: value })}
        />
        <CombineSteps />
        <span class="stretch" />
        <RunPicker isSmall />
      </div>
      <div class="compare-scroll">
        {others.map((run) => (
          <Boundary key={run} what="The comparison" of={run}>
            <Verdict
              other={run}
              letter={letterOf(runs.indexOf(run))}
              isChosen={run === other}
              isOpen={others.length === 1}
              onFound={(data) => keep(verdicts, run, data)}
            />
          </Boundary>
        ))}
      </div>
      <div class="overview-body">
        <Boundary what="The heatmaps" of={other}>
          <Heats />
        </Boundary>
        <Boundary what="The list of tensors" of={other}>
          <FarList data={verdicts.value.get(other) ?? null} />
        </Boundary>
      </div>
      <Boundary what="The tensor at the cursor" of={site}>
        {site && <PairedDrawer key={site} site={site} other={other} />}
      </Boundary>
    </div>
  );
}

/** The run that the first one is compared with: the one chosen among several. */
export function otherRun({
  runs,
  versus,
}: {
  runs: readonly string[];
  versus: string | null;
}): string {
  return versus !== null && runs.indexOf(versus) > 0 ? versus : runs[1];
}

/** Keeps what was found for a run, or forgets it. */
function keep<T>(map: Signal<ReadonlyMap<string, T>>, run: string, data: T | null): void {
  const next = new Map(map.peek());
  if (data) next.set(run, data);
  else next.delete(run);
  map.value = next;
}

/** Two runs: A, B and their difference. More: A, and the difference with each of the others. */
function Heats() {
  const app = useApp();
  const { runs } = app.state.value;
  const box = useRef<HTMLDivElement>(null);
  const { width } = useSize(box);
  const link = useHeatLink();
  const others = runs.slice(1);
  const found = useSignal<ReadonlyMap<string, PairedHeat>>(new Map());
  const put = (run: string, heat: PairedHeat | null) => keep(found, run, heat);
  const specs = others.map((run) => found.value.get(run) ?? null);
  const first = specs.find((s) => s !== null) ?? null;
  const scale = useComputed(() => shared([...found.value.values()].map((s) => s.difference)));
  useEffect(() => {
    if (first) app.notes.value = first.difference.notes;
  }, [first]);
  const n = others.length === 1 ? 3 : others.length + 1;
  return (
    <section class="heats" ref={box} aria-label="Layers of both runs by steps">
      {width > 0 &&
        others.map((run) => (
          <Asked key={run} other={run} width={width / Math.min(n, 4)} put={put} />
        ))}
      {first && first.a.rows.length > 0 && first.a.columns.first.length > 0 && (
        <div class={`heat-grid n${Math.min(n, 4)}`}>
          <One title={<RunTitle place={0} />} heat={first.a} spec={first} link={link} isFirst />
          {others.length === 1 && (
            <One title={<RunTitle place={1} />} heat={first.b} spec={first} link={link} />
          )}
          {others.map((run, i) => {
            const spec = specs[i];
            if (!spec) return null;
            const title =
              others.length === 1 ? (
                <span>{spec.difference.title}</span>
              ) : (
                <>
                  <span>{spec.difference.label.replace("B", letterOf(i + 1))}</span>
                  <RunTitle place={i + 1} />
                </>
              );
            return (
              <One
                key={run}
                title={title}
                heat={spec.difference}
                spec={spec}
                link={link}
                scale={scale.value ?? undefined}
                other={run}
              />
            );
          })}
        </div>
      )}
      {first && (first.a.rows.length === 0 || first.a.columns.first.length === 0) && (
        <Empty title="Nothing recorded by both runs in this window" />
      )}
    </section>
  );
}

/** Colours that mean the same in all small multiples. */
function shared(heats: readonly Heat[]): ColourScale | null {
  if (heats.length < 2) return null;
  const most = (of: (h: Heat) => number | null) =>
    Math.max(...heats.map((h) => Math.abs(of(h) ?? 0)));
  const { is_signed: isSigned } = heats[0];
  const high = Math.max(
    most((h) => h.limits.high),
    most((h) => h.limits.low),
    1e-9,
  );
  const least = Math.min(...heats.map((h) => h.limits.least_positive ?? Infinity));
  return colourScale(
    { low: isSigned ? -high : 0, high, least_positive: Number.isFinite(least) ? least : null },
    isSigned,
    isSigned ? "auto" : "linear",
  );
}

/** Asks for the heatmaps of one pair and keeps them up to date. */
function Asked({
  other,
  width,
  put,
}: {
  other: string;
  width: number;
  put: (run: string, heat: PairedHeat | null) => void;
}) {
  const app = useApp();
  const settled = useSettled(app.state.value.x, 160);
  const question = pairedQuestion(app, other, settled, width);
  const { data, error } = useQuery("paired_heat", question, { everyMs: 3000 }).value;
  useEffect(() => put(other, data), [data]);
  useEffect(() => () => put(other, null), []);
  if (error && !data) return <Failed error={error} what="The heatmaps" />;
  return data ? null : <Loading what="the heatmaps" />;
}

function RunTitle({ place }: { place: number }) {
  const app = useApp();
  const run = app.state.value.runs[place];
  return (
    <>
      <RunKey place={place} />
      <b class="cut">{app.nameOf(run)}</b>
    </>
  );
}

interface OneProps {
  title: ComponentChildren;
  heat: Heat;
  spec: PairedHeat;
  link: ReturnType<typeof useHeatLink>;
  isFirst?: boolean;
  scale?: ColourScale;
  other?: string;
}

function One({ title, heat, spec, link, isFirst = false, scale, other }: OneProps) {
  const app = useApp();
  const box = useRef<HTMLElement>(null);
  const sorted = app.state.value.order;
  const order = useMemo(() => rowOrder(spec.difference, sorted), [spec, sorted]);
  const wide = heat.columns.first.length;
  const more = (row: number, column: number): [string, string][] => {
    const at = row * wide + column;
    const found: [string, string][] =
      heat === spec.difference
        ? [
            ["in A", number(spec.a.values[at])],
            ["in B", number(spec.b.values[at])],
          ]
        : [[spec.difference.label, number(spec.difference.values[at])]];
    if (spec.others[row]) found.push(["called in B", spec.others[row]]);
    return found;
  };
  return (
    <figure
      class="heat-cell"
      ref={box}
      data-compared={heat === spec.difference ? "difference" : "run"}
    >
      <figcaption>
        {title}
        <span class="stretch" />
        <ChartMenu
          of={box}
          name={`${app.about.value?.name ?? "run"}-${heat.title}`}
          figure={compareFigure(app, spec)}
          table={() => heatTable(heat)}
        />
      </figcaption>
      <HeatView
        heat={heat}
        order={order}
        least={4}
        most={24}
        isStale={false}
        link={link}
        isSecond={!isFirst}
        scale={scale}
        more={more}
        onPick={(row, step) => {
          const { site } = heat.rows[row];
          if (site) app.set({ site, step, ...(other ? { versus: other } : {}) }, true);
        }}
      />
    </figure>
  );
}
