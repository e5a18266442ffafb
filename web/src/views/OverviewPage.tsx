/** The overview: what is not finite first, then all layers over time, then what moved most. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Mover, Movers, RunHeader, RunStatus } from "../api.gen";
import { type App, put } from "../app/app";
import { useApp, useQuery, useSettled } from "../app/hooks";
import { pin } from "../app/pins";
import { setCursor } from "../app/time";
import { ago, bytes, count, number, site as siteName, value } from "../core/format";
import { Boundary } from "./Boundary";
import { Button, Icon } from "./Controls";
import { Drawer } from "./Drawer";
import { HeatPanel } from "./HeatPanel";
import { windowOf } from "./heatquery";
import { Empty, Failed, Loading } from "./States";
import { StatusDot } from "./StatusDot";

const EVERY_MS = 3000;

const STATUS = {
  live: "Training",
  finished: "Finished",
  failed: "Failed",
  crashed: "Crashed",
  unknown: "Unknown",
};

export function OverviewPage() {
  const app = useApp();
  const about = app.about.value;
  const { site } = app.state.value;
  if (!about) return <Loading what="the run" />;
  return (
    <div class="overview">
      <Boundary what="The summary" of={app.run.value}>
        <Cards about={about} />
      </Boundary>
      <div class="overview-body">
        <Boundary what="The heatmap" of={app.run.value}>
          <HeatPanel least={0} most={22} />
        </Boundary>
        <Boundary what="The list of movers" of={app.run.value}>
          <MoverList />
        </Boundary>
      </div>
      <Boundary what="The tensor at the cursor" of={site}>
        <Drawer />
      </Boundary>
    </div>
  );
}

/** Statistics that need whole sketches cannot be asked of movers: then the usual one. */
function moverStat(about: RunHeader, stat: string): string {
  const known = about.statistics.find((s) => s.name === stat);
  return known && !known.needs_bins ? stat : about.stat;
}

/** What moved most in the chosen statistic; or `isHealth`, which does not depend on it. */
function useMovers(isHealth: boolean, limit: number) {
  const app = useApp();
  const { x, kind, stat, metric, phase } = app.state.value;
  const about = app.about.value;
  const settled = useSettled(x, 200);
  const run = app.run.value;
  const question =
    run && about?.kind
      ? {
          run,
          ...(isHealth ? {} : { kind: kind ?? about.kind }),
          stat: isHealth || metric ? "rms" : moverStat(about, stat ?? about.stat),
          ...(phase ? { phase } : {}),
          ...windowOf(settled),
          limit,
        }
      : null;
  return useQuery("movers", question, { everyMs: EVERY_MS }).value;
}

function Cards({ about }: { about: RunHeader }) {
  const app = useApp();
  const status = app.runStatus.value ?? about.status;
  const last = status === "live" ? app.lastStep.value : about.last_step;
  const warnings = about.notices.filter((n) => n.level !== "info");
  const remarks = about.notices.length - warnings.length;
  return (
    <div class="cards">
      <NonfiniteCard />
      <div class="card">
        <h2>
          <StatusDot status={status} /> {STATUS[status]}
        </h2>
        <p class="big">
          {last === null ? (status === "live" ? "no step yet" : "no steps") : `step ${count(last)}`}{" "}
          {about.recorded_steps > 0 && <small>{count(about.recorded_steps)} recorded</small>}
        </p>
        <p class="dim">
          {status === "live" ? "last write" : "ended"} {ago(about.last_seen_ms, Date.now())}
          {about.reason && status !== "finished" ? ` · ${about.reason}` : ""}
        </p>
      </div>
      <div class="card">
        <h2>{about.model ?? "Model"}</h2>
        <p class="big">
          {count(about.modules)} <small>modules</small>
        </p>
        <p class="dim" title={`${count(about.records)} records`}>
          {count(about.kinds.reduce((n, k) => n + k.sites, 0))} tensors · {bytes(about.size_bytes)}
        </p>
      </div>
      <details class={`card notices ${warnings.length ? "warn" : ""}`}>
        <summary>
          <h2>{warnings.length > 0 && <Icon name="warn" size={14} />} Recording</h2>
          <p class="big">
            {warnings.length > 0 ? count(warnings.length) : "No"}{" "}
            <small>{warnings.length === 1 ? "warning" : "warnings"}</small>
          </p>
          <p class="dim">
            {remarks > 0 && `${count(remarks)} ${remarks === 1 ? "remark" : "remarks"} · `}
            <span class="link">how it was recorded</span>
          </p>
        </summary>
        <ul class="notice-list">
          {about.notices.length === 0 && (
            <li class="dim">Nothing was skipped, dropped or damaged.</li>
          )}
          {about.notices.map((n, i) => (
            <li key={i} class={n.level}>
              <b>{n.where || n.code}</b> {n.message}
              {n.count > 1 && ` (${count(n.count)} times)`}
              {n.step !== null && ` at step ${count(n.step)}`}
            </li>
          ))}
          {about.facts.map((f, i) => (
            <li key={`f${i}`} class="fact">
              <span class="dim">{f.label}</span> {f.value}
            </li>
          ))}
        </ul>
      </details>
    </div>
  );
}

