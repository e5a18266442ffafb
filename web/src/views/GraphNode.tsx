/** A box of the graph: name, type, shape; the chosen number as colour, value and small line. */

import { useMemo } from "preact/hooks";
import type { LevelNode, NodeTint, Tint } from "../api.gen";
import { useApp } from "../app/hooks";
import { number, shape, tail } from "../core/format";
import type { Box } from "../core/layout";
import { css, diverging, inkOn, parseHex, sequential } from "../core/lut";
import { type ColourScale, place } from "../core/scales";
import { boxValue, sparkOf } from "../core/tint";
import { pinColour } from "../core/tokens";
import { sparkPath } from "./Spark";

const WIDTH = 196;
const SMALL = 132;

export function nodeSize(node: LevelNode, hasTint: boolean): { width: number; height: number } {
  if (node.kind !== "module") return { width: SMALL, height: 34 };
  const height = 42 + (hasTint ? 24 : 0) + (node.count > 1 ? 20 : 0);
  return { width: WIDTH, height };
}

interface Props {
  node: LevelNode;
  box: Box;
  tint: Tint | null;
  value: NodeTint | null;
  scale: ColourScale | null;
  instance: string;
  instanceAt: number;
  isSelected: boolean;
  isFocusable: boolean;
  letters: readonly string[];
  hasPinInside: boolean;
  onChoose: () => void;
  onOpen: () => void;
  onPin: () => void;
  onUnfold: () => void;
  onStep: (by: number) => void;
  onDrag: (event: PointerEvent) => void;
  onHover: (event: PointerEvent | null) => void;
}

export function GraphNode(props: Props) {
  const { node, box, letters, isSelected } = props;
  const app = useApp();
  const { isDark } = app.theme.value;
  const isModule = node.kind === "module";
  const ring = letters.length ? pinColour(letters[0], isDark) : undefined;
  const bottom = box.height;
  return (
    <g
      class={`node ${node.kind} ${isSelected ? "selected" : ""} ${node.can_open ? "openable" : ""}`}
      transform={`translate(${box.x} ${box.y})`}
      role="treeitem"
      tabIndex={props.isFocusable ? 0 : -1}
      aria-level={1}
      aria-selected={isSelected}
      aria-expanded={node.can_open ? false : undefined}
      data-node={node.id}
      data-label={node.label}
      onClick={props.onChoose}
      onDblClick={props.onOpen}
      onFocus={(e) => {
        if (e.currentTarget.matches(":focus-visible")) props.onChoose();
      }}
      onPointerDown={props.onDrag}
      onPointerMove={props.onHover}
      onPointerLeave={() => props.onHover(null)}
    >
      {node.count > 1 && (
        <>
          <rect class="node-back" x={6} y={6} width={box.width} height={bottom} rx={7} />
          <rect class="node-back" x={3} y={3} width={box.width} height={bottom} rx={7} />
        </>
      )}
      <rect
        class="node-box"
        width={box.width}
        height={bottom}
        rx={isModule ? 7 : bottom / 2}
        style={ring ? { stroke: ring, strokeWidth: "2.5" } : undefined}
      />
      {isModule ? (
        <ModuleInside {...props} />
      ) : (
        <TensorInside node={node} width={box.width} height={bottom} />
      )}
      {props.hasPinInside && letters.length === 0 && (
        <path
          class="inside-flag"
          d={`M${box.width - (node.can_open ? 36 : 16)} 0v11l4-3 4 3v-11Z`}
        />
      )}
      {letters.map((letter, i) => (
        <g key={letter} transform={`translate(${box.width - 12 - i * 20} -7)`} class="node-letter">
          <rect width={18} height={16} rx={4} fill={pinColour(letter, isDark)} />
          <text x={9} y={12} style={{ fill: inkOn(parseHex(pinColour(letter, isDark))) }}>
            {letter}
          </text>
        </g>
      ))}
    </g>
  );
}

