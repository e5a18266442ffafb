/** One level of the graph as SVG: boxes to choose, open, pin and drag; arrows with shapes on hover. */

import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { type GraphLevel, type LevelNode, NONFINITE, type Tint } from "../api.gen";
import { put } from "../app/app";
import { useApp, useCommand, useSize } from "../app/hooks";
import { freeLetter, letterOf, MOST_PINS, pin, togglePin, unpin } from "../app/pins";
import { bytes, count, kind as kindLabel, shape, value as shown } from "../core/format";
import { palette } from "../core/heat";
import { edgeWidth, fitted, type Layout, layoutLevel, type Route, smooth } from "../core/layout";
import { type ColourScale, colourScale } from "../core/scales";
import { type Limits, tintLimits } from "../core/tint";
import { followDrag } from "./drag";
import { GraphNode, nodeSize } from "./GraphNode";
import { Ramp } from "./HeatLegend";
import { MiniMap } from "./MiniMap";
import { Tip, type TipContent } from "./Tip";

interface Props {
  level: GraphLevel;
  tint: Tint | null;
  isStale: boolean;
}

export interface ViewBox {
  x: number;
  y: number;
  k: number;
}

const LEAST_ZOOM = 0.08;
const MOST_ZOOM = 3;

export function GraphView({ level, tint, isStale }: Props) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const world = useRef<SVGGElement>(null);
  const size = useSize(box);
  const view = useSignal<ViewBox>({ x: 0, y: 0, k: 1 });
  const tip = useSignal<TipContent | null>(null);
  const chosen = useSignal<ReadonlyMap<string, number>>(new Map());
  const { direction, on, pins } = app.state.value;
  const hasTint = tint !== null;
  const layout = useMemo(
    () =>
      layoutLevel(level.nodes, level.edges, (n) => nodeSize(n, hasTint), direction, level.has_flow),
    [level, direction, hasTint],
  );
  const ordered = useMemo(() => inReadingOrder(level, layout), [level, layout]);
  const isFollowing = app.state.value.isFollowing && app.runStatus.value === "live";
  const limits = useTintLimits(tint, isFollowing && app.state.value.step === null);
  const scale = useMemo(
    () => (limits ? colourScale(limits, limits.low !== null && limits.low < 0, "auto") : null),
    [limits],
  );
  const tints = useMemo(() => new Map((tint?.nodes ?? []).map((n) => [n.id, n])), [tint]);

  useSignalEffect(() => {
    const { x, y, k } = view.value;
    world.current?.setAttribute(
      "transform",
      `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${k.toFixed(4)})`,
    );
  });
  // A level is shown whole where its words can still be read, else from its beginning.
  // It is shown so again when there is more or less room, unless it was moved since.
  const shown = useRef("");
  const first = useRef<ViewBox | null>(null);
  useLayoutEffect(() => {
    if (size.width < 10 || size.height < 10) return;
    const key = `${level.node} ${direction} ${layout.width}x${layout.height}`;
    if (shown.current === key && view.peek() !== first.current) return;
    shown.current = key;
    first.current = firstView(layout, size);
    view.value = first.current;
  }, [layout, size.width, size.height]);

  const instanceOf = (node: LevelNode) => {
    const i = chosen.value.get(node.id) ?? 0;
    return node.count > 1 && node.instances[i]
      ? node.instances[i]
      : { node: node.node, module: node.module, label: node.label };
  };
  const thing = (node: LevelNode) => ({
    node: instanceOf(node).node ?? node.node,
    module: instanceOf(node).module,
  });
  const nodeOf = (call: string | null) =>
    call === null
      ? undefined
      : level.nodes.find((n) => n.node === call || n.instances.some((i) => i.node === call));
  const selected = nodeOf(on);
  const open = (node: LevelNode) => {
    if (node.can_open) app.set({ at: thing(node).node, on: null }, true);
    else if (node.kind === "module") app.say("This module calls no other module.");
  };
  const choose = (node: LevelNode) => app.set({ on: thing(node).node });
  const zoomAt = (factor: number, x: number, y: number) => {
    const { x: vx, y: vy, k } = view.peek();
    const next = Math.max(LEAST_ZOOM, Math.min(MOST_ZOOM, k * factor));
    view.value = { x: x - ((x - vx) * next) / k, y: y - ((y - vy) * next) / k, k: next };
  };
  const move = (by: number) => {
    const at = selected ? ordered.indexOf(selected) : -1;
    const next = ordered[Math.max(0, Math.min(ordered.length - 1, at + by))];
    if (!next) return;
    choose(next);
    reveal(next);
  };
  const reveal = (node: LevelNode) => {
    const at = layout.boxes.get(node.id);
    if (!at) return;
    const { x, y, k } = view.peek();
    const left = at.x * k + x;
    const top = at.y * k + y;
    const dx = left < 12 ? 12 - left : Math.min(0, size.width - 12 - (left + at.width * k));
    const dy = top < 12 ? 12 - top : Math.min(0, size.height - 12 - (top + at.height * k));
    if (dx || dy) view.value = { x: x + dx, y: y + dy, k };
  };
  useCommand("rowDown", () => move(1));
  useCommand("rowUp", () => move(-1));
  useCommand("open", () => selected && open(selected));
  useCommand("fit", () => put(view, firstView(layout, size, true)));
  useCommand("graphIn", () => zoomAt(1.25, size.width / 2, size.height / 2));
  useCommand("graphOut", () => zoomAt(0.8, size.width / 2, size.height / 2));
  useCommand("pin", () =>
    selected
      ? togglePin(app, thing(selected))
      : app.say("Choose a module first: click it, or ↑ ↓."),
  );
  useCommand("unpin", () => {
    const letter = (selected && letterOf(pins, thing(selected))) ?? pins[pins.length - 1]?.letter;
    if (letter) unpin(app, letter);
  });
  useCommand("pinAll", () => {
    for (const one of selected?.instances ?? []) {
      if (freeLetter(app.state.peek().pins) === null) {
        app.say(`${MOST_PINS} panels are open; there are ${selected!.count} instances.`);
        break;
      }
      pin(app, { node: one.node, module: one.module });
    }
  });
  useEffect(() => {
    if (selected) reveal(selected);
  }, [on, layout]);
  usePanAndZoom(box, view, zoomAt);

  const isFocusable = (node: LevelNode) => (selected ? node === selected : node === ordered[0]);
  return (
    <div
      class={`graph ${isStale ? "stale" : ""}`}
      ref={box}
      data-graph
      data-level={level.node}
      data-grid={layout.isGrid ? "" : undefined}
    >
      <svg
        width={size.width}
        height={size.height}
        role="tree"
        aria-label={`Graph of ${level.path || level.type || "the model"}`}
      >
        <g ref={world}>
          <g aria-hidden="true">
            {layout.routes.map((route) => (
              <Edge
                key={`${route.edge.source} ${route.edge.target}`}
                route={route}
                passes={level.passes}
                level={level}
                direction={direction}
                tip={(t) => put(tip, t)}
                isNear={
                  selected !== undefined &&
                  (route.edge.source === selected.id || route.edge.target === selected.id)
                }
              />
            ))}
          </g>
          {ordered.map((node) => (
            <GraphNode
              key={node.id}
              node={node}
              box={layout.boxes.get(node.id)!}
              tint={tint}
              value={tints.get(node.id) ?? null}
              scale={scale}
              instance={instanceOf(node).label}
              instanceAt={chosen.value.get(node.id) ?? 0}
              isSelected={node === selected}
              isFocusable={isFocusable(node)}
              letters={pins
                .filter(
                  (p) =>
                    p.node !== undefined &&
                    (p.node === node.node || node.instances.some((i) => i.node === p.node)),
                )
                .map((p) => p.letter)}
              hasPinInside={pins.some((p) => isInside(p.node, node))}
              onChoose={() => choose(node)}
              onOpen={() => open(node)}
              onPin={() => togglePin(app, thing(node))}
              onUnfold={() =>
                node.group && app.set({ unfold: [...app.state.peek().unfold, node.group] }, true)
              }
              onStep={(by) => {
                const next = Math.max(
                  0,
                  Math.min(node.instances.length - 1, (chosen.peek().get(node.id) ?? 0) + by),
                );
                chosen.value = new Map(chosen.peek()).set(node.id, next);
                app.set({ on: node.instances[next].node });
              }}
              onDrag={(e) =>
                followDrag(app, e, instanceOf(node).label, thing(node), () => {
                  tip.value = null;
                })
              }
              onHover={(e) => {
                if (app.dragged.peek()) return;
                app.status.value = e ? `${node.path || node.label} · ${node.type}` : "";
                tip.value = e
                  ? { ...describe(node, tint, tints), ...besideBox(e.currentTarget as Element) }
                  : null;
              }}
            />
          ))}
        </g>
      </svg>
      <MiniMap layout={layout} view={view} size={size} />
      {tint && scale && <TintLegend tint={tint} scale={scale} />}
      {layout.isGrid && (
        <p class="graph-note top">Too many boxes for arrows: fold repeats, or open one.</p>
      )}
      <Tip content={tip.value} />
    </div>
  );
}