/** The first thing to know: are all numbers finite, and if not, where did it begin. */
function NonfiniteCard() {
  const app = useApp();
  const { data, error } = useMovers(true, 12);
  const bad = useMemo(() => data?.rows.filter((r) => r.nonfinite_steps > 0) ?? [], [data]);
  useEvents(app, bad);
  if (!data) {
    return (
      <div class="card">
        <h2>Finite?</h2>
        <p class="dim">
          {error?.message ?? (app.about.value?.kind ? "Loading…" : nothingYet(app.runStatus.value))}
        </p>
      </div>
    );
  }
  if (data.sites === 0) {
    const isNone = app.about.value?.last_step === null;
    return (
      <div class="card" data-nonfinite="none">
        <h2>Finite?</h2>
        <p class="dim">
          {isNone
            ? nothingYet(app.runStatus.value)
            : `No tensor was recorded in this ${app.state.value.x ? "window" : "phase"}.`}
        </p>
      </div>
    );
  }
  if (data.nonfinite_sites === 0) {
    return (
      <div class="card good" data-nonfinite="0">
        <h2>
          <StatusDot status="finished" /> All finite
        </h2>
        <p class="big">
          0 <small>of {count(data.sites)} tensors</small>
        </p>
        <p class="dim">have NaN or infinite values{app.state.value.x ? " in this window" : ""}</p>
      </div>
    );
  }
  const first = bad[0];
  return (
    <div class="card bad" data-nonfinite={data.nonfinite_sites}>
      <h2>
        <Icon name="warn" size={14} /> Not finite
      </h2>
      <p class="big">
        {count(data.nonfinite_sites)} <small>of {count(data.sites)} tensors</small>
      </p>
      {first && (
        <p class="since">
          <span>since step {count(first.first_nonfinite_step)}, first in</span>
          <button
            type="button"
            class="link cut"
            title={`${first.site.name}: show it there`}
            onClick={() => show(app, first)}
          >
            {siteName(first.site)}
          </button>
        </p>
      )}
    </div>
  );
}

function nothingYet(status: RunStatus | null): string {
  return status === "live" ? "No tensor was recorded yet." : "No tensor was recorded.";
}

/** Marks on the timeline: where values stopped being finite, and notices with a step. */
function useEvents(app: App, bad: readonly Mover[]): void {
  const notices = app.about.value?.notices;
  useEffect(() => {
    const first = bad.reduce(
      (least, r) => Math.min(least, r.first_nonfinite_step ?? Infinity),
      Infinity,
    );
    const events = Number.isFinite(first)
      ? [{ step: first, label: "First value that is not finite", isBad: true }]
      : [];
    for (const n of notices ?? []) {
      if (n.step !== null && n.level !== "info" && events.length < 40) {
        events.push({ step: n.step, label: n.message.slice(0, 80), isBad: false });
      }
    }
    app.events.value = events;
  }, [bad, notices]);
}

