/** One tensor at one step: its exponents against number formats, its statistics. */

import { useEffect, useRef } from "preact/hooks";
import type { CrossSection } from "../api.gen";
import { useApp, useQuery, useSettled } from "../app/hooks";
import { pin } from "../app/pins";
import { count, shape, share, value } from "../core/format";
import { ChartMenu } from "./ChartMenu";
import { Button } from "./Controls";
import { DrawerFrame, DrawerHead } from "./DrawerFrame";
import { ExponentChart, lossAt } from "./ExponentChart";

export const FORMATS: readonly { name: string; title: string }[] = [
  { name: "float8_e4m3fn", title: "fp8 e4m3" },
  { name: "float8_e5m2", title: "fp8 e5m2" },
  { name: "float16", title: "fp16" },
  { name: "bfloat16", title: "bf16" },
  { name: "float4_e2m1fn", title: "fp4 e2m1" },
];

export function Drawer() {
  const app = useApp();
  const { site } = app.state.value;
  if (!site) return null;
  return <OpenDrawer key={site} site={site} />;
}

function OpenDrawer({ site }: { site: string }) {
  const app = useApp();
  const { phase, rank } = app.state.value;
  const step = useSettled(app.cursor.value, 80);
  const run = app.run.value!;
  const question =
    step === null
      ? null
      : {
          run,
          site,
          step,
          ...(phase ? { phase } : {}),
          ...(rank === null ? {} : { rank }),
          format: FORMATS.map((f) => f.name),
        };
  const found = useQuery("section", question, { isFixed: true }).value;
  useEffect(() => {
    if (found.data) app.notes.value = found.data.notes;
  }, [found.data]);
  return <DrawerFrame found={found}>{(data) => <Inside data={data} />}</DrawerFrame>;
}

function Inside({ data }: { data: CrossSection }) {
  const app = useApp();
  const { formats, shift } = app.state.value;
  const chart = useRef<HTMLDivElement>(null);
  const { site } = data;
  const bad = data.nans + data.pos_infs + data.neg_infs;
  const shown = data.formats.filter((f) => formats.includes(f.name));
  const toggle = (name: string) =>
    app.set({
      formats: formats.includes(name) ? formats.filter((f) => f !== name) : [...formats, name],
    });
  return (
    <>
      <DrawerHead
        section={data}
        told={
          <span class="dim">
            {site.dtype} {shape(site.shape)}
          </span>
        }
      >
        <ChartMenu
          of={chart}
          name={`${site.name}-step-${data.step}`}
          figure={{
            name: "exponents",
            given: [site.name],
            options: [
              ["step", data.step],
              ["formats", shown.map((f) => f.name)],
            ],
          }}
          table={() => [
            ["exponent", "count"],
            ...Array.from(data.exponents, (e, i) => [e, data.exponent_counts[i]]),
          ]}
        />
        <Button label="Pin its module" icon="pin" onClick={() => pin(app, { module: site.module })}>
          Pin
        </Button>
      </DrawerHead>
      <div class="drawer-body" ref={chart}>
        <div class="exponents">
          <ExponentChart data={data} formats={shown} shift={shift} />
          <div class="exponent-controls">
            {FORMATS.map((f) => (
              <label key={f.name} class="check">
                <input
                  type="checkbox"
                  checked={formats.includes(f.name)}
                  onChange={() => toggle(f.name)}
                />
                {f.title}
              </label>
            ))}
            <label class="slider">
              <span>
                scale 2<sup>{shift}</sup>
              </span>
              <input
                type="range"
                min={-32}
                max={32}
                value={shift}
                aria-label="Power of two by which values are scaled"
                onInput={(e) => app.set({ shift: Number(e.currentTarget.value) })}
              />
            </label>
            <Button
              label="The scale at which the first chosen format loses least"
              class="small"
              disabled={!shown.length}
              onClick={() => app.set({ shift: bestShift(data, shown[0]) })}
            >
              best
            </Button>
          </div>
        </div>
        <div class="facts">
          <table class="losses">
            <thead>
              <tr>
                <th>Format</th>
                <th class="right">to zero</th>
                <th class="right">subnormal</th>
                <th class="right">overflow</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((f) => {
                const loss = shift === 0 ? f : lossAt(data, f, shift);
                return (
                  <tr key={f.name}>
                    <th scope="row">{f.title}</th>
                    <td class="right number">{share(loss.underflow)}</td>
                    <td class="right number">{share(loss.subnormal)}</td>
                    <td class="right number">{share(loss.overflow)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
          {shift !== 0 && (
            <p class="dim">with values × 2^{shift}: whole powers of two, so “at most”</p>
          )}
          <dl class="numbers">
            <Figure name="values" value={count(data.total)} />
            <Figure name="zeros" value={share(data.total ? data.zeros / data.total : null)} />
            <Figure name="not finite" value={count(bad)} isBad={bad > 0} />
            {data.statistics
              .filter((s) => s.is_main)
              .map((s) => (
                <Figure key={s.name} name={s.label} value={value(s.value, s.format)} />
              ))}
          </dl>
        </div>
      </div>
    </>
  );
}

function Figure({ name, value, isBad = false }: { name: string; value: string; isBad?: boolean }) {
  return (
    <div class={isBad ? "bad" : ""}>
      <dt>{name}</dt>
      <dd class="number">{value}</dd>
    </div>
  );
}

/** The power of two with the smallest loss; of equal ones the one nearest to none. */
function bestShift(data: CrossSection, format: CrossSection["formats"][number]): number {
  let [best, least] = [0, Infinity];
  for (let k = 0; k <= 32; k++) {
    for (const shift of k === 0 ? [0] : [k, -k]) {
      const { underflow, subnormal, overflow } = lossAt(data, format, shift);
      const lost = (underflow ?? 0) + (overflow ?? 0) * 4 + (subnormal ?? 0) * 0.25;
      if (lost < least - 1e-12) [best, least] = [shift, lost];
    }
  }
  return best;
}
