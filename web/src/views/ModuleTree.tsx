/** The module tree: only lines on screen are made; repeats are one line that can be stepped. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Hit, Tree } from "../api.gen";
import { useApp, useQuery, useSettled, useSize } from "../app/hooks";
import { letterOf, togglePin } from "../app/pins";
import { amount, count } from "../core/format";
import { pinColour } from "../core/tokens";
import { missingInsides, slice, type TreeLine, type TreeView, visibleLines } from "../core/tree";
import { Icon } from "./Controls";
import { Failed, Loading } from "./States";

const ROW = 24;
const MOST_HITS = 200;

export function ModuleTree() {
  const app = useApp();
  const run = app.run.value;
  const { data: tree, error } = useQuery("tree", run ? { run } : null, { everyMs: 5000 }).value;
  if (error && !tree) return <Failed error={error} what="The module tree" />;
  if (!tree) return <Loading what="modules" />;
  return <TreeList tree={tree} run={run!} key={run} />;
}

function TreeList({ tree, run }: { tree: Tree; run: string }) {
  const app = useApp();
  const opened = useSignal<TreeView["opened"]>(new Map());
  const chosen = useSignal<TreeView["chosen"]>(new Map());
  const insides = useSignal<TreeView["insides"]>(new Map());
  const filter = useSignal("");
  const focused = useSignal("");
  const scrollTop = useSignal(0);
  const box = useRef<HTMLDivElement>(null);
  const { height } = useSize(box);
  const view = { opened: opened.value, chosen: chosen.value, insides: insides.value };
  const all = useMemo(
    () => visibleLines(tree, view),
    [tree, opened.value, chosen.value, insides.value],
  );
  const words = useSettled(filter.value.trim(), 120);
  const { data: hits } = useQuery("search", words ? { run, q: words, limit: MOST_HITS } : null, {
    isFixed: true,
  }).value;
  const lines = useMemo(
    () => (filter.value.trim() ? (hits?.hits ?? []).map(lineOfHit) : all),
    [filter.value, hits, all],
  );
  useInsides(run, all, view, (module, inside) => {
    insides.value = new Map(insides.peek()).set(module, inside);
  });

  const { first, last } = slice(lines.length, ROW, scrollTop.value, height);
  const at = lines.findIndex((l) => l.id === focused.value);
  const reveal = (i: number) => {
    const element = box.current!;
    if (i * ROW < element.scrollTop) element.scrollTop = i * ROW;
    else if ((i + 1) * ROW > element.scrollTop + element.clientHeight)
      element.scrollTop = (i + 1) * ROW - element.clientHeight;
  };
  const focus = (i: number) => {
    const line = lines[Math.max(0, Math.min(lines.length - 1, i))];
    if (!line) return;
    focused.value = line.id;
    reveal(lines.indexOf(line));
  };
  useLayoutEffect(() => {
    // Keep the keyboard on the line when the list is made anew around it.
    const root = box.current!.getRootNode() as ShadowRoot;
    if (box.current!.contains(root.activeElement)) {
      box.current!.querySelector<HTMLElement>('[tabindex="0"]')?.focus({ preventScroll: true });
    }
  }, [focused.value, first]);
  const setOpen = (line: TreeLine, isOpen: boolean) => {
    opened.value = new Map(opened.peek()).set(line.id, isOpen);
  };
  const onKeyDown = (e: KeyboardEvent) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target instanceof HTMLSelectElement) return;
    const line = lines[at];
    const done = treeKey(e.key, line, {
      move: (by) => focus(at < 0 ? 0 : at + by),
      first: () => focus(0),
      last: () => focus(lines.length - 1),
      open: () => line && (line.canOpen && !line.isOpen ? setOpen(line, true) : focus(at + 1)),
      close: () => line && (line.isOpen ? setOpen(line, false) : focus(parentOf(lines, at))),
      go: () => line && go(app, line),
      pin: () => line && togglePin(app, thingOf(line)),
    });
    if (done) {
      e.preventDefault();
      e.stopPropagation();
    }
  };
  return (
    <div class="tree">
      <div class="tree-filter">
        <Icon name="filter" size={14} />
        <input
          type="search"
          placeholder="Filter modules"
          aria-label="Filter modules"
          value={filter.value}
          onInput={(e) => {
            filter.value = e.currentTarget.value;
          }}
        />
      </div>
      <div
        class="tree-list"
        ref={box}
        role="tree"
        aria-label="Modules"
        onScroll={(e) => {
          scrollTop.value = e.currentTarget.scrollTop;
        }}
        onKeyDown={onKeyDown}
      >
        <div class="tree-space" role="presentation" style={{ height: `${lines.length * ROW}px` }}>
          {lines.slice(first, last).map((line, i) => (
            <Line
              key={line.id}
              line={line}
              top={(first + i) * ROW}
              isFirst={line.id === focused.value || (at < 0 && first + i === 0)}
              place={first + i + 1}
              total={lines.length}
              onOpen={() => setOpen(line, !line.isOpen)}
              onGo={() => {
                focused.value = line.id;
                if (!go(app, line) && line.canOpen) setOpen(line, !line.isOpen);
              }}
              onChoose={(n) => {
                chosen.value = new Map(chosen.peek()).set(line.id, n);
                setOpen(line, true);
              }}
            />
          ))}
        </div>
        {lines.length === 0 && hits !== null && <p class="hint">No module matches.</p>}
        {filter.value.trim() && hits && hits.left_out > 0 && (
          <p class="hint">{count(hits.left_out)} more match.</p>
        )}
        {tree.left_out > 0 && (
          <p class="hint">{count(tree.left_out)} more modules: use the search.</p>
        )}
      </div>
    </div>
  );
}

interface LineProps {
  line: TreeLine;
  top: number;
  isFirst: boolean;
  place: number;
  total: number;
  onOpen: () => void;
  onGo: () => void;
  onChoose: (instance: number) => void;
}

function Line({ line, top, isFirst, place, total, onOpen, onGo, onChoose }: LineProps) {
  const app = useApp();
  const { node, level, isOpen, canOpen, instance } = line;
  const thing = thingOf(line);
  const letter = letterOf(app.state.value.pins, thing);
  const { at, on, under, page } = app.state.value;
  const isHere =
    page === "explore"
      ? thing.node !== null && (thing.node === on || (on === null && thing.node === at))
      : thing.module === under;
  return (
    <div
      class={`tree-line ${isHere ? "here" : ""}`}
      role="treeitem"
      tabIndex={isFirst ? 0 : -1}
      aria-level={level + 1}
      aria-expanded={canOpen ? isOpen : undefined}
      aria-selected={isHere}
      aria-posinset={place}
      aria-setsize={total}
      title={`${node.path || "the model"} · ${node.type}${node.parameters ? ` · ${count(node.parameters)} parameters` : ""}`}
      style={{ top: `${top}px`, paddingLeft: `${6 + level * 12}px` }}
      onClick={onGo}
    >
      <span
        class={`twist ${canOpen ? "" : "none"} ${isOpen ? "open" : ""}`}
        aria-hidden="true"
        onClick={(e) => {
          if (!canOpen) return;
          e.stopPropagation();
          onOpen();
        }}
      >
        {canOpen && <Icon name="right" size={12} />}
      </span>
      <span class="tree-name">
        {node.count > 1 && instance > 0 ? node.instances[instance].label : node.label}
      </span>
      {node.count > 1 && (
        <select
          class="times"
          tabIndex={-1}
          aria-label={`Which of the ${node.count}`}
          value={String(instance)}
          onClick={(e) => e.stopPropagation()}
          onChange={(e) => onChoose(Number(e.currentTarget.value))}
        >
          {node.instances.map((one, i) => (
            <option key={one.module} value={String(i)}>
              {i === instance ? `×${node.count}` : one.label}
            </option>
          ))}
        </select>
      )}
      <span class="tree-type">{node.type === node.label ? "" : node.type}</span>
      {letter && (
        <span class="letter" style={{ background: pinColour(letter, app.theme.value.isDark) }}>
          {letter}
        </span>
      )}
      {!letter && node.parameters > 0 && <span class="tree-size">{amount(node.parameters)}</span>}
    </div>
  );
}

/** What a line stands for: the instance chosen, where there are several. */
function thingOf(line: TreeLine): { node: string | null; module: string } {
  const { node, instance } = line;
  if (node.count > 1 && node.instances[instance]) {
    const { node: call, module } = node.instances[instance];
    return { node: call, module };
  }
  return { node: node.node, module: node.module };
}

