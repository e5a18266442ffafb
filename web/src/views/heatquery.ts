/** The heatmap that the page asks for: the same on all pages that show one. */

import type { HeatQuestion, PairedHeat, PairedHeatQuestion } from "../api.gen";
import type { App } from "../app/app";
import { type Figure, namesOption, stepsOption } from "../core/python";
import type { PageState } from "../core/url";

/** Columns asked for: about two for each pixel, in few sizes, so that resizing does not ask anew. */
export function columnsFor(width: number): number {
  return Math.max(256, Math.min(4096, Math.ceil((2 * Math.max(width, 1)) / 256) * 256));
}

/** What belongs into every question about the window shown. */
export function windowOf(x: PageState["x"]): {
  first?: number;
  last?: number;
} {
  return x ? { first: x.first, ...(x.last === null ? {} : { last: x.last }) } : {};
}

/** The call that draws the heatmap on screen. */
export function heatFigure(app: App): Figure {
  const state = app.state.value;
  const about = app.about.value;
  const kind = state.kind ?? about?.kind ?? null;
  return {
    name: "heatmap",
    given: state.metric ? [] : [kind, state.stat ?? about?.stat ?? "rms"],
    options: [
      ["metric", state.metric ?? undefined],
      ["under", state.under ?? undefined],
      ...shownSteps(app),
      ["combine", state.aggregate === "max_abs" ? undefined : state.aggregate],
      ["normalize", state.norm === "none" ? undefined : state.norm],
      ["group_repeats", state.areRowsFolded || undefined],
      ["scale", state.colour === "auto" ? undefined : state.colour],
    ],
  };
}

/** Which steps, phase and rank are shown, and the time axis, as options of a figure. */
export function shownSteps(app: App): NonNullable<Figure["options"]> {
  const { x, phase, rank, axis } = app.state.value;
  return [
    ["steps", stepsOption(x, app.lastStep.value)],
    ["phase", phase ?? undefined],
    ["rank", rank ?? undefined],
    ["axis", axis ?? undefined],
  ];
}

/** What all questions about heatmaps say: of which tensors, over which steps, how fine. */
function shared(app: App, x: PageState["x"], width: number) {
  const { kind, stat, under, phase, aggregate } = app.state.value;
  const about = app.about.value;
  const run = app.run.value;
  if (!run || !about || width < 1) return null;
  return {
    run,
    kind: kind ?? about.kind ?? undefined,
    stat: stat ?? about.stat,
    ...(under ? { under } : {}),
    ...(phase ? { phase } : {}),
    ...(aggregate === "max_abs" ? {} : { aggregate }),
    ...windowOf(x),
    columns: columnsFor(width),
  };
}

export function heatQuestion(app: App, x: PageState["x"], width: number): HeatQuestion | null {
  const { metric, rank, norm, areRowsFolded } = app.state.value;
  const asked = shared(app, x, width);
  if (!asked || (!metric && !asked.kind)) return null;
  const { kind, stat, ...rest } = asked;
  return {
    ...rest,
    ...(metric ? { metric } : { kind, stat }),
    ...(rank === null ? {} : { rank }),
    ...(norm === "none" ? {} : { norm }),
    ...(areRowsFolded ? { fold: true } : {}),
  };
}

/** The heatmaps of the run and another one. */
export function pairedQuestion(
  app: App,
  other: string,
  x: PageState["x"],
  width: number,
): PairedHeatQuestion | null {
  const { names, measure } = app.state.value;
  const asked = shared(app, x, width);
  if (!asked?.kind) return null;
  return { ...asked, other, name: [...names], ...(measure === "ratio" ? {} : { measure }) };
}

/** The call that draws the heatmaps of all runs that are open. */
export function compareFigure(app: App, { a }: PairedHeat): Figure {
  const { runs, measure, aggregate, under, names } = app.state.value;
  return {
    name: "compare",
    given: [],
    others: runs.slice(1),
    options: [
      ["kind", a.kind],
      ["stat", a.stat],
      ["measure", measure === "ratio" ? undefined : measure],
      ["under", under ?? undefined],
      ...shownSteps(app).filter(([name]) => name !== "rank"),
      ["combine", aggregate === "max_abs" ? undefined : aggregate],
      ["names", namesOption(names)],
    ],
  };
}