/** The limits of the colours: of this answer; while following, of all since it began. */
function useTintLimits(tint: Tint | null, isHeld: boolean): Limits | null {
  const held = useRef<{ key: string; limits: Limits } | null>(null);
  return useMemo(() => {
    if (!tint) return null;
    const key = [tint.node, tint.kind, tint.stat, tint.metric].join("\n");
    const before = isHeld && held.current?.key === key ? held.current.limits : null;
    held.current = { key, limits: tintLimits(tint.limits, before) };
    return held.current.limits;
  }, [tint, isHeld]);
}

/** What the colours of the boxes mean. */
function TintLegend({ tint, scale }: { tint: Tint; scale: ColourScale }) {
  const app = useApp();
  const { map } = app.state.value;
  const { isDark, tokens } = app.theme.value;
  const colours = useMemo(
    () => palette(map, scale.kind === "signed", isDark, tokens.nonfinite, tokens.hatch),
    [map, scale.kind, isDark],
  );
  const title = tint.metric ?? `${tint.label} of ${kindLabel(tint.kind ?? "")}`;
  return (
    <div class="legend graph-legend" data-tint-legend>
      <span class="legend-title">{title}</span>
      <Ramp
        colours={colours}
        low={shown(scale.low, tint.format)}
        high={shown(scale.high, tint.format)}
      />
      {tint.nodes.some((n) => n.flag === NONFINITE) && (
        <span class="legend-key">
          <i class="swatch nonfinite" /> NaN or infinite
        </span>
      )}
    </div>
  );
}

