/** Lines over steps, drawn by uPlot: one chart, several series, a band where buckets hold several. */

import { useComputed, useSignalEffect } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import { NONFINITE, type TimeAxis } from "../api.gen";
import { useApp, useSize } from "../app/hooks";
import { type TimeTick, timeTicks } from "../core/clock";
import { columnAt, type Domain, placeOf } from "../core/columns";
import { count, number } from "../core/format";
import { type CanvasLike, describeCanvas } from "../core/recorded";
import { linearTicks } from "../core/scales";
import { FONT } from "./canvas";
import { useTimePointer } from "./pointer";

export interface Series {
  label: string;
  colour: string;
  dash: readonly number[];
  x: Float64Array;
  y: Float64Array;
  low: Float64Array;
  high: Float64Array;
  flags: Uint8Array;
  hasBand: boolean;
}

interface Props {
  series: readonly Series[];
  domain: Domain;
  isLog: boolean;
  height: number;
  label: string;
  /** Steps of something to see: a small flag at the top. */
  flags?: readonly { step: number; label: string; isBad: boolean }[];
  hasAxis?: boolean;
  isWheelFree?: boolean;
  /** The window drawn as a frame, for a chart that always shows everything. */
  frame?: Domain | null;
  /** Where the axis begins and ends on screen, to share it with a plot above or below. */
  axis?: { left: number; right: number } | null;
}

const AXIS_PX = 52;

export function LineChart({
  series,
  domain,
  isLog,
  height,
  label,
  flags = [],
  hasAxis = true,
  isWheelFree = false,
  frame = null,
  axis = null,
}: Props) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const over = useRef<HTMLDivElement>(null);
  const brush = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const { width } = useSize(box);
  const { tokens } = app.theme.value;
  const clock = app.clock.value;
  const data = useMemo(() => aligned(series), [series]);
  const xHeight = hasAxis ? 18 : 0;
  const { left, right } = sides(box.current, width, axis);
  const inner = {
    left,
    width: Math.max(0, width - left - right),
    top: 4,
    height: Math.max(0, height - xHeight - 8),
  };

  const shape = JSON.stringify([
    series.map((s) => [s.label, s.colour, s.dash, s.hasBand]),
    isLog,
    hasAxis,
    tokens.text,
    left,
    right,
    clock && [clock.name, clock.steps.length],
  ]);
  const current = useRef(domain);
  current.current = domain;
  useEffect(() => {
    if (width < 40) return;
    const made = new uPlot(
      options(series, current, isLog, hasAxis, { width, height, left, right }, tokens, clock),
      data,
      box.current!,
    );
    plot.current = made;
    describeCanvas(made.ctx.canvas, (c) => redraw(c, made, series, tokens, isLog));
    box.current!.querySelector(".uplot")?.setAttribute("aria-hidden", "true");
    return () => {
      plot.current = null;
      made.destroy();
    };
  }, [shape, width > 40]);
  useEffect(() => {
    plot.current?.setSize({ width, height });
  }, [width, height]);
  useEffect(() => {
    plot.current?.setData(data);
  }, [data, domain.from, domain.to]);

  useTimePointer(over, {
    snap: (place) => snapTo(series, domain, place),
    domain: () => current.current,
    isWheelFree,
    brush,
  });
  const domainSignal = useRef(domain);
  domainSignal.current = domain;
  return (
    <div
      class="linechart"
      ref={box}
      style={{ height: `${height}px` }}
      role="img"
      aria-label={label}
    >
      <div
        class="over"
        ref={over}
        style={{
          left: `${inner.left}px`,
          width: `${inner.width}px`,
          top: `${inner.top}px`,
          height: `${inner.height}px`,
        }}
      >
        {frame && <Frame frame={frame} domain={domain} />}
        {badStretches(series, domain).map(([from, to]) => (
          <span
            key={from}
            class="bad-stretch"
            style={{ left: `${100 * from}%`, width: `${100 * (to - from)}%` }}
          />
        ))}
        {flags.map((f) => (
          <span
            key={`${f.step} ${f.label}`}
            class={`flag ${f.isBad ? "bad" : ""}`}
            title={`${f.label} at step ${count(f.step)}`}
            style={{ left: `${100 * placeOf(f.step, domain)}%` }}
          />
        ))}
        <CursorLines domain={domain} />
        <div class="brush" ref={brush} />
      </div>
    </div>
  );
}

