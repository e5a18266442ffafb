/** What two runs have in common: the verdict, what is in one only, settings, what is farthest apart. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ComparedRuns, CompareQuestion, FarSite, TwoValues } from "../api.gen";
import type { App } from "../app/app";
import { useApp, useQuery } from "../app/hooks";
import { setCursor } from "../app/time";
import { count, kind as kindLabel, share, site as siteName } from "../core/format";
import { Button, Icon } from "./Controls";
import { Failed, Loading } from "./States";
import { RunKey } from "./Timeline";
import { Words } from "./Words";

const WORDS = { different: "Different", alike: "Alike" };

function useCompared(other: string) {
  const app = useApp();
  const { names, phase } = app.state.value;
  const run = app.run.value;
  const question: CompareQuestion | null = run
    ? { run, other, name: [...names], ...(phase ? { phase } : {}) }
    : null;
  return useQuery("compare", question, { everyMs: 5000 }).value;
}

interface VerdictProps {
  other: string;
  letter: string;
  isChosen: boolean;
  isOpen: boolean;
  onFound: (data: ComparedRuns | null) => void;
}

export function Verdict({ other, letter, isChosen, isOpen, onFound }: VerdictProps) {
  const app = useApp();
  const { data, error } = useCompared(other);
  useEffect(() => onFound(data), [data]);
  useEffect(() => () => onFound(null), []);
  if (error && !data) return <Failed error={error} what="The comparison" />;
  if (!data) return <Loading what="the comparison" />;
  const { first } = data;
  return (
    <section
      class={`verdict ${data.verdict === "different" ? "differs" : ""} ${isChosen ? "chosen" : ""}`}
      aria-label={`A and ${letter}`}
      data-verdict={data.verdict}
    >
      <div class="verdict-line">
        {!isOpen && (
          <Button
            label={`Compare with ${data.b}`}
            isQuiet
            isOn={isChosen}
            onClick={() => app.set({ versus: other })}
          >
            <RunKey place={app.state.value.runs.indexOf(other)} /> {data.b}
          </Button>
        )}
        {data.verdict !== "no verdict" && data.verdict !== "identical" && (
          <h2>{WORDS[data.verdict]}</h2>
        )}
        <p class="headline" data-headline>
          <Words text={data.headline.charAt(0).toUpperCase() + data.headline.slice(1)} />
        </p>
        {first && (
          <Button
            label={`Show step ${first.step} and ${siteName(first.site)}`}
            icon="open"
            onClick={() => {
              setCursor(app, first.step);
              app.set({ site: first.site.id, kind: first.site.kind, versus: other }, true);
            }}
          >
            step {count(first.step)}
          </Button>
        )}
      </div>
      {(isOpen || isChosen) && <Differences data={data} />}
    </section>
  );
}

/** Added, removed and renamed first; then settings, apart from them. */
function Differences({ data }: { data: ComparedRuns }) {
  const counts = `${count(data.sites)} tensors in both · ${count(data.steps)} common steps`;
  return (
    <div class="differences">
      <p class="dim" data-common>
        {counts}
        {data.notes.map((n) => ` · ${n}`)}
      </p>
      <Listed title="Only in A" names={data.removed} all={data.removed_count} id="removed" />
      <Listed title="Only in B" names={data.added} all={data.added_count} id="added" />
      <Listed
        title="Renamed"
        names={data.renamed.map((r) => `${r.a} → ${r.b}`)}
        all={data.renamed.length}
        id="renamed"
      />
      <Values title="Settings" values={data.settings} id="settings" />
      <Values title="Versions" values={data.environment} id="environment" />
      {(data.removed_count > 0 || data.added_count > 0) && <MatchForm data={data} />}
    </div>
  );
}

interface ListedProps {
  title: string;
  names: readonly string[];
  all: number;
  id: string;
}

function Listed({ title, names, all, id }: ListedProps) {
  if (all === 0) return null;
  return (
    <details class="difference" data-difference={id}>
      <summary>
        {title} <b>{count(all)}</b>
      </summary>
      <ul>
        {names.map((name) => (
          <li key={name}>{name}</li>
        ))}
        {all > names.length && <li class="dim">and {count(all - names.length)} more</li>}
      </ul>
    </details>
  );
}