/** What the legend at the bottom covers. */
const LEGEND_PX = 40;

function firstView(
  layout: Layout,
  box: { width: number; height: number },
  isWhole = false,
): ViewBox {
  const size = { width: box.width, height: Math.max(box.height - LEGEND_PX, 80) };
  const whole = fitted(layout, size);
  if (isWhole || whole.k >= 0.6) return whole;
  const k = 0.85;
  const x = layout.width * k < size.width - 48 ? (size.width - layout.width * k) / 2 : 24;
  const y = layout.height * k < size.height - 48 ? (size.height - layout.height * k) / 2 : 24;
  return { x, y, k };
}

/** Whether a pinned node lies below a box of this level: it then carries a flag. */
function isInside(pinned: string | undefined, node: LevelNode): boolean {
  if (pinned === undefined || node.kind !== "module") return false;
  return [node.module, ...node.instances.map((i) => i.module)].some(
    (m) => m !== "." && pinned.startsWith(`${m}.`),
  );
}

function inReadingOrder(level: GraphLevel, layout: Layout): LevelNode[] {
  const at = (n: LevelNode) => layout.boxes.get(n.id)!;
  return [...level.nodes].sort((a, b) => at(a).y - at(b).y || at(a).x - at(b).x);
}

interface EdgeProps {
  route: Route;
  passes: number;
  level: GraphLevel;
  direction: "TB" | "LR";
  isNear: boolean;
  tip: (content: TipContent | null) => void;
}

function Edge({ route, passes, level, isNear, tip }: EdgeProps) {
  const { edge, points } = route;
  const d = useMemo(() => smooth(points), [points]);
  const head = useMemo(() => arrowHead(points), [points]);
  const label = (id: string) => level.nodes.find((n) => n.id === id)?.label ?? "";
  const isSeldom = edge.count < passes;
  const onMove = (e: PointerEvent) =>
    tip({
      title: `${label(edge.source)} → ${label(edge.target)}`,
      rows: [
        ...(edge.label ? [["shape", edge.label] as const] : []),
        ...(edge.bytes === null ? [] : [["size", bytes(edge.bytes)] as const]),
        [
          "seen in",
          isSeldom ? `${count(edge.count)} of ${count(passes)} passes` : "every pass",
        ] as const,
      ],
      x: e.clientX,
      y: e.clientY,
    });
  return (
    <g
      class={`edge ${isSeldom ? "seldom" : ""} ${isNear ? "near" : ""}`}
      data-edge={`${edge.source} ${edge.target}`}
    >
      <path class="edge-line" d={d} stroke-width={edgeWidth(edge.bytes)} />
      <path class="edge-head" d={head} />
      <path class="edge-hit" d={d} onPointerMove={onMove} onPointerLeave={() => tip(null)} />
    </g>
  );
}

