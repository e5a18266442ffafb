/** What can be done with a chart: copy the call that draws it, save it as a picture or a table. */

import type { RefObject } from "preact";
import { useRef } from "preact/hooks";
import type { App } from "../app/app";
import { useApp } from "../app/hooks";
import { type Cell, csv } from "../core/csv";
import { type Figure, python } from "../core/python";
import { Button } from "./Controls";
import { save, savePicture } from "./picture";

interface Props {
  /** What the picture shows: all inside it. */
  of: RefObject<HTMLElement | null>;
  name: string;
  figure: Figure | null;
  /** Numbers of the chart, with a line of names on top. */
  table?: () => readonly (readonly Cell[])[];
}

export function ChartMenu({ of, name, figure, table }: Props) {
  const app = useApp();
  const items = useRef<HTMLDivElement>(null);
  const item = (label: string, act: () => void | Promise<void>) => (
    <button
      type="button"
      onClick={() => {
        items.current?.hidePopover();
        Promise.resolve(act()).catch((error: Error) =>
          app.say(`${label} failed: ${error.message}`),
        );
      }}
    >
      {label}
    </button>
  );
  const picture = (type: "svg" | "png") =>
    of.current ? savePicture(of.current, app.theme.peek().tokens.surface, name, type) : undefined;
  return (
    <div class="menu" data-menu={name}>
      <Button
        icon="more"
        label="Copy or save this chart"
        isQuiet
        onClick={(e) => open(items.current, e.currentTarget as HTMLElement)}
      />
      <div class="menu-items" popover="auto" ref={items}>
        {figure && item("Copy Python", () => copyPython(app, figure))}
        {item("Save PNG", () => picture("png"))}
        {item("Save SVG", () => picture("svg"))}
        {table &&
          item("Save CSV", () =>
            save(new Blob([csv(table())], { type: "text/csv" }), `${name}.csv`),
          )}
      </div>
    </div>
  );
}

/** Shows a menu at its button, above or below it. */
function open(items: HTMLElement | null, button: HTMLElement): void {
  if (!items) return;
  items.togglePopover();
  const [at, own] = [button.getBoundingClientRect(), items.getBoundingClientRect()];
  const isBelow = at.bottom + own.height + 6 < innerHeight;
  items.style.left = `${Math.max(4, Math.min(innerWidth - own.width - 4, at.right - own.width))}px`;
  items.style.top = `${isBelow ? at.bottom + 4 : at.top - own.height - 4}px`;
}

async function copyPython(app: App, figure: Figure): Promise<void> {
  const others = await Promise.all((figure.others ?? []).map((run) => pathOf(app, run)));
  const path = await pathOf(app, app.run.peek() ?? "");
  const text = python(path, { ...figure, given: [...others, ...figure.given] });
  await navigator.clipboard.writeText(text);
  app.say("Copied the Python call");
}

/** Where a run lies, as the server was told: the folder and the name of the run. */
export async function pathOf(app: App, run: string): Promise<string> {
  const name = app.nameOf(run);
  const answer = await app.client.ask("server", {}, new AbortController().signal).catch(() => null);
  if (!answer) return name; // a report does not know where its run lies
  const folder = answer.spec.folder.replace(/\/+$/, "");
  return folder.split("/").at(-1) === name ? folder : `${folder}/${name}`;
}
