/** A kymograph: how the values of one tensor are spread over time, with a section at the cursor. */

import { useSignal, useSignalEffect } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Kymograph, SiteRef } from "../api.gen";
import type { App } from "../app/app";
import { useApp, useOnScreen, useQuery, useSettled, useSize } from "../app/hooks";
import { clockAt, clockWords } from "../core/clock";
import { mapColumns, mapRows, nearestColumn, spans, stepAt } from "../core/columns";
import { count, number, shape, share, steps } from "../core/format";
import { palette } from "../core/heat";
import {
  bars,
  beyondNote,
  cellAt,
  isMagnitude,
  kymoPlane,
  nonfiniteShare,
  outside,
  zeroShare,
} from "../core/kymo";
import type { Figure } from "../core/python";
import { edgeTicks, placeOnEdges } from "../core/scales";
import type { Tokens } from "../core/tokens";
import { ChartMenu } from "./ChartMenu";
import { FONT, paintPlane, prepare, verticalTicks } from "./canvas";
import { columnsFor, shownSteps, windowOf } from "./heatquery";
import { CursorLines } from "./LineChart";
import { useTimePointer } from "./pointer";
import { Tip, type TipContent } from "./Tip";
import { Words } from "./Words";

const HEIGHT = 96;
const GUTTER = 46;
const SECTION = 62;
const PADDING = 8;
const STRIP = 6;
const GAP = 2;
/** Where the cells lie inside the plot. */
const TOP = STRIP + GAP;
const CELLS_PX = HEIGHT - 2 * (STRIP + GAP);
const CELLS = 64;
/** Of the values of a column; a robust axis always leaves a few out. */
const BEYOND = 0.02;

export function Kymo({ run, site }: { run: string; site: SiteRef }) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const isOn = useOnScreen(box);
  const { width: whole } = useSize(box);
  const width = Math.max(0, whole - 2 * PADDING - GUTTER - SECTION - GAP);
  const { scale, range, phase, rank, x } = app.state.value;
  const settled = useSettled(x, 160);
  const question = {
    run,
    site: site.id,
    ...(phase ? { phase } : {}),
    ...(rank === null ? {} : { rank }),
    ...windowOf(settled),
    scale,
    range,
    cells: CELLS,
    columns: columnsFor(width),
  };
  const { data, error, isLoading } = useQuery("kymograph", width > 0 ? question : null, {
    isActive: isOn,
  }).value;
  return (
    <div class="kymo" ref={box} data-site={site.id} data-site-name={site.name}>
      <div class="kymo-head">
        <span class="kymo-name cut" title={site.name}>
          {nameOf(site)}
        </span>
        <span class="dim cut">
          {site.dtype} {shape(site.shape)}
        </span>
        <span class="stretch" />
        {data && <Numbers data={data} />}
        <ChartMenu of={box} name={site.name} figure={kymoFigure(app, site)} />
      </div>
      {data ? (
        <>
          <Plot data={data} width={width} isStale={isLoading} />
          <Foot data={data} width={width} />
        </>
      ) : (
        <div class="kymo-space">
          {error && (
            <p class="hint">
              <Words text={error.message} />
            </p>
          )}
        </div>
      )}
    </div>
  );
}

function kymoFigure(app: App, site: SiteRef): Figure {
  const { scale } = app.state.value;
  return {
    name: "kymograph",
    given: [site.name],
    options: [...shownSteps(app), ["scale", scale === "auto" ? undefined : scale]],
  };
}

/** Inside a section; calls of a traced method are told apart, those of a module have panels. */
function nameOf(site: SiteRef): string {
  if (site.kind === "local") return site.label;
  return site.slot && site.slot !== "0" ? site.slot : site.kind.replace(/_/g, " ");
}

