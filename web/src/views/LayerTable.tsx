/** All tensors of a kind at the cursor as a table: sorted by any column, saved as CSV. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { LayerRow } from "../api.gen";
import { useApp, useQuery, useSettled } from "../app/hooks";
import { type Cell, csv } from "../core/csv";
import { count, number, share, site as siteName } from "../core/format";
import { Button, Select } from "./Controls";
import { FORMATS } from "./Drawer";
import { windowOf } from "./heatquery";
import { save } from "./picture";
import { Empty, Failed, Loading } from "./States";

interface Column {
  name: string;
  title: string;
  value: (row: LayerRow) => Cell;
  text: (row: LayerRow) => string;
}

const COLUMNS: readonly Column[] = [
  { name: "tensor", title: "Tensor", value: (r) => r.site.name, text: (r) => siteName(r.site) },
  { name: "rms", title: "rms", value: (r) => r.rms, text: (r) => number(r.rms) },
  { name: "max_abs", title: "max |x|", value: (r) => r.max_abs, text: (r) => number(r.max_abs) },
  { name: "change", title: "change", value: (r) => r.change, text: (r) => factor(r.change) },
  { name: "zeros", title: "zeros", value: (r) => r.zeros, text: (r) => share(r.zeros) },
  {
    name: "first_nonfinite_step",
    title: "not finite since",
    value: (r) => r.first_nonfinite_step,
    text: (r) => (r.first_nonfinite_step === null ? "" : count(r.first_nonfinite_step)),
  },
  {
    name: "underflow",
    title: "underflow",
    value: (r) => r.underflow,
    text: (r) => share(r.underflow),
  },
  { name: "overflow", title: "overflow", value: (r) => r.overflow, text: (r) => share(r.overflow) },
];

export function LayerTable() {
  const app = useApp();
  const { kind, under, phase, x, formats, site } = app.state.value;
  const about = app.about.value;
  const step = useSettled(app.cursor.value, 120);
  const window = useSettled(x, 200);
  const format = formats[0] ?? FORMATS[0].name;
  const sort = useSignal<{ by: string; isDown: boolean }>({ by: "", isDown: true });
  const question =
    app.run.value && about?.kind && step !== null
      ? {
          run: app.run.value,
          kind: kind ?? about.kind,
          ...(under ? { under } : {}),
          ...(phase ? { phase } : {}),
          ...windowOf(window),
          step,
          format,
        }
      : null;
  const { data, error } = useQuery("table", question, { everyMs: 3000 }).value;
  useEffect(() => {
    if (data) app.notes.value = data.notes;
  }, [data]);
  const rows = useMemo(() => sorted(data?.rows ?? [], sort.value), [data, sort.value]);
  if (error && !data) return <Failed error={error} what="The table" />;
  if (!data) return question ? <Loading what="the table" /> : <Empty title="No tensors" />;
  const flip = (by: string) => {
    const { by: old, isDown } = sort.value;
    sort.value = { by, isDown: by === old ? !isDown : by !== "tensor" };
  };
  return (
    <section class="layer-table" aria-label="Tensors at the cursor">
      <div class="table-head">
        <span class="dim">
          {count(rows.length)} tensors at step {count(data.step)}
        </span>
        <span class="stretch" />
        <Select
          label="Format"
          value={format}
          options={FORMATS.map((f) => ({ value: f.name, label: f.title }))}
          onChange={(name) => app.set({ formats: [name, ...formats.filter((f) => f !== name)] })}
        />
        <Button
          label="Save the table as CSV"
          onClick={() =>
            save(
              new Blob([csv([COLUMNS.map((c) => c.name), ...rows.map(cells)])], {
                type: "text/csv",
              }),
              `${about?.name ?? "run"}-${data.kind}-step-${data.step}.csv`,
            )
          }
        >
          CSV
        </Button>
      </div>
      <div class="table-scroll">
        <table class="run-table layer-rows">
          <thead>
            <tr>
              {COLUMNS.map((c, i) => (
                <th
                  key={c.name}
                  class={i ? "right" : ""}
                  aria-sort={
                    sort.value.by === c.name
                      ? sort.value.isDown
                        ? "descending"
                        : "ascending"
                      : "none"
                  }
                >
                  <button type="button" class="sorter" onClick={() => flip(c.name)}>
                    {c.title}
                    {sort.value.by === c.name && (sort.value.isDown ? " ↓" : " ↑")}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr
                key={row.site.id}
                class={row.site.id === site ? "at" : ""}
                onClick={() => app.set({ site: row.site.id }, true)}
              >
                {COLUMNS.map((c, i) =>
                  i === 0 ? (
                    <th key={c.name} scope="row" title={row.site.name}>
                      <button type="button" class="link">
                        {c.text(row)}
                      </button>
                    </th>
                  ) : (
                    <td
                      key={c.name}
                      class={`right number ${c.name === "first_nonfinite_step" ? "bad" : ""}`}
                    >
                      {c.text(row)}
                    </td>
                  ),
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function cells(row: LayerRow): Cell[] {
  return COLUMNS.map((c) => c.value(row));
}

/** Rows by a column; what has no value comes last either way. */
export function sorted(
  rows: readonly LayerRow[],
  { by, isDown }: { by: string; isDown: boolean },
): readonly LayerRow[] {
  const column = COLUMNS.find((c) => c.name === by);
  if (!column) return rows;
  const sign = isDown ? -1 : 1;
  return [...rows].sort((one, two) => {
    const [a, b] = [column.value(one), column.value(two)];
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    return sign * (typeof a === "string" ? a.localeCompare(String(b)) : a - Number(b));
  });
}

function factor(change: number | null): string {
  if (change === null) return "–";
  const times = 2 ** Math.abs(change);
  return `${change < 0 ? "÷" : "×"}${times >= 100 ? number(times, 2) : times.toPrecision(3)}`;
}
