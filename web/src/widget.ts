/** The page in the output of a notebook's cell, by the contract of anywidget. */

import { type Signal, signal } from "@preact/signals";
import type { Address } from "./app/address";
import { mount } from "./app/mount";
import { Archive } from "./data/archive";
import { type Model, Notebook } from "./data/notebook";
import { isSolo } from "./views/SoloPage";

interface Given {
  model: Model;
  el: HTMLElement;
}

/** Puts the widget into its element; what it returns takes it away again. */
export function render({ model, el }: Given): () => void {
  const host = document.createElement("div");
  host.className = "sonde-widget";
  host.dataset.sondeWidget = "";
  // Single keys are ours while the focus is inside: in JupyterLab `d d` would delete the cell.
  host.dataset.lmSuppressShortcuts = "true";
  host.tabIndex = -1;
  Object.assign(host.style, { display: "block", position: "relative", overflow: "hidden" });
  const resize = () => {
    host.style.height = `${Number(model.get("height")) || 640}px`;
  };
  resize();
  el.append(host);
  const keep = (event: Event) => event.stopPropagation();
  for (const kind of ["keydown", "keyup", "keypress"]) host.addEventListener(kind, keep);

  const sent = new Map(Object.entries((model.get("_archive") ?? {}) as Record<string, string>));
  const isWaiting = signal(false);
  const notebook = new Notebook(
    model,
    Archive.read((name) => sent.get(name) ?? null),
    (is) => {
      isWaiting.value = is;
    },
  );
  const dark = hostTheme();
  const solo = model.get("_solo");
  model.on("change:height", resize);
  const end = mount(host, {
    transport: notebook,
    address: traitAddress(model),
    isWholePage: false,
    isDark: dark.isDark,
    isWaiting,
    solo: isSolo(solo) ? solo : undefined,
  });
  return () => {
    end();
    dark.end();
    notebook.close();
    model.off("change:height", resize);
    host.remove();
  };
}

/** Changes of the state are gathered before Python hears of them. */
const GATHER_MS = 250;

/** The state of the page, kept in the widget: Python reads it, and what it writes is shown. */
function traitAddress(model: Model): Address {
  let isWaiting = false;
  let isOwn = false;
  return {
    read: () => String(model.get("address") ?? ""),
    write(hash) {
      isOwn = true;
      model.set("address", hash);
      isOwn = false;
      if (isWaiting) return;
      isWaiting = true;
      setTimeout(() => {
        isWaiting = false;
        model.save_changes();
      }, GATHER_MS);
    },
    listen(heard) {
      const onChange = () => {
        if (!isOwn) heard();
      };
      model.on("change:address", onChange);
      return () => model.off("change:address", onChange);
    },
  };
}

/** Whether the notebook is dark, as its own page says; null where it does not. */
function hostTheme(): { isDark: Signal<boolean | null>; end: () => void } {
  const read = (): boolean | null => {
    const { body, documentElement: page } = document;
    const { jpThemeLight, vscodeThemeKind } = body.dataset;
    if (jpThemeLight !== undefined) return jpThemeLight === "false";
    if (vscodeThemeKind !== undefined) return /dark|high-contrast$/.test(vscodeThemeKind);
    const classes = [...body.classList, ...page.classList];
    if (classes.includes("dark")) return true;
    return classes.includes("light") ? false : null;
  };
  const isDark = signal(read());
  const observer = new MutationObserver(() => {
    isDark.value = read();
  });
  for (const element of [document.body, document.documentElement])
    observer.observe(element, { attributes: true });
  return { isDark, end: () => observer.disconnect() };
}
