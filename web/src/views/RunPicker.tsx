/** Which run to compare with: as a page where none is chosen yet, else as a short list. */

import { useApp, useQuery } from "../app/hooks";
import { Select } from "./Controls";
import { Empty, Loading } from "./States";
import { Words } from "./Words";

const MOST_RUNS = 8;

export function RunPicker({ isSmall = false }: { isSmall?: boolean }) {
  const app = useApp();
  const { runs } = app.state.value;
  const { data, error } = useQuery("runs", {}, { isFixed: true }).value;
  const others = (data?.runs ?? []).filter((r) => !r.problem && !runs.includes(r.id));
  const add = (id: string) => app.set({ runs: [...runs, id] }, true);
  if (isSmall) {
    if (others.length === 0 || runs.length >= MOST_RUNS) return null;
    return (
      <Select
        label="Add a run"
        value=""
        isLabelShown={false}
        options={[
          { value: "", label: "Add a run…" },
          ...others.map((r) => ({ value: r.id, label: r.name })),
        ]}
        onChange={(id) => id && add(id)}
      />
    );
  }
  if (error && !data) {
    return (
      <Empty title="There is no other run here">
        <p>
          <Words text={error.message} />
        </p>
      </Empty>
    );
  }
  if (!data) return <Loading what="runs" />;
  if (others.length === 0) {
    return (
      <Empty title="There is no other run to compare with">
        <p>Record another run in the same folder and it appears here.</p>
      </Empty>
    );
  }
  return (
    <div class="picker" data-picker>
      <h2>Compare {app.about.value?.name ?? "this run"} with</h2>
      <ul>
        {others.map((r) => (
          <li key={r.id}>
            <button type="button" class="button" onClick={() => add(r.id)}>
              <b>{r.name}</b> <span class="dim">{r.model ?? ""}</span>
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