function Values({
  title,
  values,
  id,
}: {
  title: string;
  values: readonly TwoValues[];
  id: string;
}) {
  if (values.length === 0) return null;
  const { name, a, b } = values[0];
  const isOne = values.length === 1;
  return (
    <details class="difference" data-difference={id}>
      <summary>
        {title} <b>{isOne ? `${name}: ${a ?? "–"} → ${b ?? "–"}` : count(values.length)}</b>
      </summary>
      <table class="losses">
        <thead>
          <tr>
            <th>Name</th>
            <th>A</th>
            <th>B</th>
          </tr>
        </thead>
        <tbody>
          {values.map((v) => (
            <tr key={v.name}>
              <th scope="row">{v.name}</th>
              <td>{v.a ?? "–"}</td>
              <td>{v.b ?? "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

/** Pairs of modules that the user matches by hand. */
function MatchForm({ data }: { data: ComparedRuns }) {
  const app = useApp();
  const { names } = app.state.value;
  const [from, to] = [useSignal(""), useSignal("")];
  const modules = (of: readonly string[]) => [...new Set(of.map((name) => name.split("/")[0]))];
  const field = (side: string, value: typeof from, options: readonly string[]) => (
    <input
      class="field"
      placeholder={`module of ${side}`}
      aria-label={`Module of ${side}`}
      list={`modules-${side}`}
      value={value.value}
      onInput={(e) => {
        value.value = e.currentTarget.value;
      }}
      key={side + options.length}
    />
  );
  return (
    <form
      class="match"
      onSubmit={(e) => {
        e.preventDefault();
        if (from.value && to.value)
          app.set({ names: [...names, `${from.value.trim()}=${to.value.trim()}`] }, true);
      }}
    >
      <span class="dim">Match</span>
      {field("A", from, modules(data.removed))}
      <datalist id="modules-A">
        {modules(data.removed).map((m) => (
          <option key={m} value={m} />
        ))}
      </datalist>
      {field("B", to, modules(data.added))}
      <datalist id="modules-B">
        {modules(data.added).map((m) => (
          <option key={m} value={m} />
        ))}
      </datalist>
      <button type="submit" class="button">
        Match
      </button>
      {names.map((pair) => (
        <button
          key={pair}
          type="button"
          class="chip"
          title="Do not match these"
          onClick={() => app.set({ names: names.filter((n) => n !== pair) }, true)}
        >
          {pair.replace("=", " → ")} <Icon name="close" size={12} />
        </button>
      ))}
    </form>
  );
}

/** The tensors that are farthest apart, each at its worst step. */
export function FarList({ data }: { data: ComparedRuns | null }) {
  const app = useApp();
  if (!data || data.farthest.length === 0) return null;
  return (
    <section class="movers" aria-label="Farthest apart" data-farthest>
      <header>
        <h2>Farthest apart</h2>
        <span class="dim">A to B, octaves</span>
      </header>
      <ul class="mover-rows">
        {data.farthest.map((row) => (
          <li key={row.site.id}>
            <button
              type="button"
              class="mover far"
              title={`${row.site.name} at step ${row.step}: show both`}
              onClick={() => show(app, row)}
            >
              <span class="mover-name">{siteName(row.site)}</span>
              <span class="dim number">
                {kindLabel(row.site.kind)} · step {count(row.step)}
              </span>
              <span class="number">{moved(row)}</span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

function show(app: App, { site, step }: FarSite): void {
  setCursor(app, step);
  app.set({ site: site.id, kind: site.kind }, true);
}

interface Apart {
  w1: number | null;
  shift: number | null;
  zeros: number;
  nonfinite: number;
}

/** How a tensor of B lies to that of A: not finite, shifted, or other zeros. */
export function moved(row: Apart, isLong = false): string {
  const sign = (v: number) => (v < 0 ? "−" : "+");
  if (row.nonfinite !== 0)
    return `${sign(row.nonfinite)}${share(Math.abs(row.nonfinite))} not finite`;
  if (row.w1 === null || row.shift === null)
    return `${sign(row.zeros)}${share(Math.abs(row.zeros))} zeros`;
  const shift = `${sign(row.shift)}${Math.abs(row.shift).toFixed(2)}`;
  const words = isLong ? `shifted ${shift} octaves` : shift;
  return `${words}, distance ${row.w1.toFixed(2)}`;
}
