/** A traced variable at the cursor: its values as a heatmap, and the line of source they come from. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Matrix, SiteRef, Variable } from "../api.gen";
import { useApp, useOnScreen, useQuery, useSettled, useSize } from "../app/hooks";
import { setCursor } from "../app/time";
import { mapRows } from "../core/columns";
import { count, number, shape } from "../core/format";
import { classify, palette } from "../core/heat";
import { colourScale } from "../core/scales";
import {
  type Cell,
  cellUnder,
  cellWords,
  moved,
  ordinal,
  place,
  type Size,
  sizeOf,
} from "../core/variable";
import { ChartMenu } from "./ChartMenu";
import { Button } from "./Controls";
import { paintPlane, prepare } from "./canvas";
import { Ramp } from "./HeatLegend";
import { Tip, type TipContent } from "./Tip";
import { Words } from "./Words";

const MOST_PX = 200;
const PADDING = 8;
const GUTTER = 42;

export function VariableView({ run, site }: { run: string; site: SiteRef }) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const isOn = useOnScreen(box);
  const { width } = useSize(box);
  const item = useSignal(0);
  const nth = useSignal<number | null>(null);
  const { phase, rank } = app.state.value;
  const step = useSettled(app.cursor.value, 160);
  const question = {
    run,
    site: site.id,
    ...(phase ? { phase } : {}),
    ...(rank === null ? {} : { rank }),
    ...(step === null ? {} : { step }),
    ...(nth.value === null ? {} : { nth: nth.value }),
    ...(item.value ? { item: item.value } : {}),
  };
  const { data, error, isLoading } = useQuery("variable", step === null ? null : question, {
    isActive: isOn,
    everyMs: 1000,
  }).value;
  useEffect(() => {
    nth.value = null; // which of several values it was says nothing of another step
  }, [data?.step]);
  return (
    <div class="variable" ref={box} data-variable={site.name} data-step={data?.step ?? ""}>
      {error && !data && (
        <p class="hint">
          <Words text={error.message} />
        </p>
      )}
      {data && (
        <div class={isLoading ? "stale" : ""}>
          <div class="corner-top">
            <ChartMenu of={box} name={site.name} figure={null} />
          </div>
          <Head
            data={data}
            onItem={(n) => {
              item.value = n;
            }}
            onNth={(n) => {
              nth.value = n;
            }}
          />
          {data.matrix && data.matrix.items > 0 && (
            <Heatmap
              data={data}
              matrix={data.matrix}
              width={width - 2 * PADDING - GUTTER}
              label={`Values of ${site.name} at step ${count(data.step)}`}
            />
          )}
          {data.text && <pre class="variable-text">{data.text}</pre>}
          {data.notes.length > 0 && <p class="variable-notes">{data.notes.join(" · ")}</p>}
          {data.lines.length > 0 && <Source data={data} />}
        </div>
      )}
    </div>
  );
}

interface HeadProps {
  data: Variable;
  onItem: (item: number) => void;
  onNth: (nth: number) => void;
}

/** When the value was kept and what it is, and the ways to others. */
function Head({ data, onItem, onNth }: HeadProps) {
  const app = useApp();
  const { matrix, previous, next, nth, of } = data;
  return (
    <div class="variable-head">
      <Stepper
        what="kept value"
        text={data.step === null ? "no value" : `step ${count(data.step)}`}
        back={previous === null ? null : () => setCursor(app, previous)}
        on={next === null ? null : () => setCursor(app, next)}
      />
      {of > 1 && (
        <Stepper
          what="value in this step"
          text={`value ${ordinal(nth, of)}`}
          back={nth > 0 ? () => onNth(nth - 1) : null}
          on={nth < of - 1 ? () => onNth(nth + 1) : null}
        />
      )}
      {matrix && matrix.items > 1 && (
        <Stepper
          what="matrix"
          text={place(matrix.index, data.shape!.length)}
          title={ordinal(matrix.item, matrix.items)}
          back={matrix.item > 0 ? () => onItem(matrix.item - 1) : null}
          on={matrix.item < matrix.items - 1 ? () => onItem(matrix.item + 1) : null}
        />
      )}
      <span class="dim">
        {[
          data.shape && `${data.dtype} ${shape(data.shape)}`,
          data.site.call > 0 && `call #${data.site.call}`,
        ]
          .filter(Boolean)
          .join(" · ")}
      </span>
    </div>
  );
}

interface StepperProps {
  what: string;
  text: string;
  title?: string;
  back: (() => void) | null;
  on: (() => void) | null;
}

function Stepper({ what, text, title, back, on }: StepperProps) {
  return (
    <span class="stepper" role="group" aria-label={what}>
      <Button
        icon="left"
        label={`Previous ${what}`}
        isQuiet
        disabled={!back}
        onClick={() => back?.()}
      />
      <span class="number" title={title}>
        {text}
      </span>
      <Button icon="right" label={`Next ${what}`} isQuiet disabled={!on} onClick={() => on?.()} />
    </span>
  );
}