/** The chart in lines and words, for a picture of it: what uPlot draws, without its pixels. */
function redraw(
  c: CanvasLike,
  u: uPlot,
  series: readonly Series[],
  { text3, border }: { text3: string; border: string },
  isLog: boolean,
): void {
  const [left, top, width, height] = [u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height].map(
    (v) => v / devicePixelRatio,
  );
  const x = (v: number) => left + u.valToPos(v, "x");
  const y = (v: number) => top + u.valToPos(v, "y");
  c.font = `12px ${FONT}`;
  const { min, max } = u.scales.y;
  const ticks = isLog ? [min ?? 0, max ?? 1] : linearTicks(min ?? 0, max ?? 1, height / 30);
  for (const tick of ticks) {
    c.fillStyle = border;
    c.fillRect(left, y(tick), width, 1);
    c.fillStyle = text3;
    c.textAlign = "right";
    c.textBaseline = "middle";
    c.fillText(number(tick), left - 6, y(tick));
  }
  c.textAlign = "center";
  c.textBaseline = "top";
  for (const { step, label } of ticksOf(u, null)) c.fillText(label, x(step), top + height + 4);
  for (const s of series) {
    c.strokeStyle = s.colour;
    c.lineWidth = 1.5;
    c.setLineDash([...s.dash]);
    c.beginPath();
    let isOn = false;
    for (let i = 0; i < s.x.length; i++) {
      if (!Number.isFinite(s.y[i]) || (isLog && s.y[i] <= 0)) {
        isOn = false;
        continue;
      }
      if (isOn) c.lineTo(x(s.x[i]), y(s.y[i]));
      else c.moveTo(x(s.x[i]), y(s.y[i]));
      isOn = true;
    }
    c.stroke();
  }
}

/** What is left free beside the plot: room for numbers, or up to where a shared axis begins. */
function sides(
  box: HTMLElement | null,
  width: number,
  axis: Props["axis"],
): { left: number; right: number } {
  const own = { left: AXIS_PX, right: 8 };
  if (!box || !axis) return own;
  const place = box.getBoundingClientRect();
  const [left, right] = [axis.left - place.left, place.right - axis.right];
  return left >= AXIS_PX && right >= 0 && width - left - right > 120 ? { left, right } : own;
}

/** Where any series is not finite, as places between 0 and 1; neighbours are one stretch. */
function badStretches(series: readonly Series[], domain: Domain): [number, number][] {
  const found: [number, number][] = [];
  const place = (step: number) =>
    Math.max(0, Math.min(1, (step - domain.from) / (domain.to - domain.from || 1)));
  for (const { x, flags } of series) {
    for (let i = 0; i < x.length; i++) {
      if (flags[i] !== NONFINITE) continue;
      const from = place(x[i]);
      const to = place(
        i + 1 < x.length ? Math.min(x[i + 1], x[i] + 2 * domain.cadence) : x[i] + domain.cadence,
      );
      const last = found[found.length - 1];
      if (last && from <= last[1] + 1e-6) last[1] = Math.max(last[1], to);
      else found.push([from, to]);
    }
  }
  return found;
}

/** What lies outside the window is veiled. */
function Frame({ frame, domain }: { frame: Domain; domain: Domain }) {
  const place = (step: number) =>
    Math.max(0, Math.min(1, (step - domain.from) / (domain.to - domain.from || 1)));
  const [a, b] = [place(frame.from), place(frame.to)];
  return (
    <>
      <span class="veil" style={{ left: "0", width: `${100 * a}%` }} />
      <span class="veil" style={{ left: `${100 * b}%`, width: `${100 * (1 - b)}%` }} />
      <span class="window-frame" style={{ left: `${100 * a}%`, width: `${100 * (b - a)}%` }} />
    </>
  );
}

/** The cursor, and the line under the pointer. They move without anything else being drawn. */
export function CursorLines({ domain }: { domain: Domain }) {
  const app = useApp();
  const cursor = useRef<HTMLSpanElement>(null);
  const hover = useRef<HTMLSpanElement>(null);
  const latest = useRef(domain);
  latest.current = domain;
  const put = (element: HTMLElement | null, step: number | null) => {
    if (!element) return;
    const place = step === null ? -1 : placeOf(step, latest.current);
    element.style.display = place < 0 || place > 1 ? "none" : "block";
    element.style.left = `${100 * place}%`;
  };
  const isOff = useComputed(() => app.state.value.crosshair === "off");
  useSignalEffect(() => {
    const [at, from] = [app.cursor.value, app.domain.value];
    void from;
    put(cursor.current, at);
  });
  useSignalEffect(() => {
    const [at, off] = [app.hover.value, isOff.value];
    put(hover.current, off ? null : at);
  });
  useEffect(() => {
    put(cursor.current, app.cursor.peek());
    put(hover.current, isOff.peek() ? null : app.hover.peek());
  }, [domain.from, domain.to]);
  return (
    <>
      <span class="cursor-line" ref={cursor} />
      <span class="hover-line" ref={hover} />
    </>
  );
}