function Plot({ data, width, isStale }: { data: Kymograph; width: number; isStale: boolean }) {
  const app = useApp();
  const canvas = useRef<HTMLCanvasElement>(null);
  const lines = useRef<HTMLCanvasElement>(null);
  const axis = useRef<HTMLCanvasElement>(null);
  const plot = useRef<HTMLDivElement>(null);
  const brush = useRef<HTMLDivElement>(null);
  const tip = useSignal<TipContent | null>(null);
  const { isDark, tokens } = app.theme.value;
  const { map } = app.state.value;
  const domain = app.domain.value;
  const colours = useMemo(
    () => palette(map, false, isDark, tokens.nonfinite, tokens.hatch),
    [map, isDark],
  );
  const plane = useMemo(() => kymoPlane(data), [data]);
  const extents = useMemo(() => spans(data.columns), [data.columns]);
  const columns = data.columns.first;

  useLayoutEffect(() => {
    const surface = prepare(canvas.current, width, HEIGHT);
    if (!surface || !domain) return;
    const { ratio, context } = surface;
    const x = mapColumns(extents, domain, Math.round(width * ratio));
    const y = mapRows(plane.rows, Math.round(CELLS_PX * ratio));
    paintPlane(surface, plane, x, y, colours, 0, Math.round(TOP * ratio));
    drawStrips(context, data, x, width, ratio, tokens);
    const above = prepare(lines.current, width, HEIGHT);
    if (above) drawLines(above.context, data, extents, domain, width);
  }, [plane, extents, domain, width, colours, tokens]);

  useLayoutEffect(() => {
    const surface = prepare(axis.current, GUTTER, HEIGHT);
    if (!surface) return;
    const { context } = surface;
    context.fillStyle = tokens.text3;
    verticalTicks(context, edgeTicks(data.edges, data.scale, 5), GUTTER - 5, TOP, CELLS_PX, 12);
  }, [data.edges, data.scale, tokens]);

  useTimePointer(plot, {
    brush,
    snap: (place) => {
      const c = domain ? nearestColumn(columns, stepAt(place, domain)) : -1;
      return c < 0 ? null : columns[c];
    },
    onMove: (at) => {
      const c = at && domain ? nearestColumn(columns, stepAt(at.x, domain)) : -1;
      if (!at || c < 0) {
        tip.value = null;
        app.status.value = "";
        return;
      }
      const words = describe(data, c, at.y * HEIGHT);
      app.status.value = `${words.title} · ${words.rows.map(([k, v]) => `${k} ${v}`).join(" · ")}`;
      tip.value =
        app.state.peek().crosshair === "values" ? { ...words, x: at.clientX, y: at.clientY } : null;
    },
  });
  return (
    <div
      class={`kymo-body ${isStale ? "stale" : ""}`}
      role="img"
      aria-label={`How the values of ${data.site.name} are spread over steps`}
      data-cells={plane.rows}
      data-columns={columns.length}
      data-last={data.columns.last[columns.length - 1]}
      data-top={TOP}
      data-cells-px={CELLS_PX}
      data-scale={data.scale}
      data-max-density={data.max_density}
      data-min-density={data.min_density}
      data-low={data.edges[0]}
      data-high={data.edges[data.edges.length - 1]}
    >
      <canvas class="kymo-axis" ref={axis} />
      <div class="kymo-plot dots" ref={plot} style={{ width: `${width}px`, height: `${HEIGHT}px` }}>
        <canvas ref={canvas} data-kymo />
        <canvas ref={lines} />
        {domain && <CursorLines domain={domain} />}
        <div class="brush" ref={brush} />
      </div>
      <Section data={data} />
      <Tip content={tip.value} />
    </div>
  );
}

/** The ends of the axis, and how what is shown was made. */
function Foot({ data, width }: { data: Kymograph; width: number }) {
  const app = useApp();
  const domain = app.domain.value;
  if (!domain) return null;
  const clock = app.clock.value;
  const at = (step: number) => (clock ? clockWords(clock, clockAt(clock, step)) : count(step));
  const brightest = `brightest: density ${number(data.max_density)}`;
  const words = [...beyondNote(data), ...data.notes, brightest].join(" · ");
  return (
    <div class="kymo-foot" style={{ width: `${width}px` }}>
      <span class="number">{at(domain.from)}</span>
      <span class="cut" title={words}>
        {words}
      </span>
      <span class="number">{at(domain.to - domain.cadence)}</span>
    </div>
  );
}

