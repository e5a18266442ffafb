/** Search: modules, commands, runs. `/` finds modules alone. */

import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Hit } from "../api.gen";
import { useApp, useQuery, useSettled } from "../app/hooks";
import { perform } from "../app/keyboard";
import { pin } from "../app/pins";
import { count, kind as kindLabel } from "../core/format";
import { BINDINGS } from "../core/keys";

interface Entry {
  id: string;
  title: string;
  note: string;
  keys: string;
  go: () => void;
  /** Shift and Enter. */
  other?: () => void;
}

export function Palette() {
  const app = useApp();
  const which = app.dialog.value;
  if (which !== "palette" && which !== "search") return null;
  return <OpenPalette isModulesOnly={which === "search"} />;
}

function OpenPalette({ isModulesOnly }: { isModulesOnly: boolean }) {
  const app = useApp();
  const input = useRef<HTMLInputElement>(null);
  const list = useRef<HTMLUListElement>(null);
  const words = useSignal("");
  const at = useSignal(0);
  const settled = useSettled(words.value.trim(), 120);
  const run = app.state.value.page === "runs" ? null : app.run.value;
  const { data } = useQuery("search", run && settled ? { run, q: settled, limit: 30 } : null, {
    isFixed: true,
  }).value;
  // Before the next key arrives: who types "/mlp" in one go means all four.
  useLayoutEffect(() => {
    const root = input.current!.getRootNode() as ShadowRoot;
    const before = root.activeElement as HTMLElement | null;
    input.current!.focus();
    return () => before?.focus?.();
  }, []);

  const modules = words.value.trim() ? (data?.hits ?? []).map((hit) => moduleEntry(app, hit)) : [];
  const commands = isModulesOnly ? [] : commandEntries(app, words.value.trim().toLowerCase());
  const entries = [...modules, ...commands];
  const chosen = Math.min(at.value, Math.max(0, entries.length - 1));
  const close = () => {
    app.dialog.value = null;
  };
  const onKeyDown = (e: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (by !== undefined) {
      e.preventDefault();
      at.value = (chosen + by + entries.length) % Math.max(1, entries.length);
      list.current?.children[at.value]?.scrollIntoView({ block: "nearest" });
    } else if (e.key === "Enter" && entries[chosen]) {
      e.preventDefault();
      close();
      if (e.shiftKey && entries[chosen].other) entries[chosen].other();
      else entries[chosen].go();
    } else if (e.key === "Tab") e.preventDefault();
    e.stopPropagation();
    if (e.key === "Escape") close();
  };
  return (
    <div class="backdrop" onClick={close}>
      <div
        class="palette"
        role="dialog"
        aria-modal="true"
        aria-label={isModulesOnly ? "Search modules" : "Search"}
        onClick={(e) => e.stopPropagation()}
        onKeyDown={onKeyDown}
      >
        <input
          ref={input}
          type="text"
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={entries.length ? `palette-${chosen}` : undefined}
          aria-label="Search"
          placeholder={
            isModulesOnly
              ? "Module: part of its path, *.q_proj, re:h\\.\\d+$"
              : "Modules, commands…"
          }
          maxLength={200}
          value={words.value}
          onInput={(e) => {
            words.value = e.currentTarget.value;
            at.value = 0;
          }}
        />
        <ul id="palette-list" role="listbox" aria-label="Found" ref={list}>
          {entries.map((entry, i) => (
            <li
              key={entry.id}
              id={`palette-${i}`}
              role="option"
              aria-selected={i === chosen}
              class={i === chosen ? "at" : ""}
              onPointerMove={() => {
                at.value = i;
              }}
              onClick={() => {
                close();
                entry.go();
              }}
            >
              <span class="cut">{entry.title}</span>
              <span class="dim cut">{entry.note}</span>
              {entry.keys && <kbd>{entry.keys}</kbd>}
            </li>
          ))}
        </ul>
        {entries.length === 0 && (
          <p class="hint">{words.value ? "Nothing found." : "Type the name of a module."}</p>
        )}
        <p class="palette-foot dim">
          <kbd>↑</kbd> <kbd>↓</kbd> choose · <kbd>Enter</kbd> go · <kbd>⇧ Enter</kbd> pin
          {data && data.left_out > 0 && words.value && ` · ${count(data.left_out)} more`}
        </p>
      </div>
    </div>
  );
}

function moduleEntry(app: ReturnType<typeof useApp>, hit: Hit): Entry {
  return {
    id: `m ${hit.module}`,
    title: hit.path || "the model",
    note: `${hit.type}${hit.kinds.length ? ` · ${hit.kinds.map(kindLabel).join(", ")}` : ""}`,
    keys: "",
    go: () => (hit.node ? app.focusNode(hit.node, false) : pin(app, { module: hit.module })),
    other: () => pin(app, { node: hit.node, module: hit.module }),
  };
}

function commandEntries(app: ReturnType<typeof useApp>, words: string): Entry[] {
  return BINDINGS.filter((b) => !["palette", "search", "clear"].includes(b.command))
    .filter((b) => `${b.title} ${b.group}`.toLowerCase().includes(words))
    .map((b) => ({
      id: `c ${b.command}`,
      title: b.title,
      note: b.group,
      keys: b.keys,
      go: () => void perform(app, b.command),
    }));
}
