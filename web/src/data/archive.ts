/**
 * Answers that were asked ahead: in a report, or along with the output of a notebook
 * (`sonde/present/archive.py`). They lie in blocks of compressed bytes, unpacked when they are shown.
 */

import type { Hits, SearchQuestion, State } from "../api.gen";
import { find } from "../core/search";
import { decode } from "./decode";
import type { Reply, Transport } from "./transport";

const FORMAT = 1;
/** Blocks that stay unpacked. */
const MOST_OPEN = 48;
const NOT_HERE =
  "This is not in the report. Open the run with `sonde view`, or export it again with a larger `--max-mb`.";

/** What the page says of an archive. */
export interface ArchiveAbout {
  made_ms: number;
  /** Of the run, as it was. */
  version: string;
  /** The run was still training. */
  was_live: boolean;
  holds: readonly string[];
  left_out: readonly string[];
}

type Text = string | readonly string[] | null;

interface Index {
  format: number;
  about: ArchiveAbout;
  /** Of each view the parameters that tell questions apart, and the one that need only be near. */
  views: [view: string, parameters: [name: string, value: Text][], near: string | null][];
  answers: [view: string, key: Text[], step: number | null, block: number, at: number, n: number][];
}

interface Place {
  step: number | null;
  block: number;
  at: number;
  n: number;
}

/** The text of a block by its name; null if there is none. */
export type Blocks = (name: string) => string | null;

export class Archive {
  private readonly views: ReadonlyMap<string, Index["views"][number]>;
  private readonly places = new Map<string, Place[]>();
  private readonly open = new Map<number, Promise<ArrayBuffer>>();

  private constructor(
    index: Index,
    private readonly blocks: Blocks,
  ) {
    this.about = index.about;
    this.views = new Map(index.views.map((view) => [view[0], view]));
    for (const [view, key, step, block, at, n] of index.answers) {
      const name = nameOf(view, key);
      const known = this.places.get(name);
      const place = { step, block, at, n };
      if (known) known.push(place);
      else this.places.set(name, [place]);
    }
    for (const places of this.places.values()) {
      places.sort((a, b) => (a.step ?? Infinity) - (b.step ?? Infinity));
    }
  }

  readonly about: ArchiveAbout;

  static async read(blocks: Blocks): Promise<Archive> {
    const text = blocks("index");
    if (!text) throw new Error("There is no index.");
    const index = JSON.parse(new TextDecoder().decode(await unpack(text))) as Index;
    if (index.format !== FORMAT) throw new Error("The archive is of another version.");
    return new Archive(index, blocks);
  }

  /** The bytes of an answer; null where it is not there. `isExact`: no other step will do. */
  async get(view: string, question: object, isExact = false): Promise<ArrayBuffer | null> {
    const known = this.views.get(view);
    if (!known) return null;
    const asked = new Map<string, unknown>(Object.entries(question));
    const key = known[1].map(([name, value]) => textOf(asked.get(name)) ?? value);
    const places = this.places.get(nameOf(view, key));
    if (!places) return null;
    const wanted = known[2] === null ? null : asked.get(known[2]);
    const place = nearest(places, typeof wanted === "number" ? wanted : null);
    if (isExact && typeof wanted === "number" && place.step !== wanted) return null;
    const bytes = await this.block(place.block);
    return bytes?.slice(place.at, place.at + place.n) ?? null;
  }

  private block(at: number): Promise<ArrayBuffer> | null {
    const known = this.open.get(at);
    if (known) return known;
    const text = this.blocks(String(at));
    if (text === null) return null;
    const made = unpack(text);
    this.open.set(at, made);
    for (const old of this.open.keys()) {
      if (this.open.size <= MOST_OPEN) break;
      this.open.delete(old);
    }
    return made;
  }
}

/** A page on an archive alone: no server is asked, and nothing changes. */
export function archived(reading: Promise<Archive>): Transport {
  const get: Transport["get"] = async (view, question) => {
    const archive = await reading;
    const body = await archive.get(view, question);
    if (!body) return refused(NOT_HERE);
    return reply(200, view === "search" ? searched(body, question) : body);
  };
  return {
    get,
    about: reading.then((archive) => archive.about),
    follow: (_runs, heard) => {
      let isOver = false;
      void get("state", {}, new AbortController().signal).then((found) => {
        if (!isOver) heard.state(decode<State>(found).spec);
      });
      return () => {
        isOver = true;
      };
    },
  };
}

/** The text blocks of a document: `<script type="text/plain" data-sonde="3">`. */
export function blocksOf(place: ParentNode): Blocks {
  const found = new Map<string, HTMLElement>();
  for (const element of place.querySelectorAll<HTMLElement>("script[data-sonde]"))
    found.set(element.dataset.sonde!, element);
  return (name) => found.get(name)?.textContent ?? null;
}

/** Bytes of base64. */
export function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

function unpack(text: string): Promise<ArrayBuffer> {
  const packed = new Blob([bytesOf(text)]).stream();
  return new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** At or before a step, else the first after it; the last where none is meant. */
function nearest(places: readonly Place[], step: number | null): Place {
  if (step === null) return places[places.length - 1];
  return places.findLast((p) => p.step !== null && p.step <= step) ?? places[0];
}

/** The modules that a text stands for, out of an answer that holds all of them. */
export function searched(body: ArrayBuffer, question: object): ArrayBuffer {
  const { q, limit } = question as SearchQuestion;
  const answer = decode<Hits>(reply(200, body));
  const spec = find(answer.spec, q ?? "", limit ?? 50);
  return encoded({ ...answer, spec });
}

function nameOf(view: string, key: readonly Text[]): string {
  return JSON.stringify([view, ...key]);
}

function textOf(value: unknown): Text {
  if (value === undefined || value === null) return null;
  if (Array.isArray(value)) return value.map(String);
  return typeof value === "boolean" ? (value ? "1" : "0") : String(value);
}

export function refused(message: string): Reply {
  return reply(404, encoded({ version: "", error: { status: 404, code: "not_here", message } }));
}

export function reply(status: number, body: ArrayBuffer): Reply {
  return { status, type: "", body, retryAfter: null };
}

function encoded(value: unknown): ArrayBuffer {
  return new TextEncoder().encode(JSON.stringify(value)).buffer as ArrayBuffer;
}
