/** The heatmap that the page asks for: the same on all pages that show one. */

import type { HeatQuestion } from "../api.gen";
import type { App } from "../app/app";
import { type Figure, stepsOption } from "../core/python";

/** Columns asked for: about two for each pixel, in few sizes, so that resizing does not ask anew. */
export function columnsFor(width: number): number {
  return Math.max(256, Math.min(4096, Math.ceil((2 * Math.max(width, 1)) / 256) * 256));
}

/** What belongs into every question about the window shown. */
export function windowOf(x: { first: number; last: number | null } | null): {
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

/** Which steps, phase and rank are shown, as options of a figure. */
export function shownSteps(app: App): NonNullable<Figure["options"]> {
  const { x, phase, rank } = app.state.value;
  return [
    ["steps", stepsOption(x, app.lastStep.value)],
    ["phase", phase ?? undefined],
    ["rank", rank ?? undefined],
  ];
}

export function heatQuestion(
  app: App,
  x: { first: number; last: number | null } | null,
  width: number,
): HeatQuestion | null {
  const state = app.state.value;
  const about = app.about.value;
  const run = app.run.value;
  if (!run || !about || width < 1) return null;
  const kind = state.kind ?? about.kind;
  if (!state.metric && !kind) return null;
  return {
    run,
    ...(state.metric ? { metric: state.metric } : { kind: kind!, stat: state.stat ?? about.stat }),
    ...(state.under ? { under: state.under } : {}),
    ...(state.phase ? { phase: state.phase } : {}),
    ...(state.rank === null ? {} : { rank: state.rank }),
    ...(state.norm === "none" ? {} : { norm: state.norm }),
    ...(state.aggregate === "max_abs" ? {} : { aggregate: state.aggregate }),
    ...(state.areRowsFolded ? { fold: true } : {}),
    ...windowOf(x),
    columns: columnsFor(width),
  };
}