/** Shows a line's module in the graph, or keeps the heatmap to it. False if there is nothing to show. */
function go(app: ReturnType<typeof useApp>, line: TreeLine): boolean {
  const { node, module } = thingOf(line);
  if (app.state.peek().page !== "explore") {
    const isSame = app.state.peek().under === module || module === ".";
    app.set({ under: isSame ? null : module }, true);
    return true;
  }
  if (node) app.focusNode(node, line.canOpen);
  return node !== null;
}

function parentOf(lines: readonly TreeLine[], at: number): number {
  for (let i = at - 1; i >= 0; i--) if (lines[i].level < lines[at].level) return i;
  return at;
}

interface TreeMoves {
  move(by: number): void;
  first(): void;
  last(): void;
  open(): void;
  close(): void;
  go(): void;
  pin(): void;
}

function treeKey(key: string, line: TreeLine | undefined, moves: TreeMoves): boolean {
  switch (key) {
    case "ArrowDown":
      moves.move(1);
      return true;
    case "ArrowUp":
      moves.move(-1);
      return true;
    case "Home":
      moves.first();
      return true;
    case "End":
      moves.last();
      return true;
    case "ArrowRight":
      moves.open();
      return line !== undefined;
    case "ArrowLeft":
      moves.close();
      return line !== undefined;
    case "Enter":
      moves.go();
      return line !== undefined;
    case "p":
      moves.pin();
      return line !== undefined;
    default:
      return false;
  }
}

/** A module that matches the filter, by its whole path. */
function lineOfHit({ module, node, path, type, kinds }: Hit): TreeLine {
  return {
    node: {
      ...{ module, node, path, type, kinds, label: path },
      ...{ parent: -1, depth: 0, count: 1, instances: [], children: 0, parameters: 0 },
    },
    id: module,
    level: 0,
    isOpen: false,
    canOpen: false,
    instance: 0,
  };
}

/** Fetches what is inside instances other than the first, once they are open. */
function useInsides(
  run: string,
  lines: readonly TreeLine[],
  view: TreeView,
  put: (module: string, tree: Tree) => void,
): void {
  const app = useApp();
  const asked = useRef(new Set<string>());
  const wanted = missingInsides(lines, view);
  useEffect(() => {
    for (const module of wanted) {
      if (asked.current.has(module)) continue;
      asked.current.add(module);
      app.ready.begin();
      app.client
        .ask("tree", { run, module }, new AbortController().signal)
        .then(({ spec }) => put(module, spec))
        .catch(() => asked.current.delete(module))
        .finally(() => app.ready.end());
    }
  }, [wanted.join()]);
}