/** What is in no cell: not finite on top, zeros at the bottom, and a line where values lie beyond. */
function drawStrips(
  c: CanvasRenderingContext2D,
  data: Kymograph,
  x: ReturnType<typeof mapColumns>,
  width: number,
  ratio: number,
  tokens: Tokens,
): void {
  const bottom = HEIGHT - STRIP;
  c.fillStyle = tokens.hover;
  c.fillRect(0, 0, width, STRIP);
  c.fillRect(0, bottom, width, STRIP);
  for (let p = 0; p < x.from.length; p++) {
    let [bad, zeros, above, below] = [0, 0, 0, 0];
    for (let i = x.from[p]; i < x.to[p]; i++) {
      const beyond = outside(data, i);
      bad = Math.max(bad, nonfiniteShare(data, i));
      zeros = Math.max(zeros, zeroShare(data, i));
      above = Math.max(above, beyond.above);
      below = Math.max(below, beyond.below);
    }
    c.fillStyle = tokens.warn;
    if (above > BEYOND) c.fillRect(p / ratio, STRIP, 1 / ratio, GAP);
    if (below > BEYOND) c.fillRect(p / ratio, TOP + CELLS_PX, 1 / ratio, GAP);
    if (bad > 0) {
      c.fillStyle = p % 6 < 2 ? tokens.hatch : tokens.nonfinite;
      c.fillRect(p / ratio, 0, 1 / ratio, STRIP);
    }
    if (zeros > 0) {
      c.globalAlpha = 0.2 + 0.8 * zeros;
      c.fillStyle = tokens.zeros;
      c.fillRect(p / ratio, bottom, 1 / ratio, STRIP);
      c.globalAlpha = 1;
    }
  }
}

/** The line at zero, and percentiles: the middle solid, the ends dashed. */
function drawLines(
  c: CanvasRenderingContext2D,
  data: Kymograph,
  { start, end }: ReturnType<typeof spans>,
  domain: { from: number; to: number },
  width: number,
): void {
  const y = (v: number) => TOP + (1 - placeOnEdges(data.edges, data.scale, v)) * CELLS_PX;
  const isSigned = !isMagnitude(data.scale);
  c.lineWidth = 1;
  if (isSigned && data.has_zero) {
    c.strokeStyle = "#ffffff99";
    c.setLineDash([3, 3]);
    c.beginPath();
    c.moveTo(0, Math.round(y(0)) + 0.5);
    c.lineTo(width, Math.round(y(0)) + 0.5);
    c.stroke();
  }
  const px = (step: number) => ((step - domain.from) / (domain.to - domain.from || 1)) * width;
  for (const [values, dash] of [
    [data.p1, [2, 2]],
    [data.p99, [2, 2]],
    [data.p50, []],
  ] as const) {
    for (const [colour, wide] of [
      ["#00000055", 2],
      ["#ffffffc0", 1],
    ] as const) {
      c.setLineDash([...dash]);
      c.strokeStyle = colour;
      c.lineWidth = wide;
      c.beginPath();
      let isOn = false;
      for (let i = 0; i < values.length; i++) {
        if (!Number.isFinite(values[i])) {
          isOn = false;
          continue;
        }
        const [a, b, at] = [px(start[i]), px(end[i]), y(values[i])];
        if (b < -50 || a > width + 50) continue;
        const middle = (a + b) / 2;
        if (isOn) c.lineTo(middle, at);
        else c.moveTo(middle, at);
        isOn = true;
      }
      c.stroke();
    }
  }
  c.setLineDash([]);
}

