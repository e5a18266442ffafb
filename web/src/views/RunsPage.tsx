/** All runs of the folder: which are live, how far they are, how their loss went. */

import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { NONFINITE, type RunRow, type Spark as SparkData } from "../api.gen";
import { put } from "../app/app";
import { useApp, useCommand, useOnScreen, useQuery } from "../app/hooks";
import { ago, bytes, count, number } from "../core/format";
import { filterRuns, settingOf, sortRuns, varied } from "../core/runlist";
import { Button } from "./Controls";
import { Spark } from "./Spark";
import { Failed, Loading } from "./States";
import { StatusDot } from "./StatusDot";

const MOST_RUNS = 8;

export function RunsPage() {
  const app = useApp();
  const result = useQuery("runs", {}, { isFixed: true });
  const { data, error, isLoading } = result.value;
  const now = useSignal(Date.now());
  const reload = useRunsReload();
  useEffect(() => {
    const timer = setInterval(() => {
      now.value = Date.now();
    }, 5000);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    const good = (data?.runs ?? []).filter((r) => !r.problem).map((r) => r.id);
    const isOne = data?.runs.length === 1 && good.length === 1;
    if (app.isFresh && isOne) app.set({ page: "overview", runs: good });
    else if (app.isFresh && app.report.value && good.length > 1)
      app.set({ page: "compare", runs: good }); // a report of several runs compares them
    if (data) app.isFresh = false;
  }, [data]);
  const shown = reload.value ?? data;
  return (
    <main tabIndex={-1} class="centre whole runs" aria-label="Runs">
      {error && !shown && <Failed error={error} what="The list of runs" />}
      {!shown && isLoading && <Loading what="runs" />}
      {shown && shown.runs.length === 0 && (
        <NoRuns folder={shown.folder} code={shown.how_to_record} />
      )}
      {shown && shown.runs.length > 0 && (
        <>
          <RunTable rows={shown.runs} now={now.value} />
          <p class="hint">
            {count(shown.runs.length)} {shown.runs.length === 1 ? "run" : "runs"} in{" "}
            <code>{shown.folder}</code>
            {shown.left_out > 0 && ` · ${count(shown.left_out)} older ones are left out`}
          </p>
        </>
      )}
    </main>
  );
}

/** The list asked again when the stream says that it changed, and every few seconds while runs are live. */
function useRunsReload() {
  const app = useApp();
  const shown = useSignal<import("../api.gen").Runs | null>(null);
  const known = useRef("");
  const ask = () => {
    app.client
      .ask("runs", {}, new AbortController().signal)
      .then(({ spec }) => {
        shown.value = spec;
      })
      .catch(() => {});
  };
  useSignalEffect(() => {
    const version = app.live.listVersion.value;
    if (known.current && version && version !== known.current) ask();
    known.current = version;
  });
  useEffect(() => {
    const timer = setInterval(() => {
      const isOpen = app.live.connection.peek().is === "open";
      if (isOpen && !document.hidden) ask();
    }, 5000);
    return () => clearInterval(timer);
  }, []);
  return shown;
}

function RunTable({ rows, now }: { rows: readonly RunRow[]; now: number }) {
  const app = useApp();
  const chosen = app.state.value.runs;
  const at = useSignal(-1);
  const filter = useSignal("");
  const sort = useSignal<{ by: string; isDown: boolean }>({ by: "", isDown: true });
  const settings = useMemo(() => varied(rows), [rows]);
  const shown = useMemo(
    () => sortRuns(filterRuns(rows, filter.value), sort.value.by, sort.value.isDown),
    [rows, filter.value, sort.value],
  );
  const open = (id: string) => app.set({ page: "overview", runs: [id], ...FRESH }, true);
  const toggle = (id: string) => {
    if (chosen.includes(id)) app.set({ runs: chosen.filter((r) => r !== id) });
    else if (chosen.length >= MOST_RUNS) app.say(`${MOST_RUNS} runs can be open at once.`);
    else app.set({ runs: [...chosen, id] });
  };
  useCommand("rowDown", () => put(at, Math.min(shown.length - 1, at.value + 1)));
  useCommand("rowUp", () => put(at, Math.max(0, at.value - 1)));
  useCommand("open", () => shown[at.value] && open(shown[at.value].id));
  const head = (by: string, title: string, isRight = false) => (
    <th
      key={by}
      class={`sorted ${isRight ? "right" : ""}`}
      aria-sort={
        sort.value.by === by ? (sort.value.isDown ? "descending" : "ascending") : undefined
      }
    >
      <button
        type="button"
        class="sorter"
        onClick={() => {
          sort.value = { by, isDown: sort.value.by === by ? !sort.value.isDown : by !== "name" };
        }}
      >
        {title}
        {sort.value.by === by && (sort.value.isDown ? " ↓" : " ↑")}
      </button>
    </th>
  );
  return (
    <>
      <div class="runs-head">
        <h1>Runs</h1>
        <input
          type="search"
          class="field"
          placeholder="Filter: name, tag, lr=0.1"
          aria-label="Filter runs"
          value={filter.value}
          onInput={(e) => put(filter, e.currentTarget.value)}
        />
        {chosen.length > 1 && (
          <Button
            label="Open the chosen runs"
            class="primary"
            onClick={() => app.set({ page: "overview" }, true)}
          >
            Open {chosen.length} runs
          </Button>
        )}
        {chosen.length > 1 && (
          <Button
            label="Compare the chosen runs"
            onClick={() => app.set({ page: "compare" }, true)}
          >
            Compare
          </Button>
        )}
      </div>
      <div class="run-scroll">
        <table class="run-table">
          <thead>
            <tr>
              <th class="narrow">
                <span class="visually-hidden">Choose</span>
              </th>
              {head("name", "Name")}
              {head("status", "State")}
              {head("last_step", "Last step", true)}
              <th>Loss</th>
              {head("last_seen_ms", "Last seen")}
              {settings.map((name) => head(`setting:${name}`, name, true))}
              {head("records", "Records", true)}
              {head("size_bytes", "Size", true)}
              {head("model", "Model")}
            </tr>
          </thead>
          <tbody>
            {shown.map((row, i) => (
              <Row
                key={row.id}
                row={row}
                now={now}
                settings={settings}
                isChosen={chosen.includes(row.id)}
                isAt={i === at.value}
                onOpen={() => open(row.id)}
                onToggle={() => toggle(row.id)}
              />
            ))}
          </tbody>
        </table>
      </div>
      {shown.length === 0 && <p class="hint">No run matches “{filter.value}”.</p>}
    </>
  );
}

