/** The Python call that draws what is on screen. */

export type Value =
  | string
  | number
  | boolean
  | null
  | ReadonlyMap<string, string>
  | readonly Value[];

/** A figure of `run.plot`, what it is given by place, and options that are not the default. */
export interface Figure {
  name: string;
  given: readonly Value[];
  /** Runs that are given first: their paths stand in place of their ids. */
  others?: readonly string[];
  options?: readonly (readonly [string, Value | undefined])[];
}

/** Code to paste: opens the run (and others), then draws. */
export function python(path: string, { name, given, options = [] }: Figure): string {
  const shown = options.filter(([, value]) => value !== undefined);
  const parts = [
    ...given.map(literal),
    ...shown.map(([key, value]) => `${key}=${literal(value as Value)}`),
  ];
  return `import sonde\n\nrun = sonde.open(${literal(path)})\nrun.plot.${name}(${parts.join(", ")})\n`;
}

function literal(value: Value): string {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "number") return String(value);
  if (value instanceof Map)
    return `{${[...value].map(([k, v]) => `${literal(k)}: ${literal(v)}`).join(", ")}}`;
  return `(${(value as readonly Value[]).map(literal).join(", ")}${(value as readonly Value[]).length === 1 ? "," : ""})`;
}

/** The window on the time axis as `steps=`. */
export function stepsOption(
  x: { first: number; last: number | null } | null,
  latest: number | null,
): Value | undefined {
  if (!x) return undefined;
  return [x.first, x.last ?? latest ?? x.first];
}

/** Pairs `path=path` as `names=`. */
export function namesOption(names: readonly string[]): Value | undefined {
  if (names.length === 0) return undefined;
  return new Map(names.map((pair) => pair.split("=", 2) as [string, string]));
}
