/** What stands where there is nothing to draw: loading, nothing there, not recorded, failed. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useApp } from "../app/hooks";
import type { Refusal } from "../data/decode";
import { Button } from "./Controls";
import { Words } from "./Words";

/** A place holder at its final size. Shown after a moment, so that quick answers do not flicker. */
export function Loading({ what }: { what: string }) {
  const [isLong, setLong] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLong(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class={`loading ${isLong ? "shown" : ""}`} role="status">
      <span>{isLong ? `Loading ${what}…` : ""}</span>
    </div>
  );
}

interface EmptyProps {
  title: string;
  children?: ComponentChildren;
}

export function Empty({ title, children }: EmptyProps) {
  return (
    <div class="state">
      <h3>{title}</h3>
      {children}
    </div>
  );
}

/** Why there is no answer, in the server's words, and what still works. */
export function Failed({
  error,
  what,
  onRetry,
}: {
  error: Refusal;
  what: string;
  onRetry?: () => void;
}) {
  const isMissing = error.problem.status === 404;
  return (
    <div class="state" role={isMissing ? "status" : "alert"}>
      <h3>{isMissing ? `${what}: nothing to show` : `${what} could not be loaded`}</h3>
      <p>
        <Words text={error.message} />
      </p>
      {onRetry && (
        <Button label="Try again" onClick={onRetry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** The run itself cannot be shown; other runs can. */
export function RunProblem({ error }: { error: Refusal }) {
  const app = useApp();
  return (
    <main class="centre whole">
      <div class="state" role="alert">
        <h3>
          {error.code === "no_such_run" ? "This run is not here" : "This run cannot be shown"}
        </h3>
        <p>
          <Words text={error.message} />
        </p>
        <p>
          <Button label="Try again" onClick={() => app.header.refresh()}>
            Try again
          </Button>{" "}
          <Button label="Show all runs" onClick={() => app.set({ page: "runs", runs: [] }, true)}>
            Show all runs
          </Button>
        </p>
      </div>
    </main>
  );
}
