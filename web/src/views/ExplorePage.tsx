/** The graph of one level: what flows where, coloured by a statistic at the cursor. */

import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Crumb, GraphLevel, LevelQuestion } from "../api.gen";
import { useApp, useCommand, useQuery, useSettled } from "../app/hooks";
import { perform } from "../app/keyboard";
import { count } from "../core/format";
import { Boundary } from "./Boundary";
import { ChartMenu } from "./ChartMenu";
import { Button, Icon, Segments } from "./Controls";
import { GraphView } from "./GraphView";
import { windowOf } from "./heatquery";
import { Empty, Failed, Loading } from "./States";

export function ExplorePage() {
  const app = useApp();
  const run = app.run.value;
  const { at, isFolded, unfold, kind, stat, metric, phase, x } = app.state.value;
  const about = app.about.value;
  const level: LevelQuestion | null = run
    ? {
        run,
        ...(at === "." ? {} : { node: at }),
        ...(isFolded ? {} : { fold: false }),
        ...(unfold.length ? { unfold: [...unfold] } : {}),
      }
    : null;
  const { data, error, isLoading } = useQuery("level", level, { everyMs: 5000 }).value;
  const step = useSettled(app.state.value.step, 120);
  const settled = useSettled(x, 200);
  const tintQuestion =
    level && about && (metric || kind || about.kind)
      ? {
          ...level,
          ...(metric ? { metric } : { kind: (kind ?? about.kind)!, stat: stat ?? about.stat }),
          ...(step === null ? {} : { step }),
          ...(phase ? { phase } : {}),
          ...windowOf(settled),
          columns: 64,
        }
      : null;
  const graph = useRef<HTMLDivElement>(null);
  const tint = useQuery("tint", tintQuestion, { everyMs: 2000 }).value;
  useEffect(() => {
    if (tint.data) app.notes.value = tint.data.notes;
  }, [tint.data]);
  const up = () => {
    const crumbs = data?.crumbs ?? [];
    const here = crumbs[crumbs.length - 1];
    const above = crumbs[crumbs.length - 2];
    if (above) app.set({ at: above.node, on: here.node }, true);
  };
  useCommand("up", up);
  return (
    <div class="explore">
      <div class="subbar" role="toolbar" aria-label="Graph">
        <Breadcrumbs level={data} />
        <span class="stretch" />
        {unfold.length > 0 && (
          <Button
            label="Fold everything again"
            isQuiet
            onClick={() => app.set({ unfold: [] }, true)}
          >
            {unfold.length} unfolded <Icon name="close" size={12} />
          </Button>
        )}
        <Button
          label="Draw repeated modules as one"
          keys="O"
          isOn={isFolded}
          onClick={() => perform(app, "fold")}
        >
          Group repeats
        </Button>
        <Segments
          label="Direction"
          value={app.state.value.direction}
          options={[
            { value: "TB", label: "↓", title: "From top to bottom" },
            { value: "LR", label: "→", title: "From left to right" },
          ]}
          onChange={(direction) => app.set({ direction })}
        />
        <Button icon="minus" label="Zoom out" isQuiet onClick={() => perform(app, "graphOut")} />
        <Button icon="plus" label="Zoom in" isQuiet onClick={() => perform(app, "graphIn")} />
        <Button
          icon="fit"
          label="Fit the graph"
          keys="F"
          isQuiet
          onClick={() => perform(app, "fit")}
        />
      </div>
      {error && !data && <Failed error={error} what="The graph" />}
      {!data && !error && <Loading what="the graph" />}
      {data && data.nodes.length === 0 && (
        <Empty title="Nothing inside">
          <p>{data.note || "This module calls no other module."}</p>
        </Empty>
      )}
      {data && data.nodes.length > 0 && (
        <div class="graph-space" ref={graph}>
          <div class="corner top">
            <ChartMenu
              of={graph}
              name={`${about?.name ?? "run"}-${data?.path || "model"}`}
              figure={{
                name: "graph",
                given: data?.path ? [data.path] : [],
                options: [["group_repeats", isFolded ? undefined : false]],
              }}
            />
          </div>
          <Boundary what="The graph" of={data}>
            <GraphView
              level={data}
              tint={tint.data?.node === data.node ? tint.data : null}
              isStale={isLoading}
            />
          </Boundary>
        </div>
      )}
      {data && <Notes level={data} tintProblem={tint.error?.message ?? ""} />}
    </div>
  );
}

function Notes({ level, tintProblem }: { level: GraphLevel; tintProblem: string }) {
  const words = useMemo(
    () =>
      [
        level.note,
        level.left_out > 0 ? `${count(level.left_out)} more boxes are left out` : "",
        tintProblem,
      ].filter(Boolean),
    [level, tintProblem],
  );
  return words.length ? <p class="graph-note">{words.join(" · ")}</p> : null;
}

/** The way from the model to here. Where there are several alike, a stepper. */
function Breadcrumbs({ level }: { level: GraphLevel | null }) {
  const app = useApp();
  const crumbs = level?.crumbs ?? [];
  return (
    <nav class="crumbs" aria-label="Where in the model">
      <ol>
        {crumbs.map((crumb, i) => {
          const isLast = i === crumbs.length - 1;
          return (
            <li key={crumb.node}>
              {i > 0 && (
                <span class="dim" aria-hidden="true">
                  /
                </span>
              )}
              <button
                type="button"
                class="crumb"
                aria-current={isLast ? "location" : undefined}
                title={crumb.type}
                onClick={() =>
                  app.set(
                    { at: crumb.node, on: isLast ? null : (crumbs[i + 1]?.node ?? null) },
                    true,
                  )
                }
              >
                {crumb.label}
              </button>
              {crumb.instances.length > 1 && <InstanceStepper crumb={crumb} />}
            </li>
          );
        })}
      </ol>
    </nav>
  );
}

function InstanceStepper({ crumb }: { crumb: Crumb }) {
  const app = useApp();
  const { instances } = crumb;
  const at = instances.findIndex((one) => one.node === crumb.node);
  const go = (i: number) => {
    const node = instances[i]?.node;
    if (node) app.set({ at: node, on: null }, true);
  };
  return (
    <span class="stepper" role="group" aria-label={`${crumb.label}, one of ${instances.length}`}>
      <Button
        icon="left"
        label="Previous instance"
        isQuiet
        class="small"
        disabled={at <= 0}
        onClick={() => go(at - 1)}
      />
      <select
        class="times"
        aria-label="Instance"
        value={String(at)}
        onChange={(e) => go(Number(e.currentTarget.value))}
      >
        {instances.map((one, i) => (
          <option key={one.module} value={String(i)}>
            {one.label}
          </option>
        ))}
      </select>
      <Button
        icon="right"
        label="Next instance"
        isQuiet
        class="small"
        disabled={at < 0 || at >= instances.length - 1}
        onClick={() => go(at + 1)}
      />
    </span>
  );
}
