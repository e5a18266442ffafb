/** Another time axis: values of a clock (epochs, tokens, seconds) for steps, and back. */

import type { TimeAxis } from "../api.gen";
import { count, number } from "./format";
import { linearTicks, stepTicks } from "./scales";

export interface TimeTick {
  step: number;
  label: string;
}

/** What the clock shows at a step: between two known steps by the rule of three. */
export function clockAt({ steps, values }: TimeAxis, step: number): number {
  return between(steps, values, step);
}

/** The step at which the clock shows a value. */
export function stepOf({ steps, values }: TimeAxis, value: number): number {
  return between(values, steps, value);
}

function between(x: ArrayLike<number>, y: ArrayLike<number>, at: number): number {
  const n = x.length;
  if (n === 0) return Number.NaN;
  if (n === 1 || at <= x[0]) return y[0];
  if (at >= x[n - 1]) return y[n - 1];
  let [low, high] = [0, n - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= at) low = middle;
    else high = middle;
  }
  const t = (at - x[low]) / (x[high] - x[low] || 1);
  return y[low] + t * (y[high] - y[low]);
}

/** Round numbers of the clock between two steps, and where they stand. Steps where there is none. */
export function timeTicks(
  clock: TimeAxis | null,
  first: number,
  last: number,
  most: number,
): TimeTick[] {
  if (!clock) return stepTicks(first, last, most).map((step) => ({ step, label: count(step) }));
  const [from, to] = [clockAt(clock, first), clockAt(clock, last)];
  if (!(to > from)) return [{ step: first, label: clockWords(clock, from) }];
  return linearTicks(from, to, most).map((value) => ({
    step: stepOf(clock, value),
    label: clockWords(clock, value),
  }));
}

/** A value of the clock for people: seconds as time. */
export function clockWords({ name }: TimeAxis, value: number): string {
  if (name !== "time")
    return value >= 10_000 && Number.isInteger(value) ? count(value) : number(value);
  if (value < 60) return `${number(value)} s`;
  if (value < 3600) return `${number(value / 60)} min`;
  return `${number(value / 3600)} h`;
}
