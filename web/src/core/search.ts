/** Searching modules by the rules of the server, for pages that hold all of them. */

import type { Hit, Hits } from "../api.gen";

const EXPRESSION = "re:";
const MOST_TEXT = 1000;

/** The modules that a text stands for, those that match closest to their end first. */
export function find({ hits }: Hits, text: string, limit: number): Hits {
  const isMeant = matcher(text);
  const found = hits.filter(isMeant).map((hit) => ({ hit, rank: rank(hit.path, text) }));
  found.sort((a, b) => a.rank - b.rank); // stable: the order of the model among equals
  const shown = found.slice(0, limit).map(({ hit }) => hit);
  return { hits: shown, left_out: found.length - shown.length };
}

function matcher(text: string): (hit: Hit) => boolean {
  if (text.startsWith("=")) {
    const wanted = text.slice(1);
    return ({ path, module }) =>
      wanted === "." || wanted === "" ? module === "." : path === wanted;
  }
  if (text.startsWith(EXPRESSION)) {
    const expression = compiled(text.slice(EXPRESSION.length));
    return ({ path }) => expression.test(path.slice(0, MOST_TEXT));
  }
  if (/[*?[]/.test(text)) {
    const glob = compiled(globSource(text.toLowerCase()));
    return ({ path }) => glob.test(path.toLowerCase().slice(0, MOST_TEXT));
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return ({ path, type }) => {
    const whole = `${path} ${type}`.toLowerCase();
    return words.every((word) => whole.includes(word));
  };
}

/** An expression that cannot be read matches nothing. */
function compiled(source: string): RegExp {
  try {
    return new RegExp(source, "i");
  } catch {
    return /(?!)/;
  }
}

/** `*` spans dots, `?` is one character, `[...]` one of several, `[!...]` none of them. */
function globSource(glob: string): string {
  const parts = glob.match(/\*+|\?|\[!?[^\]]+\]|[\s\S]/g) ?? [];
  const source = parts.map((part) => {
    if (part[0] === "*") return ".*";
    if (part === "?") return ".";
    if (part.length > 2 && part[0] === "[") {
      const inside = part.slice(1, -1).replace(/\\/g, "\\\\");
      return `[${inside.startsWith("!") ? `^${inside.slice(1)}` : inside.replace(/^\^/, "\\^")}]`;
    }
    return part.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
  });
  return `^${source.join("")}$`;
}

function rank(path: string, text: string): number {
  const [low, wanted] = [path.toLowerCase(), text.toLowerCase()];
  if (low === wanted) return 0;
  if (low.endsWith(`.${wanted}`)) return 1;
  return low.endsWith(wanted) ? 2 : 3;
}