/** The value of a series at a step: that of the bucket which holds it; null before the first one. */
export function valueAt(series: Series, step: number): number | null {
  const at = columnAt(series.x, step);
  return at < 0 ? null : series.flags[at] === NONFINITE ? Number.NaN : series.y[at];
}

function snapTo(series: readonly Series[], domain: Domain, place: number): number | null {
  const x = series[0]?.x;
  if (!x?.length) return null;
  const wanted = domain.from + place * (domain.to - domain.from) - domain.cadence / 2;
  const at = Math.max(0, columnAt(x, wanted));
  const other = Math.min(x.length - 1, at + 1);
  return Math.abs(x[other] - wanted) < Math.abs(x[at] - wanted) ? x[other] : x[at];
}

/** All series on one x axis, as uPlot wants it; for each: low, high, value. */
function aligned(series: readonly Series[]): uPlot.AlignedData {
  const tables = series.map((s) => [s.x, s.low, s.high, s.y] as unknown as uPlot.AlignedData);
  if (tables.length === 0) return [[]];
  // Holes (null) are where a line was not recorded while another was: lines go on across them.
  return tables.length === 1
    ? tables[0]
    : uPlot.join(
        tables,
        tables.map((t) => t.map(() => 0)),
      );
}

function options(
  series: readonly Series[],
  domain: { current: Domain },
  isLog: boolean,
  hasAxis: boolean,
  { width, height, left, right }: { width: number; height: number; left: number; right: number },
  tokens: { text3: string; border: string },
  clock: TimeAxis | null,
): uPlot.Options {
  const font = `12px ${FONT}`;
  const grid = { stroke: tokens.border, width: 1 };
  const ticks = { stroke: tokens.border, width: 1, size: 3 };
  return {
    width,
    height,
    padding: [4, right, 4, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: {
        time: false,
        range: () => {
          const { from, to, cadence } = domain.current;
          return [from - cadence / 2, to - cadence / 2];
        },
      },
      y: { distr: isLog ? 3 : 1, range: isLog ? undefined : padded },
    },
    axes: [
      {
        show: hasAxis,
        font,
        stroke: tokens.text3,
        grid: { show: false },
        ticks,
        size: 18,
        gap: 2,
        splits: (u) => ticksOf(u, clock).map((t) => t.step),
        values: (u, v) => {
          const labels = new Map(ticksOf(u, clock).map((t) => [t.step, t.label]));
          return v.map((s) => labels.get(s) ?? "");
        },
      },
      {
        font,
        stroke: tokens.text3,
        grid,
        ticks,
        size: left,
        gap: 4,
        space: 22,
        values: (_, v) => v.map((y) => (y === null ? "" : number(y))),
      },
    ],
    series: [
      {},
      ...series.flatMap((s): uPlot.Series[] => [
        {
          scale: "y",
          stroke: "transparent",
          width: 0,
          points: { show: false },
          spanGaps: true,
          auto: s.hasBand,
        },
        {
          scale: "y",
          stroke: "transparent",
          width: 0,
          points: { show: false },
          spanGaps: true,
          auto: s.hasBand,
        },
        {
          scale: "y",
          stroke: s.colour,
          width: 1.5,
          dash: [...s.dash],
          points: { show: s.x.length === 1, size: 5 },
          spanGaps: true,
        },
      ]),
    ],
    bands: series.flatMap((s, i) =>
      s.hasBand
        ? [{ series: [3 * i + 2, 3 * i + 1] as [number, number], fill: `${s.colour}33` }]
        : [],
    ),
  };
}

/** Ticks of the time axis, as many as there is room for. */
function ticksOf(u: uPlot, clock: TimeAxis | null): TimeTick[] {
  const { min, max } = u.scales.x;
  if (min === undefined || max === undefined || min === null || max === null) return [];
  const room = Math.max(2, u.width / 110);
  return timeTicks(clock, Math.ceil(min), Math.floor(max), room);
}

function padded(_: uPlot, low: number, high: number): [number, number] {
  if (low === null || high === null) return [0, 1];
  const pad = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - pad, high + pad];
}
