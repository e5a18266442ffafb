/** That this is a report, when it was made, and what it does not hold. */

import { useApp } from "../app/hooks";

export function ReportNote() {
  const app = useApp();
  const report = app.report.value;
  if (!report) return null;
  const made = new Date(report.made_ms);
  return (
    <details class="banner report-note" data-report>
      <summary>
        <b>Report</b> of{" "}
        <time dateTime={made.toISOString()}>
          {made.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}
        </time>
        {report.was_live && ", while the run was training"}
        <span class="link">What was left out</span>
      </summary>
      <div class="report-lists">
        <section>
          <h2>It holds</h2>
          <ul>
            {report.holds.map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        </section>
        <section>
          <h2>Left out</h2>
          <ul data-left-out>
            {report.left_out.map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        </section>
      </div>
    </details>
  );
}
