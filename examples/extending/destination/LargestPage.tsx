/** The tensors of the last recorded step, largest first. Lies in `web/src/views`. */

import { useApp, useQuery } from "../app/hooks";
import { kind, number } from "../core/format";
import { Failed, Loading } from "./States";

export function LargestPage() {
  const run = useApp().run.value!;
  const { data, error } = useQuery("largest", { run }).value;
  if (error && !data) return <Failed error={error} what="The largest tensors" />;
  if (!data) return <Loading what="the largest tensors" />;
  return (
    <table data-largest>
      <caption>Step {data.step}</caption>
      <tbody>
        {data.rows.map((row) => (
          <tr key={row.name}>
            <td>{row.name}</td>
            <td>{kind(row.kind)}</td>
            <td class="right number">{number(row.max_abs)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
