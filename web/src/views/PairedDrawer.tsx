/** One tensor of two runs at one step: both histograms in one panel, their numbers side by side. */

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { CrossSection, PairedSection } from "../api.gen";
import { useApp, useQuery, useSettled, useSize } from "../app/hooks";
import { count, number, share, value } from "../core/format";
import { namesOption } from "../core/python";
import { linearTicks } from "../core/scales";
import { ChartMenu } from "./ChartMenu";
import { moved } from "./CompareSummary";
import { FONT, prepare } from "./canvas";
import { DrawerFrame, DrawerHead } from "./DrawerFrame";
import { RunKey, runColour } from "./Timeline";

const AXIS = 20;
const GUTTER = 46;

export function PairedDrawer({ site, other }: { site: string; other: string }) {
  const app = useApp();
  const { phase, names } = app.state.value;
  const chart = useRef<HTMLDivElement>(null);
  const step = useSettled(app.cursor.value, 80);
  const question =
    step === null
      ? null
      : { run: app.run.value!, other, site, step, name: [...names], ...(phase ? { phase } : {}) };
  const found = useQuery("paired_section", question, { isFixed: true }).value;
  const places = [0, app.state.value.runs.indexOf(other)];
  useEffect(() => {
    if (found.data) app.notes.value = [...found.data.a.notes];
  }, [found.data]);
  return (
    <DrawerFrame found={found}>
      {(data) => (
        <>
          <DrawerHead
            section={data.a}
            told={<span data-moved>{moved(data, true)}</span>}
            more={data.b.step === data.a.step ? "" : ` and ${count(data.b.step)}`}
          >
            <ChartMenu
              of={chart}
              name={`${data.a.site.name}-step-${data.a.step}-both`}
              figure={{
                name: "compare",
                given: [],
                others: [other],
                options: [
                  ["site", data.a.site.name],
                  ["step", data.a.step],
                  ["names", namesOption(names)],
                ],
              }}
              table={() => [
                ["from", "to", "A", "B"],
                ...Array.from(data.a.counts, (n, i) => [
                  data.a.edges[i],
                  data.a.edges[i + 1],
                  n,
                  data.b.counts[i],
                ]),
              ]}
            />
          </DrawerHead>
          <div class="drawer-body" ref={chart}>
            <Histograms data={data} places={places} />
            <Numbers data={data} places={places} />
          </div>
        </>
      )}
    </DrawerFrame>
  );
}

/** Density per value of both, so that areas are shares. */
export function densities({ edges, counts, total }: CrossSection): number[] {
  return Array.from(counts, (n, i) => n / (total || 1) / (edges[i + 1] - edges[i]));
}

function Histograms({ data, places }: { data: PairedSection; places: readonly number[] }) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const { width, height } = useSize(box);
  const { tokens, isDark } = app.theme.value;
  useLayoutEffect(() => {
    const surface = prepare(canvas.current, width, height);
    if (!surface) return;
    const { context: c } = surface;
    const { edges } = data.a;
    const [low, high] = [edges[0], edges[edges.length - 1]];
    const bottom = height - AXIS;
    const both = [densities(data.a), densities(data.b)];
    const most = Math.max(...both.flat(), 1e-300);
    const x = (v: number) => GUTTER + ((v - low) / (high - low)) * (width - GUTTER - 8);
    const y = (d: number) => bottom - (d / most) * (bottom - 10);
    c.font = `12px ${FONT}`;
    for (const part of [0, 0.5, 1]) {
      c.fillStyle = tokens.border;
      c.fillRect(GUTTER, Math.round(y(part * most)), width - GUTTER - 8, 1);
      c.fillStyle = tokens.text3;
      c.textAlign = "right";
      c.textBaseline = "middle";
      c.fillText(number(part * most, 2), GUTTER - 6, Math.max(7, y(part * most)));
    }
    both.forEach((heights, i) => {
      const colour = runColour(places[i], isDark);
      c.beginPath();
      c.moveTo(x(low), bottom);
      for (let k = 0; k < heights.length; k++) {
        c.lineTo(x(edges[k]), y(heights[k]));
        c.lineTo(x(edges[k + 1]), y(heights[k]));
      }
      c.lineTo(x(high), bottom);
      c.fillStyle = `${colour}2e`;
      c.fill();
      c.strokeStyle = colour;
      c.lineWidth = 1.5;
      c.setLineDash(i ? [5, 3] : []);
      c.stroke();
      c.setLineDash([]);
    });
    c.fillStyle = tokens.text3;
    c.textAlign = "center";
    c.textBaseline = "top";
    for (const tick of linearTicks(low, high, Math.max(2, width / 90)))
      c.fillText(number(tick), Math.max(GUTTER + 10, Math.min(width - 20, x(tick))), bottom + 5);
  }, [data, width, height, tokens]);
  return (
    <div
      class="exponent-chart"
      ref={box}
      role="img"
      aria-label={`Histograms of both runs at step ${data.a.step}`}
    >
      <canvas ref={canvas} data-histograms />
    </div>
  );
}

function Numbers({ data, places }: { data: PairedSection; places: readonly number[] }) {
  const apart = (s: CrossSection, n: number) => share(s.total ? n / s.total : null);
  const bad = (s: CrossSection) => s.nans + s.pos_infs + s.neg_infs;
  return (
    <div class="facts">
      <table class="losses">
        <thead>
          <tr>
            <th>
              <span class="visually-hidden">Statistic</span>
            </th>
            {places.map((p) => (
              <th key={p} class="right">
                <RunKey place={p} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {data.a.statistics
            .map((s, i) => [s, data.b.statistics[i]] as const)
            .filter(([s]) => s.is_main)
            .map(([s, t]) => (
              <tr key={s.name}>
                <th scope="row">{s.label}</th>
                <td class="right number">{value(s.value, s.format)}</td>
                <td class="right number">{value(t.value, t.format)}</td>
              </tr>
            ))}
          <tr>
            <th scope="row">zeros</th>
            <td class="right number">{apart(data.a, data.a.zeros)}</td>
            <td class="right number">{apart(data.b, data.b.zeros)}</td>
          </tr>
          <tr class={bad(data.a) + bad(data.b) > 0 ? "bad" : ""}>
            <th scope="row">not finite</th>
            <td class="right number">{apart(data.a, bad(data.a))}</td>
            <td class="right number">{apart(data.b, bad(data.b))}</td>
          </tr>
        </tbody>
      </table>
    </div>
  );
}
