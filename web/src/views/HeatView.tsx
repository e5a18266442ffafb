/** A heatmap of layers by steps: drawn by the engine in core/heat, read by pointer and by keys. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { EMPTY, type Heat, NONFINITE } from "../api.gen";
import { useApp, useCommand, useSize } from "../app/hooks";
import { togglePin } from "../app/pins";
import { mapColumns, mapRows, nearestColumn, placeOf, spans, stepAt } from "../core/columns";
import { count, kind as kindLabel, number, share, steps } from "../core/format";
import { classify, palette, rowMedian } from "../core/heat";
import { colourScale, stepTicks } from "../core/scales";
import { FONT, horizontalTicks, label, paintPlane, prepare } from "./canvas";
import { HeatLegend } from "./HeatLegend";
import { CursorLines } from "./LineChart";
import { useTimePointer } from "./pointer";
import { Tip, type TipContent } from "./Tip";

const GROUP_PX = 88;
const LETTER_PX = 6;
const AXIS = 20;
const RIGHT = 10;
const LABEL_PX = 11;

interface Props {
  heat: Heat;
  /** Rows in the order to draw them in; indices into `heat.rows`. */
  order: readonly number[];
  /** Least height of a row: when they do not all fit, the rows scroll. */
  least: number;
  most: number;
  isStale: boolean;
  onPick: (row: number, step: number) => void;
}

