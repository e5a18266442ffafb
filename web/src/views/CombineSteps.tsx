/** How steps that share a column of a heatmap become one number. */

import type { Aggregate } from "../api.gen";
import { useApp } from "../app/hooks";
import { Select } from "./Controls";

const LABELS: readonly { value: Aggregate; label: string }[] = [
  { value: "max_abs", label: "max |x|" },
  { value: "max", label: "max" },
  { value: "min", label: "min" },
  { value: "mean", label: "mean" },
  { value: "last", label: "last" },
];

export function CombineSteps() {
  const app = useApp();
  return (
    <Select
      label="Combine steps"
      value={app.state.value.aggregate}
      options={LABELS}
      onChange={(value) => app.set({ aggregate: value as Aggregate })}
    />
  );
}
