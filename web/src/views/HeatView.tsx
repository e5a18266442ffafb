/** A heatmap of layers by steps: drawn by the engine in core/heat, read by pointer and by keys. */

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Heat } from "../api.gen";
import { useApp, useCommand, useSize } from "../app/hooks";
import { togglePin } from "../app/pins";
import { timeTicks } from "../core/clock";
import { mapColumns, mapRows, nearestColumn, placeOf, spans, stepAt } from "../core/columns";
import { count } from "../core/format";
import { classify, palette } from "../core/heat";
import {
  FOLD_ROWS,
  type HeatLine,
  heatLines,
  lineOf,
  type PlacedLabel,
  placeLabels,
  rowPixels,
} from "../core/heatlines";
import { cutPath } from "../core/pathcut";
import { type ColourScale, colourScale } from "../core/scales";
import { FONT, horizontalTicks, paintPlane, prepare } from "./canvas";
import { HeatHeader, LABEL_PX, TWIST_PX } from "./HeatHeader";
import { HeatLegend } from "./HeatLegend";
import { describe, describeGroup, rowLabel, rowTitle } from "./heatwords";
import { CursorLines } from "./LineChart";
import { useTimePointer } from "./pointer";
import { Tip, type TipContent } from "./Tip";

const LETTER_PX = 6.4;
const AXIS = 20;
const RIGHT = 10;

/** What heatmaps side by side share: which groups are toggled, how far they are scrolled, the row. */
export interface HeatLink {
  toggled: Signal<ReadonlySet<string>>;
  scrollTop: Signal<number>;
  hovered: Signal<number>;
  focused: Signal<number>;
}

export function useHeatLink(): HeatLink {
  return {
    toggled: useSignal<ReadonlySet<string>>(new Set()),
    scrollTop: useSignal(0),
    hovered: useSignal(-1),
    focused: useSignal(-1),
  };
}

interface Props {
  heat: Heat;
  /** Rows in the order to draw them in; indices into `heat.rows`. */
  order: readonly number[];
  /** Least height of a row: when they do not all fit, the rows scroll. */
  least: number;
  most: number;
  isStale: boolean;
  onPick: (row: number, step: number) => void;
  /** Shared with the heatmaps beside this one. */
  link?: HeatLink;
  /** One of several: without labels, keys and a say in where the time axis lies. */
  isSecond?: boolean;
  /** Colours that another heatmap has too. */
  scale?: ColourScale;
  /** More to say about a cell. */
  more?: (row: number, column: number) => [string, string][];
}

