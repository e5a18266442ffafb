/** The heatmap with its question: asked for the window in view, kept up to date, opened by a click. */

import { useEffect, useMemo, useRef } from "preact/hooks";
import type { RunHeader } from "../api.gen";
import { useApp, useQuery, useSettled, useSize } from "../app/hooks";
import { ChartMenu } from "./ChartMenu";
import { Icon } from "./Controls";
import { HeatView } from "./HeatView";
import { heatFigure, heatQuestion } from "./heatquery";
import { heatTable, rowOrder } from "./heatwords";
import { Empty, Failed, Loading } from "./States";

export function HeatPanel({ least, most }: { least: number; most: number }) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const { width } = useSize(box);
  const { x, order, under, kind } = app.state.value;
  const settled = useSettled(x, 160);
  const about = app.about.value;
  const isEmpty =
    about !== null && (about.last_step === null || (!about.kind && !about.metrics.length));
  const question = heatQuestion(app, settled, width);
  const { data, error, key, isLoading } = useQuery("heat", question).value;
  const rows = useMemo(() => (data ? rowOrder(data, order) : []), [data, order]);
  useEffect(() => {
    if (data) app.notes.value = data.notes;
  }, [data]);
  const pick = (row: number, step: number) => {
    const chosen = data!.rows[row];
    if (chosen.site) app.set({ site: chosen.site, step }, true);
    else if (chosen.node) app.focusNode(chosen.node, false);
  };
  return (
    <section class="heat-panel" ref={box} aria-label="Layers by steps">
      {under && (
        <button
          type="button"
          class="chip"
          title="Show all modules (Esc)"
          onClick={() => app.set({ under: null }, true)}
        >
          <Icon name="filter" size={12} /> {under}
          <Icon name="close" size={12} />
        </button>
      )}
      {data && !isEmpty && data.rows.length > 0 && (
        <div class="corner">
          <ChartMenu
            of={box}
            name={`${about?.name ?? "run"}-${data.title}`}
            figure={heatFigure(app)}
            table={() => heatTable(data)}
          />
        </div>
      )}
      {error && (!data || key !== "") && !data && <Failed error={error} what="The heatmap" />}
      {!data && !error && (question || !about ? <Loading what="the heatmap" /> : null)}
      {about && isEmpty && <NoTensors about={about} />}
      {data &&
        !isEmpty &&
        (data.rows.length > 0 && data.columns.first.length > 0 ? (
          <HeatView
            heat={data}
            order={rows}
            least={least}
            most={most}
            isStale={isLoading}
            onPick={pick}
          />
        ) : (
          <Empty title={`Nothing recorded ${under ? "below this module" : "here"}`}>
            <p>No {(kind ?? about?.kind ?? "").replace(/_/g, " ")} in this window.</p>
          </Empty>
        ))}
    </section>
  );
}

/** A run without tensors: it has just begun, it ended before its first step, or it has only scalars. */
function NoTensors({ about }: { about: RunHeader }) {
  const app = useApp();
  if (about.last_step !== null) {
    return (
      <Empty title="No tensors were recorded">
        <p>This run has only scalars: see the timeline below.</p>
      </Empty>
    );
  }
  if (app.runStatus.value === "live") {
    return (
      <Empty title="Waiting for the first step…">
        <p>The run is open. Its first recorded step appears here.</p>
      </Empty>
    );
  }
  return (
    <Empty title="This run has no recorded steps">
      <p>It ended before the first step was recorded.</p>
    </Empty>
  );
}
