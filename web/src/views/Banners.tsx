/** What concerns the whole page: a lost connection, a stale page, a run that ended badly. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { put } from "../app/app";
import { useApp } from "../app/hooks";
import { count } from "../core/format";
import { Button, Icon } from "./Controls";
import { ReportNote } from "./ReportNote";

export function Banners() {
  const app = useApp();
  return (
    <div class="banners">
      {app.stale.value && (
        <div class="banner warn" role="status">
          <Icon name="warn" />
          <span>{app.stale.value} Reload to use what belongs together.</span>
          <Button label="Reload" onClick={() => location.reload()}>
            Reload
          </Button>
        </div>
      )}
      <LostConnection />
      {app.around.isWaiting?.value && (
        <div class="banner" role="status" data-waiting>
          <Icon name="warn" />
          <span>
            <b>The kernel is busy.</b> What is live goes on; the rest loads when the cell has ended.
          </span>
        </div>
      )}
      <ReportNote />
      <RunEnd />
    </div>
  );
}

function LostConnection() {
  const app = useApp();
  const { is, retryAtMs, message } = app.live.connection.value;
  const now = useSignal(Date.now());
  const isAway = is === "lost" || is === "refused";
  useEffect(() => {
    if (!isAway) return;
    now.value = Date.now();
    const timer = setInterval(() => {
      now.value = Date.now();
    }, 500);
    return () => clearInterval(timer);
  }, [isAway]);
  if (!isAway) return null;
  const seconds = Math.max(0, Math.ceil((retryAtMs - now.value) / 1000));
  const step = app.lastStep.value;
  return (
    <div class="banner warn" role="status" data-connection={is}>
      <Icon name="warn" />
      <span>
        <b>{is === "refused" ? "The server does not know this page." : "Disconnected."}</b>{" "}
        {message}{" "}
        {is === "refused"
          ? "It may have been started anew: open the address that it printed."
          : `What you see is as of ${step === null ? "before" : `step ${count(step)}`}.`}{" "}
        {seconds > 0 ? `Trying again in ${seconds} s.` : "Trying again…"}
      </span>
      <Button label="Try now" onClick={() => app.live.retry()}>
        Try now
      </Button>
    </div>
  );
}

function RunEnd() {
  const app = useApp();
  const seen = useSignal("");
  const status = app.runStatus.value;
  const run = app.run.value;
  if (app.state.value.page === "runs" || (status !== "crashed" && status !== "failed")) return null;
  const key = `${run} ${status}`;
  if (seen.value === key) return null;
  const step = app.lastStep.value;
  const reason = app.about.value?.reason;
  return (
    <div class="banner bad" role="status" data-run-status={status}>
      <Icon name="warn" />
      <span>
        <b>{status === "crashed" ? "Crashed:" : "Failed:"}</b>{" "}
        {status === "crashed" ? "the process died without closing the run." : (reason ?? "")}{" "}
        {step === null ? "No step was recorded." : `Steps up to ${count(step)} are shown.`}
      </span>
      <Button label="Hide this message" icon="close" isQuiet onClick={() => put(seen, key)} />
    </div>
  );
}

export function Toast() {
  const app = useApp();
  const text = app.toast.value;
  useEffect(() => {
    if (!text) return;
    const timer = setTimeout(() => {
      app.toast.value = "";
    }, 4000);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div class={`toast ${text ? "shown" : ""}`} role="status" aria-live="polite">
      {text}
    </div>
  );
}