function TensorInside({ node, width, height }: { node: LevelNode; width: number; height: number }) {
  const port = node.outputs[0] ?? node.inputs[0];
  return (
    <>
      <text
        class="node-name small"
        x={width / 2}
        y={height / 2 - (port ? 2 : -4)}
        text-anchor="middle"
      >
        {node.kind === "attach" ? `◇ ${node.label}` : node.label}
      </text>
      {port && (
        <text class="node-type" x={width / 2} y={height / 2 + 11} text-anchor="middle">
          {shape(port.shape)}
        </text>
      )}
    </>
  );
}

function ModuleInside({
  node,
  box,
  tint,
  value,
  scale,
  instance,
  instanceAt,
  onOpen,
  onPin,
  onUnfold,
  onStep,
}: Props) {
  const out = node.outputs[0];
  const right = node.can_open ? 30 : 8;
  const label = node.count > 1 && instanceAt > 0 ? instance : node.label;
  return (
    <>
      {tint && scale && <TintMark tint={tint} value={value} scale={scale} height={box.height} />}
      <text class="node-name" x={16} y={18}>
        {cut(label, box.width - 18 - right - 22, 6.5)}
      </text>
      <text class="node-type" x={16} y={33}>
        {cut(`${node.type}${out ? ` · ${shape(out.shape)}` : ""}`, box.width - 26, 6.4)}
      </text>
      {tint && <TintLine tint={tint} value={value} width={box.width} />}
      {node.count > 1 && (
        <Alike
          node={node}
          at={instanceAt}
          y={box.height - 18}
          width={box.width}
          onStep={onStep}
          onUnfold={onUnfold}
        />
      )}
      <g class="node-tools">
        <NodeButton
          x={box.width - (node.can_open ? 50 : 26)}
          label={`Pin ${node.label}`}
          mark="pin"
          onClick={onPin}
          path="M8 2v5M5 7h6M8 7v5M6 2h4"
        />
        {node.can_open && (
          <NodeButton
            x={box.width - 26}
            label={`Open ${node.label}`}
            mark="open"
            onClick={onOpen}
            path="M5 3l5 5-5 5"
            isAlways
          />
        )}
      </g>
    </>
  );
}

interface NodeButtonProps {
  x: number;
  label: string;
  mark: string;
  path: string;
  isAlways?: boolean;
  onClick: () => void;
}

/** A button inside a box. The keyboard has its own ways, so it is not a stop of the Tab key. */
function NodeButton({ x, label, mark, path, isAlways = false, onClick }: NodeButtonProps) {
  return (
    <g
      class={`node-button ${isAlways ? "always" : ""}`}
      transform={`translate(${x} 2)`}
      aria-hidden="true"
      data-button={mark}
      onPointerDown={(e) => e.stopPropagation()}
      onDblClick={(e) => e.stopPropagation()}
      onClick={(e) => {
        e.stopPropagation();
        onClick();
      }}
    >
      <title>{label}</title>
      <rect width={24} height={24} rx={5} />
      <path d={path} transform="translate(4 4)" />
    </g>
  );
}

/** The colour of the number: a stripe at the left and a breath of it over the box. */
function TintMark({
  tint,
  value,
  scale,
  height,
}: {
  tint: Tint;
  value: NodeTint | null;
  scale: ColourScale;
  height: number;
}) {
  const app = useApp();
  const { map } = app.state.value;
  const { isDark, tokens } = app.theme.value;
  if (!value) return null;
  const { value: now, isBad } = boxValue(tint, value, app.hover.value);
  if (!isBad && Number.isNaN(now)) return null;
  const i = Math.round(255 * place(scale, now));
  const colour = isBad
    ? tokens.nonfinite
    : css(scale.kind === "signed" ? diverging(i, isDark) : sequential(map, i));
  return (
    <>
      <path
        class="tint-wash"
        d={`M7 0H${WIDTH - 7}a7 7 0 0 1 7 7V${height - 7}a7 7 0 0 1 -7 7H7a7 7 0 0 1 -7 -7V7a7 7 0 0 1 7 -7Z`}
        fill={colour}
      />
      <path
        class="tint-stripe"
        d={`M7 0H8V${height}H7a7 7 0 0 1 -7 -7V7a7 7 0 0 1 7 -7Z`}
        fill={colour}
        data-tint={colour}
      />
    </>
  );
}