export function HeatView({
  heat,
  order,
  least,
  most,
  isStale,
  onPick,
  link,
  isSecond = false,
  scale: given,
  more,
}: Props) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const labels = useRef<HTMLCanvasElement>(null);
  const plot = useRef<HTMLDivElement>(null);
  const brush = useRef<HTMLDivElement>(null);
  const size = useSize(box);
  const own = useHeatLink();
  const { toggled, scrollTop, hovered, focused } = link ?? own;
  const tip = useSignal<TipContent | null>(null);

  const { map, colour } = app.state.value;
  const { isDark, tokens } = app.theme.value;
  const domain = app.domain.value;
  const clock = app.clock.value;
  const rows = order.length;
  const isSorted = useMemo(() => order.every((r, i) => r === i), [order]);
  const groups = isSorted ? heat.groups : [];
  const lines = useMemo(() => {
    const areFolded = rows > FOLD_ROWS && groups.length > 1;
    return heatLines(groups, rows, (g) => areFolded !== toggled.value.has(groups[g].path));
  }, [groups, rows, toggled.value]);
  const toggle = (group: number) => {
    const paths = new Set(toggled.peek());
    if (!paths.delete(groups[group].path)) paths.add(groups[group].path);
    toggled.value = paths;
  };
  const height = Math.max(0, size.height - AXIS);
  const gutter = useMemo(
    () => (isSecond ? RIGHT : gutterOf(heat, isSorted, size.width)),
    [heat.rows, isSorted, size.width, isSecond],
  );
  const width = Math.max(0, size.width - gutter - RIGHT);
  // The timeline below stands on the same axis: a step is at the same place in both.
  useLayoutEffect(() => {
    const found = plot.current?.getBoundingClientRect();
    if (!found || width < 1 || isSecond || link) return;
    app.axis.value = { left: found.left, right: found.right };
    return () => {
      app.axis.value = null;
    };
  }, [width, gutter, size.width]);
  const rowHeight = Math.min(most, Math.max(least, lines.length ? height / lines.length : 0));
  const drawn = Math.min(height, lines.length * rowHeight);
  const isScrolled = lines.length * rowHeight > height + 0.5;
  const placed = useMemo(
    () => placeLabels(lines, rowHeight, scrollTop.value, drawn, LABEL_PX),
    [lines, rowHeight, scrollTop.value, drawn],
  );

  const scale = useMemo(
    () => given ?? colourScale(heat.limits, heat.is_signed, colour),
    [heat.limits, heat.is_signed, colour, given],
  );
  const colours = useMemo(
    () => palette(map, scale.kind === "signed", isDark, tokens.nonfinite, tokens.hatch),
    [map, scale.kind, isDark],
  );
  const wide = heat.columns.first.length;
  const classes = useMemo(() => {
    const all = classify(heat.values, heat.flags, scale);
    if (order.every((r, i) => r === i)) return all;
    const sorted = new Uint8Array(order.length * wide);
    for (const [i, r] of order.entries()) {
      sorted.set(all.subarray(r * wide, (r + 1) * wide), i * wide);
    }
    return sorted;
  }, [heat, scale, order]);
  const extents = useMemo(() => spans(heat.columns), [heat.columns]);

  useLayoutEffect(() => {
    if (!domain) return;
    const surface = prepare(canvas.current, width, drawn);
    if (!surface) return;
    const { ratio } = surface;
    const x = mapColumns(extents, domain, Math.round(width * ratio));
    const tall = Math.round(drawn * ratio);
    const y = mapRows(lines.length, tall, rowHeight * ratio, scrollTop.value * ratio);
    paintPlane(surface, { classes, rows, columns: wide }, x, rowPixels(lines, y), colours);
    surface.context.fillStyle = tokens.surface;
    for (const [i, line] of lines.entries()) {
      if (line.kind !== "header") continue;
      surface.context.fillRect(0, i * rowHeight - scrollTop.value, width, rowHeight);
    }
  }, [classes, lines, colours, extents, domain, width, drawn, rowHeight, scrollTop.value, tokens]);

  useLayoutEffect(() => {
    const surface = prepare(labels.current, size.width, size.height);
    if (!surface || !domain) return;
    const { context } = surface;
    drawLabels(context, heat, order, lines, isSecond ? [] : placed.rows, {
      gutter,
      rowHeight,
      top: -scrollTop.value,
      height: drawn,
      at: isSecond ? -1 : hovered.value >= 0 ? hovered.value : focused.value,
      text: tokens.text,
      dim: tokens.text3,
      headers: isSecond ? [] : placed.headers.map((h) => h.y),
    });
    context.fillStyle = tokens.text3;
    context.font = `12px ${FONT}`;
    const most = Math.max(2, width / 90);
    const ticks = timeTicks(clock, domain.from, domain.to - domain.cadence, most);
    horizontalTicks(context, ticks, (s) => placeOf(s, domain), gutter, width, drawn + 5);
  }, [
    heat,
    order,
    lines,
    placed,
    domain,
    size,
    drawn,
    rowHeight,
    hovered.value,
    focused.value,
    tokens,
    clock,
  ]);

  const lineAt = (y: number) =>
    Math.max(0, Math.min(lines.length - 1, Math.floor((y * drawn + scrollTop.peek()) / rowHeight)));
  const wordsOf = (i: number, c: number) => {
    if (lines[i].kind !== "row") return describeGroup(heat, lines[i].group, c);
    const row = order[lines[i].start];
    const words = describe(heat, row, c);
    return more ? { ...words, rows: [...words.rows, ...more(row, c)] } : words;
  };
  const pick = (i: number, step: number) => {
    const line = lines[i];
    if (line.kind === "row") onPick(order[line.start], step);
    else toggle(line.group);
  };
  const snap = (place: number) => {
    const c = domain ? nearestColumn(heat.columns.first, stepAt(place, domain)) : -1;
    return c < 0 ? null : heat.columns.first[c];
  };
  useTimePointer(plot, {
    snap,
    brush,
    isWheelFree: !isScrolled,
    onMove: (at) => {
      if (!at || !domain || wide === 0) {
        hovered.value = -1;
        tip.value = null;
        app.status.value = "";
        return;
      }
      const i = lineAt(at.y);
      hovered.value = i;
      const c = nearestColumn(heat.columns.first, stepAt(at.x, domain));
      const words = wordsOf(i, c);
      app.status.value = `${words.title} · ${words.rows.map(([k, v]) => `${k} ${v}`).join(" · ")}`;
      tip.value =
        app.state.peek().crosshair === "values" ? { ...words, x: at.clientX, y: at.clientY } : null;
    },
    onClick: ({ y, step }) => {
      focused.value = lineAt(y);
      if (step !== null) pick(lineAt(y), step);
    },
  });

  useLayoutEffect(() => {
    if (box.current && box.current.scrollTop !== scrollTop.value)
      box.current.scrollTop = scrollTop.value;
  }, [scrollTop.value]);

  const say = (i: number) => {
    if (i < 0 || i >= lines.length || wide === 0) return;
    const c = nearestColumn(heat.columns.first, app.cursor.peek() ?? 0);
    const words = wordsOf(i, c);
    app.status.value = `${words.title} · ${words.rows.map(([k, v]) => `${k} ${v}`).join(" · ")}`;
  };
  const move = (by: number) => {
    focused.value = Math.max(0, Math.min(lines.length - 1, focused.peek() + by));
    const element = box.current!;
    const top = focused.peek() * rowHeight;
    const seen = element.scrollTop;
    const to = Math.max(top + rowHeight - drawn, Math.min(top, seen));
    if (drawn > 0 && to !== seen) {
      element.scrollTop = to;
      scrollTop.value = element.scrollTop;
    }
    say(focused.peek());
    // What is open follows.
    const line = lines[focused.peek()];
    const next = line?.kind === "row" ? heat.rows[order[line.start]].site : null;
    const { site: isOpen } = app.state.peek();
    if (by !== 0 && isOpen !== null && next !== null && next !== isOpen) app.set({ site: next });
  };
  const isKeyed = !isSecond;
  useCommand("rowDown", () => move(1), isKeyed);
  useCommand("rowUp", () => move(-1), isKeyed);
  const openCell = () => {
    const step = app.cursor.peek();
    if (focused.peek() >= 0 && step !== null) pick(focused.peek(), step);
  };
  useCommand("open", openCell, isKeyed);
  const pinRow = () => {
    const line = lines[hovered.peek() >= 0 ? hovered.peek() : focused.peek()];
    const row = line?.kind === "row" ? heat.rows[order[line.start]] : null;
    if (row) togglePin(app, { node: row.node, module: row.module });
    else app.say("Choose a row first, with the pointer or ↑ ↓.");
  };
  useCommand("pin", pinRow, isKeyed);
  // The row of the cell that is open is the one that is marked.
  const { site } = app.state.value;
  useEffect(() => {
    if (isSecond) return;
    const row = site === null ? -1 : order.findIndex((r) => heat.rows[r].site === site);
    focused.value = row < 0 ? -1 : lineOf(lines, row);
    if (focused.peek() >= 0) move(0);
  }, [heat.kind, heat.metric, rows, site, drawn > 0]);

  const at = focused.value >= 0 ? focused.value : -1;
  return (
    <div class={`heat ${isStale ? "stale" : ""}`}>
      <div
        class={`heat-box ${isScrolled ? "scrolled" : ""}`}
        ref={box}
        role="application"
        aria-roledescription="heatmap"
        aria-label={`${heat.title}: ${count(rows)} rows by steps. Arrow keys move, Enter opens the cell.`}
        tabIndex={isSecond ? -1 : 0}
        data-heat
        data-rows={rows}
        data-lines={lines.length}
        data-row-height={rowHeight}
        data-columns={wide}
        onScroll={(e) => {
          scrollTop.value = e.currentTarget.scrollTop;
        }}
      >
        <div
          class="heat-space"
          style={{ height: `${isScrolled ? lines.length * rowHeight + AXIS : size.height}px` }}
        >
          <div class="heat-view" style={{ height: `${size.height}px` }}>
            <canvas class="heat-labels" ref={labels} aria-hidden="true" />
            {(isSecond ? [] : placed.headers).map(({ line, y }) => (
              <HeatHeader
                key={lines[line].group}
                label={groups[lines[line].group].label}
                count={groups[lines[line].group].length}
                isFolded={lines[line].kind === "folded"}
                y={y}
                width={gutter}
                onToggle={() => toggle(lines[line].group)}
              />
            ))}
            <div
              class="heat-plot dots"
              ref={plot}
              style={{ left: `${gutter}px`, width: `${width}px`, height: `${drawn}px` }}
            >
              <canvas ref={canvas} aria-hidden="true" />
              {at >= 0 && (
                <span
                  class="row-mark"
                  style={{
                    top: `${at * rowHeight - scrollTop.value}px`,
                    height: `${Math.max(2, rowHeight)}px`,
                  }}
                />
              )}
              {hovered.value >= 0 && (
                <span
                  class="row-hover"
                  style={{
                    top: `${hovered.value * rowHeight - scrollTop.value}px`,
                    height: `${Math.max(2, rowHeight)}px`,
                  }}
                />
              )}
              {domain && <CursorLines domain={domain} />}
              <div class="brush" ref={brush} />
            </div>
          </div>
        </div>
      </div>
      <HeatLegend heat={heat} scale={scale} colours={colours} />
      <Tip content={tip.value} />
    </div>
  );
}

