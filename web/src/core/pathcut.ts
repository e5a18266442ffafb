/** Paths that are too long for their place: what tells them apart stays. */

const CUT = "…";

/**
 * A path (and what follows it after a space) cut in its middle until it fits. The leaf stays longest,
 * then indices (the outermost is that of the layer), the first part, and names from the end on.
 */
export function cutPath(text: string, fits: (text: string) => boolean): string {
  if (fits(text)) return text;
  const space = text.indexOf(" ");
  const path = space < 0 ? text : text.slice(0, space);
  const rest = space < 0 ? "" : text.slice(space);
  const parts = path.split(".");
  let best = cutMiddle(`${parts[parts.length - 1]}${rest}`, fits);
  const kept = new Set([parts.length - 1]);
  if (best !== `${parts[parts.length - 1]}${rest}`) return best;
  for (const i of byWorth(parts)) {
    kept.add(i);
    const made = joined(parts, kept) + rest;
    if (fits(made)) best = made;
    else kept.delete(i);
  }
  return best;
}

/** Any text cut in its middle until it fits; empty if not even an ellipsis does. */
export function cutMiddle(text: string, fits: (text: string) => boolean): string {
  if (fits(text)) return text;
  const letters = [...text];
  let [low, high] = [0, letters.length - 1];
  const cut = (n: number) => {
    const head = Math.floor(n / 2);
    return (
      letters.slice(0, head).join("") + CUT + letters.slice(letters.length - (n - head)).join("")
    );
  };
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (fits(cut(middle))) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? cut(low) : "";
}

/** All parts but the leaf, what says most first. */
function byWorth(parts: readonly string[]): number[] {
  const isIndex = (i: number) => /^\d+$/.test(parts[i]);
  const others = parts.map((_, i) => i).slice(0, -1);
  const indices = others.filter(isIndex);
  const names = others.filter((i) => !isIndex(i));
  return [...indices, ...names.slice(0, 1), ...names.slice(1).reverse()];
}

function joined(parts: readonly string[], kept: ReadonlySet<number>): string {
  let text = "";
  let last = -1;
  for (const i of [...kept].sort((a, b) => a - b)) {
    const isNext = i === last + 1;
    text += i === 0 ? parts[i] : isNext ? `.${parts[i]}` : `${CUT}${parts[i]}`;
    last = i;
  }
  return text;
}
