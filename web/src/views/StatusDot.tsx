/** How a run is: a mark that differs in shape as well as in colour. */

import type { RunStatus } from "../api.gen";

const WORDS: Record<RunStatus, string> = {
  live: "live",
  finished: "finished",
  failed: "failed",
  crashed: "crashed",
  unknown: "unknown",
};

const SHAPES: Record<RunStatus, string> = {
  live: "M6 2a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z",
  finished: "M2.5 6.3 5 8.8 9.8 3.4",
  failed: "M3 3l6 6M9 3l-6 6",
  crashed: "M6 1.8 10.8 10H1.2Z",
  unknown: "M3 6h6",
};

export function StatusDot({ status }: { status: RunStatus }) {
  return (
    <svg
      class={`statusdot ${status}`}
      width="12"
      height="12"
      viewBox="0 0 12 12"
      role="img"
      aria-label={WORDS[status]}
    >
      <path d={SHAPES[status]} />
    </svg>
  );
}