export function HeatView({ heat, order, least, most, isStale, onPick }: Props) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const labels = useRef<HTMLCanvasElement>(null);
  const plot = useRef<HTMLDivElement>(null);
  const brush = useRef<HTMLDivElement>(null);
  const size = useSize(box);
  const scrollTop = useSignal(0);
  const hovered = useSignal(-1);
  const focused = useSignal(-1);
  const tip = useSignal<TipContent | null>(null);

  const { map, colour } = app.state.value;
  const { isDark, tokens } = app.theme.value;
  const domain = app.domain.value;
  const rows = order.length;
  const height = Math.max(0, size.height - AXIS);
  const gutter = useMemo(() => gutterOf(heat, size.width), [heat.rows, size.width]);
  const width = Math.max(0, size.width - gutter - RIGHT);
  const rowHeight = Math.min(most, Math.max(least, rows ? height / rows : 0));
  const drawn = Math.min(height, rows * rowHeight);
  const isScrolled = rows * rowHeight > height + 0.5;

  const scale = useMemo(
    () => colourScale(heat.limits, heat.is_signed, colour),
    [heat.limits, heat.is_signed, colour],
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
    const y = mapRows(rows, Math.round(drawn * ratio), rowHeight * ratio, scrollTop.value * ratio);
    paintPlane(surface, { classes, rows, columns: wide }, x, y, colours);
  }, [classes, colours, extents, domain, width, drawn, rowHeight, scrollTop.value]);

  useLayoutEffect(() => {
    const surface = prepare(labels.current, size.width, size.height);
    if (!surface || !domain) return;
    const { context } = surface;
    drawLabels(context, heat, order, {
      gutter,
      rowHeight,
      top: -scrollTop.value,
      height: drawn,
      hovered: hovered.value >= 0 ? hovered.value : focused.value,
      text: tokens.text,
      dim: tokens.text3,
      line: tokens.border,
    });
    context.fillStyle = tokens.text3;
    context.font = `11px ${FONT}`;
    const ticks = stepTicks(domain.from, domain.to - domain.cadence, Math.max(2, width / 90));
    horizontalTicks(context, ticks, (s) => placeOf(s, domain), gutter, width, drawn + 5, count);
  }, [
    heat,
    order,
    domain,
    size,
    drawn,
    rowHeight,
    scrollTop.value,
    hovered.value,
    focused.value,
    tokens,
  ]);

  const rowAt = (y: number) =>
    Math.max(0, Math.min(rows - 1, Math.floor((y * drawn + scrollTop.peek()) / rowHeight)));
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
      const r = rowAt(at.y);
      hovered.value = r;
      const c = nearestColumn(heat.columns.first, stepAt(at.x, domain));
      const words = describe(heat, order[r], c);
      app.status.value = `${words.title} · ${words.rows.map(([k, v]) => `${k} ${v}`).join(" · ")}`;
      tip.value =
        app.state.peek().crosshair === "values" ? { ...words, x: at.clientX, y: at.clientY } : null;
    },
    onClick: ({ y, step }) => {
      focused.value = rowAt(y);
      if (step !== null) onPick(order[rowAt(y)], step);
    },
  });

  const say = (r: number) => {
    if (r < 0 || r >= rows || wide === 0) return;
    const c = nearestColumn(heat.columns.first, app.cursor.peek() ?? 0);
    const words = describe(heat, order[r], c);
    app.status.value = `${words.title} · ${words.rows.map(([k, v]) => `${k} ${v}`).join(" · ")}`;
  };
  const move = (by: number) => {
    focused.value = Math.max(0, Math.min(rows - 1, focused.peek() + by));
    const element = box.current!;
    const top = focused.peek() * rowHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + drawn)
      element.scrollTop = top + rowHeight - drawn;
    say(focused.peek());
  };
  useCommand("rowDown", () => move(1));
  useCommand("rowUp", () => move(-1));
  useCommand("open", () => {
    const step = app.cursor.peek();
    if (focused.peek() >= 0 && step !== null) onPick(order[focused.peek()], step);
  });
  useCommand("pin", () => {
    const row = heat.rows[order[hovered.peek() >= 0 ? hovered.peek() : focused.peek()]];
    if (row) togglePin(app, { node: row.node, module: row.module });
    else app.say("Choose a row first, with the pointer or ↑ ↓.");
  });
  // The row of the cell that is open is the one that is marked.
  const { site } = app.state.value;
  useEffect(() => {
    focused.value = site === null ? -1 : order.findIndex((r) => heat.rows[r].site === site);
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
        tabIndex={0}
        data-heat
        data-rows={rows}
        data-row-height={rowHeight}
        data-columns={wide}
        onScroll={(e) => {
          scrollTop.value = e.currentTarget.scrollTop;
        }}
      >
        <div
          class="heat-space"
          style={{ height: `${isScrolled ? rows * rowHeight + AXIS : size.height}px` }}
        >
          <div class="heat-view" style={{ height: `${size.height}px` }}>
            <canvas class="heat-labels" ref={labels} aria-hidden="true" />
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
function gutterOf(heat: Heat, width: number): number {
  const longest = heat.rows.reduce((n, row) => Math.max(n, rowLabel(heat, row).length), 0);
  const wish = GROUP_PX + 24 + LETTER_PX * longest;
  return Math.round(Math.max(150, Math.min(wish, 290, Math.max(196, width * 0.3))));
}

interface LabelLook {
  gutter: number;
  rowHeight: number;
  top: number;
  height: number;
  hovered: number;
  text: string;
  dim: string;
  line: string;
}

/** Row labels: groups by their common path, rows by their end; the one under the pointer in full. */
function drawLabels(
  context: CanvasRenderingContext2D,
  heat: Heat,
  order: readonly number[],
  look: LabelLook,
): void {
  const { gutter, rowHeight, top, height, hovered } = look;
  const isSorted = order.every((r, i) => r === i);
  context.save();
  context.beginPath();
  context.rect(0, 0, gutter, height);
  context.clip();
  context.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(LABEL_PX / rowHeight));
  const middle = (i: number) => top + (i + 0.5) * rowHeight;
  let lastGroup = -Infinity;
  if (isSorted) {
    for (const group of heat.groups) {
      const y = top + group.start * rowHeight;
      context.fillStyle = look.line;
      context.fillRect(0, Math.round(y), gutter, 1);
      if (group.length * rowHeight < LABEL_PX || y - lastGroup < LABEL_PX + 1) continue;
      lastGroup = y;
      context.font = `500 11px ${FONT}`;
      context.fillStyle = look.text;
      context.textAlign = "left";
      label(
        context,
        group.label,
        8,
        Math.max(y, Math.min(0, y + (group.length - 1) * rowHeight)) + Math.max(rowHeight / 2, 7),
        GROUP_PX - 4,
      );
    }
  }
  context.textAlign = "right";
  context.font = `11px ${FONT}`;
  for (let i = 0; i < order.length; i++) {
    const y = middle(i);
    if (y < -8 || y > height + 8) continue;
    if (i % every !== 0 || Math.abs(i - hovered) * rowHeight < LABEL_PX) continue;
    context.fillStyle = look.dim;
    const row = heat.rows[order[i]];
    label(
      context,
      isSorted ? rowLabel(heat, row) : rowTitle(row),
      gutter - 8,
      y,
      isSorted ? gutter - GROUP_PX - 12 : gutter - 16,
    );
  }
  if (hovered >= 0 && hovered < order.length) {
    context.font = `500 11px ${FONT}`;
    context.fillStyle = look.text;
    const row = heat.rows[order[hovered]];
    label(
      context,
      isSorted ? rowLabel(heat, row) : rowTitle(row),
      gutter - 8,
      Math.max(7, Math.min(height - 7, middle(hovered))),
      isSorted ? gutter - GROUP_PX - 8 : gutter - 16,
    );
  }
  context.restore();
}

/** A row inside of its group: without what the group's own label says. */
function rowLabel(heat: Heat, row: Heat["rows"][number]): string {
  const { path: group } = heat.groups[row.group] ?? { path: "" };
  if (!group || !row.path.startsWith(group) || row.count > 1) return row.label;
  const rest = row.path.slice(group.length).replace(/^\./, "");
  return `${rest}${slotWord(row) ? ` ${slotWord(row)}` : ""}`.trim() || row.label;
}

function rowTitle(row: Heat["rows"][number]): string {
  return `${row.path || "model"}${slotWord(row) ? ` ${slotWord(row)}` : ""}`;
}

/** The first output of a call needs no name. */
function slotWord(row: Heat["rows"][number]): string {
  const call = row.call > 0 ? ` #${row.call + 1}` : "";
  return `${row.slot === "0" ? "" : row.slot}${call}`;
}

/** What a cell says: its row, its steps, its value and how it compares with the row. */
function describe(heat: Heat, r: number, c: number): Omit<TipContent, "x" | "y"> {
  const row = heat.rows[r];
  const wide = heat.columns.first.length;
  const at = r * wide + c;
  const value = heat.values[at];
  const rows: [string, string][] = [];
  rows.push(["at", steps(heat.columns.first[c], heat.columns.last[c])]);
  const name = heat.metric ?? `${heat.stat}`.replace(/_/g, " ");
  if (heat.flags[at] === EMPTY) rows.push([name, "not recorded"]);
  else {
    if (heat.flags[at] === NONFINITE) rows.push(["holds", "NaN or infinite values"]);
    rows.push([
      heat.columns.steps[c] > 1 ? `${name}, ${aggregateWord(heat)}` : name,
      number(value),
    ]);
    const median = rowMedian(heat.values, heat.flags, r * wide, wide);
    if (median > 0 && Number.isFinite(value))
      rows.push(["of its median", `${number(value / median)}×`]);
  }
  if (row.count > 1) rows.push(["tensors in this row", count(row.count)]);
  return {
    title: rowTitle(row),
    note: heat.kind ? kindLabel(heat.kind) : "",
    rows,
  };
}

function aggregateWord(heat: Heat): string {
  return {
    max_abs: "largest magnitude",
    max: "largest",
    min: "smallest",
    mean: "mean",
    last: "last",
  }[heat.aggregate];
}

/** A row's change between the first and the last quarter of the window, for sorting. */
export function rowOrder(heat: Heat, by: "module" | "max" | "change"): number[] {
  const wide = heat.columns.first.length;
  const order = heat.rows.map((_, i) => i);
  if (by === "module" || wide === 0) return order;
  const quarter = Math.max(1, wide >> 2);
  const score = (r: number) => {
    const at = r * wide;
    for (let c = 0; c < wide; c++) if (heat.flags[at + c] === NONFINITE) return Infinity;
    if (by === "max") {
      let most = -Infinity;
      for (let c = 0; c < wide; c++)
        if (Number.isFinite(heat.values[at + c]))
          most = Math.max(most, Math.abs(heat.values[at + c]));
      return most;
    }
    const before = Math.abs(rowMedian(heat.values, heat.flags, at, quarter));
    const after = Math.abs(rowMedian(heat.values, heat.flags, at + wide - quarter, quarter));
    return before > 0 && after > 0 ? Math.abs(Math.log2(after / before)) : -1;
  };
  const scores = order.map(score);
  return order.sort((a, b) => scores[b] - scores[a] || a - b);
}

export function clippedWords(heat: Heat): string {
  const { low_share: low, high_share: high } = heat.limits;
  return [low > 0 ? `${share(low)} below` : "", high > 0 ? `${share(high)} above` : ""]
    .filter(Boolean)
    .join(", ");
}
