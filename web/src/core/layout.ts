/** Where the boxes of a level of the graph go. Only places: nothing here draws. */

import { layout as dagre, Graph } from "@dagrejs/dagre";
import type { LevelEdge, LevelNode } from "../api.gen";

export interface Box {
  id: string;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Route {
  edge: LevelEdge;
  points: readonly { x: number; y: number }[];
}

export interface Layout {
  boxes: ReadonlyMap<string, Box>;
  routes: readonly Route[];
  width: number;
  height: number;
  /** True when there were too many boxes for the flow to be laid out. */
  isGrid: boolean;
}

export type Size = (node: LevelNode) => { width: number; height: number };

/** Beyond this, laying out the flow takes seconds; boxes then stand in order, without arrows. */
const MOST_NODES = 400;
const MOST_EDGES = 1200;
const GAP = 28;

export function layoutLevel(
  nodes: readonly LevelNode[],
  edges: readonly LevelEdge[],
  size: Size,
  direction: "TB" | "LR",
  hasFlow: boolean,
): Layout {
  const isTooBig = nodes.length > MOST_NODES || edges.length > MOST_EDGES;
  if (!hasFlow || isTooBig) return inOrder(nodes, size, direction, isTooBig);
  const graph = new Graph();
  graph.setGraph({
    rankdir: direction,
    nodesep: GAP,
    ranksep: 28,
    edgesep: 14,
    marginx: 8,
    marginy: 8,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  // Dagre keeps nodes in plain objects, where a module named `__proto__` is not a key: it gets
  // numbers in place of names.
  const keys = new Map(nodes.map((node, i) => [node.id, `n${i}`]));
  for (const [i, node] of nodes.entries()) graph.setNode(`n${i}`, { ...size(node) });
  const known = edges.flatMap((edge) => {
    const [source, target] = [keys.get(edge.source), keys.get(edge.target)];
    return source && target && source !== target ? [{ edge, source, target }] : [];
  });
  for (const { source, target } of known) graph.setEdge(source, target, { weight: 1 });
  dagre(graph);
  const boxes = new Map<string, Box>();
  for (const [i, node] of nodes.entries()) {
    const { x, y, width, height } = graph.node(`n${i}`) as Box;
    boxes.set(node.id, { id: node.id, x: x - width / 2, y: y - height / 2, width, height });
  }
  const routes = known.map(({ edge, source, target }) => ({
    edge,
    points: (graph.edge(source, target) as { points: Route["points"] }).points,
  }));
  const whole = graph.graph() as { width?: number; height?: number };
  return { boxes, routes, width: whole.width ?? 0, height: whole.height ?? 0, isGrid: false };
}

/** Boxes one after the other in lines, as words on a page. */
function inOrder(
  nodes: readonly LevelNode[],
  size: Size,
  direction: "TB" | "LR",
  isGrid: boolean,
): Layout {
  const perLine =
    direction === "TB" && nodes.length <= 40 ? 1 : Math.ceil(Math.sqrt(nodes.length * 1.6));
  const boxes = new Map<string, Box>();
  let [x, y, wide, lineHeight] = [8, 8, 0, 0];
  nodes.forEach((node, i) => {
    if (i > 0 && i % perLine === 0) {
      x = 8;
      y += lineHeight + GAP / 2;
      lineHeight = 0;
    }
    const { width, height } = size(node);
    boxes.set(node.id, { id: node.id, x, y, width, height });
    x += width + GAP / 2;
    wide = Math.max(wide, x);
    lineHeight = Math.max(lineHeight, height);
  });
  return { boxes, routes: [], width: wide, height: y + lineHeight + 8, isGrid };
}

/** A smooth line through the points of a route, as the `d` of a path. */
export function smooth(points: readonly { x: number; y: number }[]): string {
  if (points.length < 2) return "";
  const at = (p: { x: number; y: number }) => `${round(p.x)} ${round(p.y)}`;
  const middle = (a: { x: number; y: number }, b: { x: number; y: number }) => ({
    x: (a.x + b.x) / 2,
    y: (a.y + b.y) / 2,
  });
  let d = `M${at(points[0])}`;
  for (let i = 1; i < points.length - 1; i++) {
    d += `Q${at(points[i])} ${at(i === points.length - 2 ? points[i + 1] : middle(points[i], points[i + 1]))}`;
  }
  return points.length === 2 ? `${d}L${at(points[1])}` : d;
}

/** Width of an edge by the bytes that flow: 1.2 to 4 pixels, by their logarithm. */
export function edgeWidth(bytes: number | null): number {
  if (bytes === null || bytes <= 0) return 1.5;
  return Math.max(1.2, Math.min(4, 1.2 + (Math.log10(bytes) - 3) * 0.55));
}

/** The part of the graph that a view of this size shows when the graph fits into it. */
export function fitted(
  layout: { width: number; height: number },
  view: { width: number; height: number },
  margin = 24,
): { x: number; y: number; k: number } {
  const k = Math.min(
    1.25,
    Math.max(
      0.08,
      Math.min(
        (view.width - 2 * margin) / (layout.width || 1),
        (view.height - 2 * margin) / (layout.height || 1),
      ),
    ),
  );
  return { x: (view.width - layout.width * k) / 2, y: (view.height - layout.height * k) / 2, k };
}

function round(v: number): number {
  return Math.round(v * 10) / 10;
}
