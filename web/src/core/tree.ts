/** The module tree as the lines that are to be seen: what is open, and which instance of a ×N. */

import type { Tree, TreeNode } from "../api.gen";

export interface TreeLine {
  node: TreeNode;
  /** Unique among the lines. */
  id: string;
  level: number;
  isOpen: boolean;
  canOpen: boolean;
  /** Which of the instances of a ×N is shown; 0 is the first. */
  instance: number;
}

export interface TreeView {
  /** Lines opened by hand; all others are closed, but for those nearest to the top. */
  opened: ReadonlyMap<string, boolean>;
  /** For a ×N line the instance shown. */
  chosen: ReadonlyMap<string, number>;
  /** Trees below other instances than the first, by module id. */
  insides: ReadonlyMap<string, Tree>;
}

/** How deep the tree is open until it is touched, as long as it stays short. */
const OPEN_LEVELS = 3;
const OPEN_LINES = 60;

export function visibleLines(tree: Tree, view: TreeView): TreeLine[] {
  const openLevels = tree.nodes.length <= OPEN_LINES ? OPEN_LEVELS : 2;
  const lines: TreeLine[] = [];
  const walk = (children: Children, parent: number, level: number, prefix: string) => {
    for (const [i, node] of children.get(parent) ?? []) {
      const id = `${prefix}${node.module}`;
      const canOpen = node.children > 0;
      const isOpen = canOpen && (view.opened.get(id) ?? level < openLevels - 1);
      const wanted = view.chosen.get(id) ?? 0;
      const instance = node.count > 1 ? Math.min(wanted, node.instances.length - 1) : 0;
      lines.push({ node, id, level, isOpen, canOpen, instance });
      if (!isOpen) continue;
      const inside = instance > 0 ? view.insides.get(node.instances[instance].module) : undefined;
      if (inside) walk(childrenOf(inside), 0, level + 1, `${id}@${instance}/`);
      else if (instance === 0) walk(children, i, level + 1, prefix);
    }
  };
  walk(childrenOf(tree), -1, 0, "");
  return lines;
}

type Children = Map<number, [number, TreeNode][]>;

function childrenOf(tree: Tree): Children {
  const children: Children = new Map();
  tree.nodes.forEach((node, i) => {
    const list = children.get(node.parent);
    if (list) list.push([i, node]);
    else children.set(node.parent, [[i, node]]);
  });
  return children;
}

/** Insides that are needed but not there yet: modules of instances that are open. */
export function missingInsides(lines: readonly TreeLine[], view: TreeView): string[] {
  return lines
    .filter((l) => l.isOpen && l.instance > 0)
    .map((l) => l.node.instances[l.instance].module)
    .filter((module) => !view.insides.has(module));
}

/** The lines to draw of a long list: from `first` to `last` (excluded), with a few to spare. */
export function slice(
  count: number,
  rowHeight: number,
  scrollTop: number,
  height: number,
): { first: number; last: number } {
  const first = Math.max(0, Math.floor(scrollTop / rowHeight) - 4);
  return { first, last: Math.min(count, Math.ceil((scrollTop + height) / rowHeight) + 4) };
}