function arrowHead(points: readonly { x: number; y: number }[]): string {
  const [a, b] = [points[points.length - 2], points[points.length - 1]];
  const angle = Math.atan2(b.y - a.y, b.x - a.x);
  const corner = (turn: number, far: number) =>
    `${(b.x + far * Math.cos(angle + turn)).toFixed(1)} ${(b.y + far * Math.sin(angle + turn)).toFixed(1)}`;
  return `M${corner(0, 0.5)}L${corner(2.7, 8)}L${corner(-2.7, 8)}Z`;
}

/** Where the tip of a box stands: at its right, so that the boxes around it can be seen. */
function besideBox(node: Element): { x: number; y: number } {
  const { right, top } = node.querySelector(".node-box")!.getBoundingClientRect();
  return { x: right - 8, y: top - 14 };
}

/** The tip of a box: shapes and dtypes, what its `extra_repr` says, the chosen number. */
function describe(
  node: LevelNode,
  tint: Tint | null,
  tints: ReadonlyMap<string, Tint["nodes"][number]>,
): Omit<TipContent, "x" | "y"> {
  const rows: [string, string][] = [];
  for (const port of node.inputs.slice(0, 8))
    rows.push([`in ${port.slot}`, `${shape(port.shape)} ${port.dtype}`]);
  for (const port of node.outputs.slice(0, 8))
    rows.push([`out ${port.slot}`, `${shape(port.shape)} ${port.dtype}`]);
  const plain = node.facts.filter((f) => !f.label).map((f) => f.value);
  if (plain.length) rows.push(["arguments", plain.join(", ")]);
  for (const fact of node.facts) if (fact.label) rows.push([fact.label, fact.value]);
  if (node.parameters > 0) rows.push(["parameters", count(node.parameters)]);
  if (node.count > 1)
    rows.push([
      "alike",
      `${count(node.count)}, ${{ none: "not connected", chain: "one after the other", parallel: "side by side", mixed: "mixed" }[node.flow]}`,
    ]);
  if (node.calls > 1) rows.push(["call", `#${node.call} of ${node.calls}`]);
  const value = tints.get(node.id);
  if (tint && value && value.value !== null) {
    const name = tint.metric ?? `${kindLabel(tint.kind ?? "")} ${tint.label}`;
    rows.push([
      value.is_inside ? `${name}, largest inside` : name,
      shown(value.value, tint.format),
    ]);
    if (value.sites > 1)
      rows.push([
        "over all",
        [value.low, value.median, value.high].map((v) => shown(v, tint.format)).join(" … "),
      ]);
  }
  return { title: node.path || node.label, note: node.type || node.kind, rows };
}

/** Drag the ground to move, turn the wheel to zoom. */
function usePanAndZoom(
  box: { current: HTMLDivElement | null },
  view: { value: ViewBox; peek(): ViewBox },
  zoomAt: (factor: number, x: number, y: number) => void,
): void {
  const latest = useRef(zoomAt);
  latest.current = zoomAt;
  useEffect(() => {
    const element = box.current!;
    const ended = new AbortController();
    const { signal } = ended;
    element.addEventListener(
      "wheel",
      (e) => {
        e.preventDefault();
        const { left, top } = element.getBoundingClientRect();
        if (e.shiftKey) {
          const { x, y, k } = view.peek();
          view.value = { x: x - (e.deltaX || e.deltaY), y, k };
        } else {
          const by = Math.max(-80, Math.min(80, e.deltaY));
          latest.current(Math.exp(-by * 0.004), e.clientX - left, e.clientY - top);
        }
      },
      { signal, passive: false },
    );
    element.addEventListener(
      "pointerdown",
      (e) => {
        if (e.button !== 0 || (e.target as Element).closest("[data-node], .minimap")) return;
        const from = { ...view.peek(), px: e.clientX, py: e.clientY };
        const moved = new AbortController();
        element.setPointerCapture(e.pointerId);
        element.classList.add("panning");
        element.addEventListener(
          "pointermove",
          (m) => {
            view.value = {
              x: from.x + m.clientX - from.px,
              y: from.y + m.clientY - from.py,
              k: from.k,
            };
          },
          { signal: moved.signal },
        );
        const stop = () => {
          moved.abort();
          element.classList.remove("panning");
        };
        element.addEventListener("lostpointercapture", stop, { signal: moved.signal });
      },
      { signal },
    );
    return () => ended.abort();
  }, []);
}