/** The section at the cursor: bars to the right, on the same axis. */
function Section({ data }: { data: Kymograph }) {
  const app = useApp();
  const canvas = useRef<HTMLCanvasElement>(null);
  const latest = useSignal(data);
  latest.value = data;
  useSignalEffect(() => {
    const step = app.hover.value ?? app.cursor.value;
    const k = latest.value;
    const { tokens: now } = app.theme.value;
    const surface = prepare(canvas.current, SECTION, HEIGHT);
    if (!surface || step === null) return;
    const c = nearestColumn(k.columns.first, step);
    if (c < 0) return;
    const cells = k.edges.length - 1;
    const { context } = surface;
    const reach = bars(k, c);
    context.fillStyle = now.border;
    context.fillRect(0, TOP, 1, CELLS_PX);
    context.fillStyle = now.signal;
    const tall = CELLS_PX / cells;
    context.beginPath(); // one outline: single bars of broken height would leave seams
    context.moveTo(1, TOP + CELLS_PX);
    for (let i = 0; i < cells; i++) {
      const x = 1 + (reach[i] > 0 ? Math.max(1, reach[i] * (SECTION - 6)) : 0);
      context.lineTo(x, TOP + (cells - i) * tall);
      context.lineTo(x, TOP + (cells - 1 - i) * tall);
    }
    context.lineTo(1, TOP);
    context.fill();
    context.font = `12px ${FONT}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const bad = nonfiniteShare(k, c);
    const zeros = zeroShare(k, c);
    if (bad > 0) {
      context.fillStyle = now.bad;
      context.fillText(`${share(bad)} bad`, 3, STRIP);
    }
    if (zeros > 0) {
      context.fillStyle = now.text3;
      context.fillText(`${share(zeros)} zero`, 3, HEIGHT - STRIP);
    }
  });
  return <canvas class="kymo-section" ref={canvas} aria-hidden="true" />;
}

/** Numbers at the cursor. */
function Numbers({ data }: { data: Kymograph }) {
  const app = useApp();
  const step = app.hover.value ?? app.cursor.value;
  const c = step === null ? -1 : nearestColumn(data.columns.first, step);
  if (c < 0) return null;
  const bad = data.nans[c] + data.pos_infs[c] + data.neg_infs[c];
  return (
    <dl class="kymo-numbers" data-step={data.columns.first[c]}>
      <div>
        <dt>min</dt>
        <dd>{number(data.low[c])}</dd>
      </div>
      <div>
        <dt>max</dt>
        <dd>{number(data.high[c])}</dd>
      </div>
      <div>
        <dt>rms</dt>
        <dd>{number(data.rms[c])}</dd>
      </div>
      {bad > 0 && (
        <div class="bad">
          <dt>bad</dt>
          <dd>{count(bad)}</dd>
        </div>
      )}
    </dl>
  );
}

/** What lies under the pointer: a cell with its count, or a strip. */
function describe(k: Kymograph, c: number, y: number): Omit<TipContent, "x" | "y"> {
  const cells = k.edges.length - 1;
  const title = steps(k.columns.first[c], k.columns.last[c]);
  const total = k.total[c];
  const rows: [string, string][] = [];
  if (y < TOP) {
    rows.push(
      ["NaN", count(k.nans[c])],
      ["+∞", count(k.pos_infs[c])],
      ["−∞", count(k.neg_infs[c])],
    );
  } else if (y > TOP + CELLS_PX) {
    rows.push(["zeros", `${count(k.zeros[c])} (${share(zeroShare(k, c))})`]);
  } else {
    const i = cellAt(cells, 1 - (y - TOP) / CELLS_PX);
    const counted = k.counts[c * cells + i];
    const ends = `${number(k.edges[i])} … ${number(k.edges[i + 1])}`;
    rows.push([isMagnitude(k.scale) ? "|values|" : "values", ends]);
    rows.push([
      "count",
      `${count(Math.round(counted))} (${share(total > 0 ? counted / total : 0)})`,
    ]);
    rows.push(["density", number(k.density[c * cells + i])]);
    rows.push(["p1 · p50 · p99", `${number(k.p1[c])} · ${number(k.p50[c])} · ${number(k.p99[c])}`]);
    rows.push(["mean · rms", `${number(k.mean[c])} · ${number(k.rms[c])}`]);
    if (k.below[c] > 0) rows.push(["below the axis", count(Math.round(k.below[c]))]);
    if (k.above[c] > 0) rows.push(["above the axis", count(Math.round(k.above[c]))]);
  }
  return { title, note: `${count(total)} values`, rows };
}