/** What belonged to another run is left behind. */
const FRESH = {
  x: null,
  step: null,
  at: ".",
  on: null,
  site: null,
  pins: [],
  under: null,
  unfold: [],
  line: null,
  metric: null,
  kind: null,
};

interface RowProps {
  row: RunRow;
  now: number;
  settings: readonly string[];
  isChosen: boolean;
  isAt: boolean;
  onOpen: () => void;
  onToggle: () => void;
}

function Row({ row, now, settings, isChosen, isAt, onOpen, onToggle }: RowProps) {
  return (
    <tr
      class={`${isAt ? "at" : ""} ${row.problem ? "broken" : ""}`}
      data-run={row.name}
      onClick={() => !row.problem && onOpen()}
    >
      <td class="narrow" onClick={(e) => e.stopPropagation()}>
        <input
          type="checkbox"
          checked={isChosen}
          disabled={row.problem !== null}
          aria-label={`Choose ${row.name}`}
          onChange={onToggle}
        />
      </td>
      <td>
        {row.problem ? (
          <span class="run-name">{row.name}</span>
        ) : (
          <a
            class="run-name"
            href={`#/overview?run=${encodeURIComponent(row.id)}`}
            onClick={(e) => {
              if (e.ctrlKey || e.metaKey || e.shiftKey) return e.stopPropagation();
              e.preventDefault();
              return undefined;
            }}
          >
            {row.name}
          </a>
        )}
        {row.tags.map((tag) => (
          <span key={tag} class="tag">
            {tag}
          </span>
        ))}
        {row.note && (
          <p class="dim cut run-note" title={row.note}>
            {row.note}
          </p>
        )}
        {row.problem && <p class="problem">{row.problem}</p>}
      </td>
      <td>
        <span class={`pill ${row.status}`}>
          <StatusDot status={row.status} />
          {row.status}
        </span>
      </td>
      <td class="right number">{count(row.last_step)}</td>
      <td>{!row.problem && <LossSpark run={row.id} stamp={row.last_step} />}</td>
      <td title={row.last_seen_ms ? new Date(row.last_seen_ms).toLocaleString() : ""}>
        {ago(row.last_seen_ms, now)}
      </td>
      {settings.map((name) => (
        <td key={name} class="right number cut">
          {settingOf(row, name) ?? ""}
        </td>
      ))}
      <td class="right number">
        {count(row.records)}
        {row.dropped > 0 && <span class="dropped"> · {count(row.dropped)} dropped</span>}
      </td>
      <td class="right number">{bytes(row.size_bytes)}</td>
      <td class="dim cut">{row.model ?? ""}</td>
    </tr>
  );
}

function LossSpark({ run, stamp }: { run: string; stamp: number | null }) {
  const box = useRef<HTMLDivElement>(null);
  const isOn = useOnScreen(box);
  const app = useApp();
  const result = useQuery("spark", { run, columns: 96 }, { isActive: isOn, isFixed: true });
  const { data } = result.value;
  const fresh = useSignal(data);
  useEffect(() => {
    fresh.value = data;
  }, [data]);
  const before = useRef(stamp);
  useEffect(() => {
    if (before.current === stamp || !isOn) return;
    before.current = stamp;
    app.client
      .ask("spark", { run, columns: 96 }, new AbortController().signal)
      .then(({ spec }) => put(fresh, spec))
      .catch(() => {});
  }, [stamp, isOn]);
  const spark = fresh.value;
  return (
    <div class="loss-spark" ref={box}>
      {spark && spark.x.length > 0 && (
        <>
          <Spark
            x={spark.x}
            y={spark.y}
            flags={spark.flags}
            width={120}
            height={22}
            label={`${spark.name} over steps`}
          />
          <LastValue spark={spark} />
        </>
      )}
    </div>
  );
}

function LastValue({ spark }: { spark: SparkData }) {
  const isBad = spark.flags[spark.flags.length - 1] === NONFINITE;
  return <span class={`number ${isBad ? "bad" : ""}`}>{isBad ? "NaN" : number(spark.last)}</span>;
}

function NoRuns({ folder, code }: { folder: string; code: string }) {
  return (
    <div class="state welcome">
      <h1>No runs here yet</h1>
      <p>
        This page watches <code>{folder}</code>. Record a run and it appears:
      </p>
      <pre class="code">{code}</pre>
      <p>
        Or record the demo, a small network that trains for about a minute: <code>sonde demo</code>
      </p>
    </div>
  );
}
