/** A panel: all that was recorded of a module, section by section. */

import { useSignal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import type { Panel, PanelSection } from "../api.gen";
import { useApp, useOnScreen, useQuery, useSettled } from "../app/hooks";
import { movePin, pin, unpin } from "../app/pins";
import { amount, kind as kindLabel, number, shape } from "../core/format";
import { inkOn, parseHex } from "../core/lut";
import { pinColour } from "../core/tokens";
import { Boundary } from "./Boundary";
import { ChartMenu } from "./ChartMenu";
import { Button, Icon } from "./Controls";
import { followDrag } from "./drag";
import { columnsFor, windowOf } from "./heatquery";
import { Kymo } from "./Kymo";
import { LineChart, type Series, valueAt } from "./LineChart";
import { Failed, Loading } from "./States";
import { VariableView } from "./VariableView";
import { Words } from "./Words";

interface Props {
  run: string;
  node?: string;
  module?: string;
  /** Null for a preview. */
  letter: string | null;
}

export function PanelCard({ run, node, module, letter }: Props) {
  const app = useApp();
  const { data, error } = useQuery("panel", node ? { run, node } : { run, module }, {
    everyMs: 10_000,
  }).value;
  const colour = letter ? pinColour(letter, app.theme.value.isDark) : null;
  return (
    <article
      class={`panel ${letter ? "" : "preview"}`}
      data-pin={letter ?? undefined}
      data-preview={letter ? undefined : ""}
      aria-label={`${letter ? `Panel ${letter}` : "Preview"}: ${data?.path || data?.label || ""}`}
      style={colour ? { "--pin": colour } : undefined}
    >
      <Head data={data} letter={letter} colour={colour} thing={{ node, module }} />
      {error && !data && <Failed error={error} what="This panel" />}
      {!data && !error && <Loading what="the panel" />}
      {data && <Body run={run} data={data} />}
    </article>
  );
}

interface HeadProps {
  data: Panel | null;
  letter: string | null;
  colour: string | null;
  thing: { node?: string; module?: string };
}

function Head({ data, letter, colour, thing }: HeadProps) {
  const app = useApp();
  const { pins } = app.state.value;
  const at = pins.findIndex((p) => p.letter === letter);
  const name = data?.label ?? "…";
  const where = data ? data.path || data.type : "";
  return (
    <header
      class="panel-head"
      onPointerDown={(e) => {
        if (letter && !(e.target as Element).closest("button"))
          followDrag(app, e, `${letter} ${name}`, thing);
      }}
    >
      {letter ? (
        <span class="letter" style={{ background: colour!, color: inkOn(parseHex(colour!)) }}>
          {letter}
        </span>
      ) : (
        <span class="tag">Preview</span>
      )}
      <div class="panel-title">
        <h2 class="cut" title={where}>
          <bdi dir="ltr">{where || name}</bdi>
        </h2>
        <p class="dim cut">
          {data &&
            [
              data.type,
              data.call > 0 ? `call #${data.call}` : "",
              data.parameters ? `${amount(data.parameters)} parameters` : "",
              ports(data),
            ]
              .filter(Boolean)
              .join(" · ")}
        </p>
      </div>
      {letter === null && (
        <Button icon="pin" label="Pin this panel" keys="P" onClick={() => pin(app, thing)}>
          Pin
        </Button>
      )}
      {letter !== null && pins.length > 1 && (
        <>
          <Button
            icon="left"
            label={`Move panel ${letter} back`}
            isQuiet
            disabled={at <= 0}
            onClick={() => movePin(app, letter, -1)}
          />
          <Button
            icon="right"
            label={`Move panel ${letter} on`}
            isQuiet
            disabled={at >= pins.length - 1}
            onClick={() => movePin(app, letter, 1)}
          />
        </>
      )}
      {data?.node && (
        <Button
          icon="search"
          label="Show it in the graph"
          isQuiet
          onClick={() => app.set({ page: "explore", at: data.parent ?? ".", on: data.node }, true)}
        />
      )}
      <Button
        icon="close"
        label={letter ? `Close panel ${letter}` : "Close the preview"}
        keys={letter ? "X" : "Esc"}
        isQuiet
        onClick={() => (letter ? unpin(app, letter) : app.set({ on: null }))}
      />
    </header>
  );
}

function ports(data: Panel): string {
  const [a, b] = [data.inputs, data.outputs].map((list) =>
    list
      .map((p) => shape(p.shape))
      .slice(0, 2)
      .join(", "),
  );
  return a && b ? `${a} → ${b}` : a || b;
}

function Body({ run, data }: { run: string; data: Panel }) {
  return (
    <div class="panel-body">
      {data.sections.map((section) => (
        <Section key={section.kind} run={run} section={section} />
      ))}
      {data.metrics.length > 0 && <Metrics run={run} module={data.module} names={data.metrics} />}
      {data.sections.length === 0 && data.metrics.length === 0 && (
        <p class="hint">Nothing was recorded here.</p>
      )}
      {data.missing.length > 0 && (
        <details class="missing">
          <summary>Not recorded: {data.missing.map((m) => kindLabel(m.kind)).join(", ")}</summary>
          <ul>
            {data.missing.map((m) => (
              <li key={m.kind}>
                {m.title}: <code>{m.how}</code>
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function Section({ run, section }: { run: string; section: PanelSection }) {
  const app = useApp();
  const isClosed = app.state.value.closed.includes(section.kind);
  const many = section.sites.length + section.plain.length;
  const toggle = () => {
    const { closed } = app.state.peek();
    app.set({
      closed: isClosed ? closed.filter((k) => k !== section.kind) : [...closed, section.kind],
    });
  };
  return (
    <section class="panel-section" data-section={section.kind}>
      <h3>
        <button type="button" class="section-title" aria-expanded={!isClosed} onClick={toggle}>
          <Icon name={isClosed ? "right" : "down"} size={12} />
          {section.title}
          <span class="dim">{many > 1 ? many : ""}</span>
        </button>
      </h3>
      {!isClosed &&
        section.sites.map((site) => (
          <Boundary key={site.id} what={site.label} of={run}>
            <Kymo run={run} site={site} />
            {site.kind === "local" && <VariableView run={run} site={site} />}
          </Boundary>
        ))}
      {!isClosed &&
        section.plain.map((site) => (
          <Boundary key={site.id} what={site.label} of={run}>
            <div class="plain-name cut" title={site.name}>
              {site.label}
            </div>
            <VariableView run={run} site={site} />
          </Boundary>
        ))}
    </section>
  );
}

function Metrics({
  run,
  module,
  names,
}: {
  run: string;
  module: string;
  names: readonly string[];
}) {
  const isClosed = useSignal(false);
  return (
    <section class="panel-section" data-section="metrics">
      <h3>
        <button
          type="button"
          class="section-title"
          aria-expanded={!isClosed.value}
          onClick={() => {
            isClosed.value = !isClosed.value;
          }}
        >
          <Icon name={isClosed.value ? "right" : "down"} size={12} />
          Metrics <span class="dim">{names.length}</span>
        </button>
      </h3>
      {!isClosed.value &&
        names.map((name) => (
          <Boundary key={name} what={name} of={run}>
            <MetricLine run={run} module={module} name={name} />
          </Boundary>
        ))}
    </section>
  );
}

function MetricLine({ run, module, name }: { run: string; module: string; name: string }) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const isOn = useOnScreen(box);
  const x = useSettled(app.state.value.x, 160);
  const question = {
    run,
    name: [name],
    module: [module],
    ...windowOf(x),
    columns: columnsFor(300),
  };
  const { data, error } = useQuery("lines", question, { isActive: isOn }).value;
  const isDark = app.theme.value.isDark;
  const series = useMemo<Series[]>(
    () =>
      (data?.lines ?? [])
        .filter((l) => l.length > 0)
        .map((l, i) => {
          const cut = <T extends Float64Array | Uint8Array>(a: T) =>
            a.subarray(l.start, l.start + l.length) as T;
          return {
            label: l.phase,
            colour: pinColour(String.fromCharCode(65 + i), isDark),
            dash: [],
            x: cut(data!.first),
            y: cut(data!.mean),
            low: cut(data!.low),
            high: cut(data!.high),
            flags: cut(data!.flags),
            hasBand: data!.stride > 1,
          };
        }),
    [data, isDark],
  );
  const domain = app.domain.value;
  const step = app.hover.value ?? app.cursor.value;
  return (
    <div class="metric" ref={box} data-metric={name}>
      <div class="kymo-head">
        <span class="kymo-name">{name}</span>
        <span class="stretch" />
        {step !== null &&
          series.map((s) => (
            <span key={s.label} class="number">
              {number(valueAt(s, step))}
            </span>
          ))}
        <ChartMenu
          of={box}
          name={`${module}-${name}`}
          figure={{
            name: "lines",
            given: [name],
            options: [["module", module === "." ? "" : module]],
          }}
        />
      </div>
      {error && !data && (
        <p class="hint">
          <Words text={error.message} />
        </p>
      )}
      {domain && series.length > 0 ? (
        <LineChart
          series={series}
          domain={domain}
          isLog={false}
          height={76}
          label={`${name} over steps`}
          hasAxis={false}
        />
      ) : (
        <div class="kymo-space" />
      )}
    </div>
  );
}