interface HeatmapProps {
  data: Variable;
  matrix: Matrix;
  width: number;
  label: string;
}

function Heatmap({ data, matrix, width, label }: HeatmapProps) {
  const app = useApp();
  const canvas = useRef<HTMLCanvasElement>(null);
  const tip = useSignal<TipContent | null>(null);
  const marked = useSignal<Cell | null>(null);
  const { map, colour } = app.state.value;
  const { isDark, tokens } = app.theme.value;
  const { rows, columns } = matrix;
  const dims = data.shape!.length;
  const size = sizeOf(rows, columns, width, MOST_PX);
  const scale = useMemo(
    () => colourScale(matrix.limits, matrix.is_signed, colour),
    [matrix, colour],
  );
  const colours = useMemo(
    () => palette(map, scale.kind === "signed", isDark, tokens.nonfinite, tokens.hatch),
    [map, scale.kind, isDark],
  );
  const classes = useMemo(() => classify(matrix.values, matrix.flags, scale), [matrix, scale]);
  useLayoutEffect(() => {
    const surface = prepare(canvas.current, size.width, size.height);
    if (!surface) return;
    const x = mapRows(columns, Math.round(size.width * surface.ratio));
    const y = mapRows(rows, Math.round(size.height * surface.ratio));
    paintPlane(surface, { classes, rows, columns }, x, y, colours);
  }, [classes, colours, size.width, size.height]);

  const say = (cell: Cell | null) => {
    const words = cell && cellWords(matrix, dims, cell);
    app.status.value = words
      ? `${words.title} · ${words.rows.map(([k, v]) => `${k} ${v}`).join(" · ")}`
      : "";
    return words;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = moved(matrix, marked.peek() ?? { row: 0, column: 0 }, event.key);
    if (!to) return;
    event.preventDefault(); // here arrows move from cell to cell, not from step to step
    marked.value = marked.peek() ? to : { row: 0, column: 0 };
    say(marked.peek());
  };
  const onPointerMove = (event: PointerEvent) => {
    const at = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - at.left, event.clientY - at.top];
    const words = say(cellUnder(matrix, x / at.width, y / at.height))!;
    const { clientX, clientY } = event;
    tip.value =
      app.state.peek().crosshair === "values" ? { ...words, x: clientX, y: clientY } : null;
  };
  const bad = matrix.not_finite > 0;
  return (
    <>
      <div
        class="variable-plot dots"
        role="application"
        aria-roledescription="heatmap"
        aria-label={`${label}: ${count(rows)} by ${count(columns)} cells. Arrow keys move.`}
        tabIndex={0}
        style={{ width: `${size.width}px`, height: `${size.height}px` }}
        onKeyDown={onKeyDown}
        onFocus={() => say(marked.peek())}
        onBlur={() => {
          marked.value = null;
          say(null);
        }}
        onPointerMove={onPointerMove}
        onPointerLeave={() => {
          tip.value = null;
          say(marked.peek());
        }}
      >
        <canvas
          ref={canvas}
          aria-hidden="true"
          data-matrix
          data-rows={rows}
          data-columns={columns}
        />
        {marked.value && <Mark cell={marked.value} matrix={matrix} size={size} />}
      </div>
      <div class="variable-legend">
        <Ramp
          colours={colours}
          low={number(scale.low)}
          high={number(scale.high)}
          below={matrix.limits.low_share}
          above={matrix.limits.high_share}
        />
        <span class="legend-key">
          <i class="swatch nonfinite" /> {bad ? "NaN or infinite" : "NaN or infinite: none"}
        </span>
      </div>
      <Tip content={tip.value} />
    </>
  );
}

function Mark({ cell, matrix, size }: { cell: Cell; matrix: Matrix; size: Size }) {
  const [wide, tall] = [size.width / matrix.columns, size.height / matrix.rows];
  return (
    <span
      class="cell-mark"
      style={{
        left: `${cell.column * wide}px`,
        top: `${cell.row * tall}px`,
        width: `${Math.max(3, wide)}px`,
        height: `${Math.max(3, tall)}px`,
      }}
    />
  );
}

/** The lines around the one that gave the value, which has an arrow. */
function Source({ data }: { data: Variable }) {
  return (
    <div class="source" role="group" aria-label={`Source of ${data.method}`}>
      {data.lines.map((line) => (
        <code
          key={line.number}
          class={line.is_here ? "here" : ""}
          data-line={line.number}
          aria-current={line.is_here ? "true" : undefined}
        >
          <span class="source-number">
            {line.is_here ? "▸ " : ""}
            {line.number}
          </span>
          <span>{line.text}</span>
        </code>
      ))}
    </div>
  );
}