function show(app: App, mover: Mover): void {
  if (mover.first_nonfinite_step !== null) setCursor(app, mover.first_nonfinite_step);
  app.set({ site: mover.site.id, kind: mover.site.kind }, true);
}

function MoverList() {
  const app = useApp();
  const { data, error } = useMovers(false, 40);
  return (
    <section class="movers" aria-label="Biggest movers">
      <header>
        <h2>Biggest movers</h2>
        {data && <span class="dim">{data.label}, first to last quarter</span>}
      </header>
      {error && !data && <Failed error={error} what="Movers" />}
      {!data && !error && app.about.value?.kind && <Loading what="movers" />}
      {data && data.rows.length === 0 && <Empty title="Nothing moved in this window" />}
      {data && data.rows.length > 0 && <MoverRows data={data} onShow={(m) => show(app, m)} />}
    </section>
  );
}

function MoverRows({ data, onShow }: { data: Movers; onShow: (mover: Mover) => void }) {
  const app = useApp();
  const most = Math.max(1, ...data.rows.map((r) => Math.abs(r.change ?? 0)));
  const at = useSignal(0);
  const list = useRef<HTMLUListElement>(null);
  // One stop of the Tab key for all: arrows go from row to row, and to the pin of a row.
  const onKeyDown = (e: KeyboardEvent) => {
    const by = new Map([
      ["ArrowDown", 1],
      ["ArrowUp", -1],
    ]).get(e.key);
    const isAcross = e.key === "ArrowRight" || e.key === "ArrowLeft";
    if ((by === undefined && !isAcross) || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    e.stopPropagation();
    at.value = Math.max(0, Math.min(data.rows.length - 1, at.peek() + (by ?? 0)));
    const row = list.current?.children[at.peek()];
    const buttons = row?.querySelectorAll<HTMLElement>("button");
    buttons?.[e.key === "ArrowRight" ? 1 : 0]?.focus();
  };
  return (
    <ul class="mover-rows" ref={list} onKeyDown={onKeyDown}>
      {data.rows.map((row, i) => (
        <li key={row.site.id}>
          <button
            type="button"
            class="mover"
            tabIndex={i === Math.min(at.value, data.rows.length - 1) ? 0 : -1}
            onFocus={() => put(at, i)}
            title={`${row.site.name}: open at the cursor`}
            onClick={() => onShow(row)}
          >
            <span class="mover-name">{siteName(row.site)}</span>
            <span class="mover-values dim number">
              {row.nonfinite_steps > 0
                ? `in ${count(row.nonfinite_steps)} ${row.nonfinite_steps === 1 ? "step" : "steps"}`
                : `${value(row.before, data.format)} → ${value(row.after, data.format)}`}
            </span>
            {row.nonfinite_steps > 0 ? (
              <span class="badge bad">not finite since {count(row.first_nonfinite_step)}</span>
            ) : (
              <>
                <Bar change={row.change ?? 0} most={most} />
                <span class="number">{factor(row.change)}</span>
              </>
            )}
          </button>
          <Button
            icon="pin"
            label={`Pin the module of ${siteName(row.site)}`}
            isQuiet
            tabIndex={-1}
            onClick={() => pin(app, { node: row.node, module: row.site.module })}
          />
        </li>
      ))}
    </ul>
  );
}

/** A bar to the right for growth, to the left for shrinking. */
function Bar({ change, most }: { change: number; most: number }) {
  const part = Math.min(1, Math.abs(change) / most) * 50;
  return (
    <span class="bar" aria-hidden="true">
      <i
        class={change < 0 ? "down" : "up"}
        style={{ left: `${change < 0 ? 50 - part : 50}%`, width: `${part}%` }}
      />
    </span>
  );
}

function factor(change: number | null): string {
  if (change === null) return "–";
  const times = 2 ** Math.abs(change);
  return `${change < 0 ? "÷" : "×"}${times >= 100 ? number(times, 2) : times.toPrecision(2)}`;
}