/** Room for labels: as much as the longest takes, but no more than the plot can spare. */
function gutterOf(heat: Heat, isSorted: boolean, width: number): number {
  const longest = heat.rows.reduce(
    (n, row) => Math.max(n, (isSorted ? rowLabel(heat, row) : rowTitle(row)).length),
    isSorted ? heat.groups.reduce((n, g) => Math.max(n, g.label.length + 3), 0) : 0,
  );
  const wish = TWIST_PX + 20 + LETTER_PX * longest;
  return Math.round(Math.max(120, Math.min(wish, 300, Math.max(180, width * 0.3))));
}

interface LabelLook {
  gutter: number;
  rowHeight: number;
  top: number;
  height: number;
  /** The line under the pointer, or the one that keys have chosen; it is named in any case. */
  at: number;
  text: string;
  dim: string;
  /** Middles of the headers, which no label may lie under. */
  headers: readonly number[];
}

/** Labels of rows: in their group by what follows its path, else by their whole path. */
function drawLabels(
  context: CanvasRenderingContext2D,
  heat: Heat,
  order: readonly number[],
  lines: readonly HeatLine[],
  placed: readonly PlacedLabel[],
  look: LabelLook,
): void {
  const { gutter, rowHeight, top, height, at } = look;
  context.save();
  context.beginPath();
  context.rect(0, 0, gutter, height);
  context.clip();
  context.textBaseline = "middle";
  context.textAlign = "right";
  const chosen = lines[at]?.kind === "row" ? at : -1;
  const wish = Math.max(7, Math.min(height - 7, top + (chosen + 0.5) * rowHeight));
  const header = look.headers.find((y) => Math.abs(y - wish) < LABEL_PX);
  const here = header === undefined ? wish : header + LABEL_PX;
  const draw = (line: HeatLine, y: number) => {
    const row = heat.rows[order[line.start]];
    const isIn = line.group >= 0 && (heat.groups[line.group]?.length ?? 0) > 1;
    const text = isIn ? rowLabel(heat, row) : rowTitle(row);
    const most = gutter - (isIn ? TWIST_PX + 12 : 16);
    context.fillText(
      cutPath(text, (t) => context.measureText(t).width <= most),
      gutter - 8,
      y,
    );
  };
  context.font = `12px ${FONT}`;
  context.fillStyle = look.dim;
  for (const { line, y } of placed) {
    if (chosen >= 0 && Math.abs(y - here) < LABEL_PX) continue;
    draw(lines[line], y);
  }
  if (chosen >= 0) {
    context.font = `500 12px ${FONT}`;
    context.fillStyle = look.text;
    draw(lines[chosen], here);
  }
  context.restore();
}