function TintLine({ tint, value, width }: { tint: Tint; value: NodeTint | null; width: number }) {
  const app = useApp();
  const spark = useMemo(() => (value ? sparkOf(tint, value) : null), [tint, value]);
  const { value: now, isBad } = value
    ? boxValue(tint, value, app.hover.value)
    : { value: Number.NaN, isBad: false };
  const words = isBad ? "not finite" : `${value?.is_inside ? "≤ " : ""}${number(now)}`;
  const room = width - 38 - 7 * Math.max(words.length, 7);
  const paths = useMemo(
    () => (spark ? sparkPath(tint.columns.first, spark.y, spark.flags, room, 16) : null),
    [spark, room],
  );
  if (!value || (value.value === null && value.row < 0)) {
    return (
      <text class="node-type faint" x={16} y={55}>
        {value?.why || "not recorded"}
      </text>
    );
  }
  return (
    <>
      {paths && (
        <g transform="translate(16 43)">
          <path class="spark-line" d={paths.path} />
          {paths.bad && <path class="spark-bad" d={paths.bad} />}
        </g>
      )}
      <text class={`node-value ${isBad ? "bad" : ""}`} x={width - 10} y={56} text-anchor="end">
        {words}
      </text>
    </>
  );
}

/** The line of a ×N box: which one is meant, one on, one back, unfold. */
function Alike({
  node,
  at,
  y,
  width,
  onStep,
  onUnfold,
}: {
  node: LevelNode;
  at: number;
  y: number;
  width: number;
  onStep: (by: number) => void;
  onUnfold: () => void;
}) {
  const stop = (perform: () => void) => (e: Event) => {
    e.stopPropagation();
    perform();
  };
  const hold = (e: Event) => e.stopPropagation();
  return (
    <g class="alike" transform={`translate(0 ${y})`}>
      <path class="alike-rule" d={`M8 -3H${width}`} />
      <g
        class="alike-button"
        data-button="back"
        onPointerDown={hold}
        onDblClick={hold}
        onClick={stop(() => onStep(-1))}
      >
        <rect x={10} y={-3} width={22} height={20} rx={4} />
        <path d="M23 3l-4 4 4 4" />
      </g>
      <text x={54} y={11} text-anchor="middle" class="node-type">
        {cut(indexOf(node, at), 44, 6)}
      </text>
      <g
        class="alike-button"
        data-button="on"
        onPointerDown={hold}
        onDblClick={hold}
        onClick={stop(() => onStep(1))}
      >
        <rect x={76} y={-3} width={22} height={20} rx={4} />
        <path d="M85 3l4 4-4 4" />
      </g>
      <g
        class="alike-button"
        data-button="unfold"
        onPointerDown={hold}
        onDblClick={hold}
        onClick={stop(onUnfold)}
      >
        <title>Show all {node.count} one by one</title>
        <rect x={width - 50} y={-3} width={44} height={20} rx={4} />
        <text x={width - 28} y={11} text-anchor="middle" class="times-text">
          ×{node.count}
        </text>
      </g>
    </g>
  );
}

/** Which of the alike ones: its own number, as the tree and the address have it. */
function indexOf(node: LevelNode, at: number): string {
  const label = node.instances[at]?.label ?? "";
  const areCalls = node.instances.every((one) => one.module === node.module);
  if (areCalls) return /#\d+$/.exec(label)?.[0] ?? "#0";
  return /\[(\d+)\]/.exec(label)?.[1] ?? (label || String(at));
}

/** Cuts a text to about as many pixels; letters are about so wide. */
function cut(text: string, most: number, letter: number): string {
  const n = Math.floor(most / letter);
  if (text.length <= n) return text;
  const end = tail(text, 1);
  return end.length <= n && end !== text ? end : `${text.slice(0, Math.max(1, n - 1))}…`;
}
