/** A small line without axes. Where values are not finite it says so in magenta, at the top. */

import { useMemo } from "preact/hooks";
import { EMPTY, NONFINITE } from "../api.gen";

interface Props {
  x: ArrayLike<number>;
  y: ArrayLike<number>;
  flags: ArrayLike<number>;
  width: number;
  height: number;
  label?: string;
}

export function Spark({ x, y, flags, width, height, label }: Props) {
  const { path, bad } = useMemo(
    () => sparkPath(x, y, flags, width, height),
    [x, y, flags, width, height],
  );
  return (
    <svg
      class="spark"
      width={width}
      height={height}
      role={label ? "img" : undefined}
      aria-label={label}
      aria-hidden={label ? undefined : true}
    >
      <path class="spark-line" d={path} />
      {bad && <path class="spark-bad" d={bad} />}
    </svg>
  );
}

/** The paths of a small line: its values, and marks where they are not finite. */
export function sparkPath(
  x: ArrayLike<number>,
  y: ArrayLike<number>,
  flags: ArrayLike<number>,
  width: number,
  height: number,
): { path: string; bad: string } {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < y.length; i++) {
    if (!Number.isFinite(y[i])) continue;
    low = Math.min(low, y[i]);
    high = Math.max(high, y[i]);
  }
  const [first, last] = [x[0], x[x.length - 1]];
  const px = (i: number) => 1 + ((x[i] - first) / (last - first || 1)) * (width - 2);
  const py = (v: number) =>
    high > low ? 2 + (1 - (v - low) / (high - low)) * (height - 4) : height / 2;
  let path = "";
  let bad = "";
  let isOn = false;
  for (let i = 0; i < y.length; i++) {
    if (flags[i] === NONFINITE) bad += `M${px(i).toFixed(1)} 0v3`;
    if (flags[i] === EMPTY || !Number.isFinite(y[i])) {
      isOn = false;
      continue;
    }
    path += `${isOn ? "L" : "M"}${px(i).toFixed(1)} ${py(y[i]).toFixed(1)}`;
    if (!isOn && (i + 1 >= y.length || !Number.isFinite(y[i + 1]))) path += "h.1";
    isOn = true;
  }
  return { path, bad };
}
