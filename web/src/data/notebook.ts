/**
 * Answers in a notebook. What was sent along is there at once. The rest is asked of the server in the
 * kernel, which answers while a cell runs; where a browser cannot reach it, of the kernel itself,
 * which answers when the cell has ended and pushes what is on screen meanwhile.
 */

import { API, type State } from "../api.gen";
import { Archive, refused, reply, searched } from "./archive";
import { decode } from "./decode";
import { encode } from "./question";
import type { Heard, Reply, Transport } from "./transport";

declare const __VERSION__: string;

/** What anywidget hands to a widget; the traits that are ours. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, heard: (...given: never[]) => void): void;
  off(event: string, heard: (...given: never[]) => void): void;
  send(message: unknown): void;
}

interface Door {
  base?: string;
  token?: string;
}

type Message =
  | { kind: "state"; state: State }
  | { kind: "archive"; blocks: Record<string, string> }
  | { kind: "answer"; id: number; status: number };

/** After so long a question that waits for the kernel is answered with what was sent along. */
const PATIENCE_MS = 1500;
/** A server that could not be reached is tried again after this. */
const RETRY_MS = 15_000;
/** Questions that count as on screen. */
const MOST_SHOWN = 24;

export class Notebook implements Transport {
  private readonly shown = new Map<string, [string, [string, string][]]>();
  private readonly waiting = new Map<number, (found: Reply) => void>();
  private readonly listeners = new Set<Heard>();
  private latest: State | null = null;
  private awayMs = -Infinity;
  private count = 0;
  private telling: ReturnType<typeof setTimeout> | undefined;
  private readonly hear = (message: Message, buffers: readonly DataView[]) =>
    this.heard(message, buffers);

  constructor(
    private readonly model: Model,
    private archive: Promise<Archive>,
    private readonly onWaiting: (isWaiting: boolean) => void,
  ) {
    model.on("msg:custom", this.hear);
  }

  close(): void {
    clearTimeout(this.telling);
    this.model.off("msg:custom", this.hear);
  }

  async get(view: string, question: object, abort: AbortSignal): Promise<Reply> {
    if (view === "state") return this.state();
    const archive = await this.archive;
    const sent = await this.sent(archive, view, question);
    if (sent && this.isCurrent(archive)) return sent;
    const found = await this.overHttp(view, question, abort);
    if (found) return found;
    this.show(view, question);
    return this.throughKernel(view, question, sent, abort);
  }

  follow(_runs: readonly string[], heard: Heard): () => void {
    this.listeners.add(heard);
    void this.state().then((found) => {
      if (this.listeners.has(heard)) heard.state(decode<State>(found).spec);
    });
    return () => this.listeners.delete(heard);
  }

  private async state(): Promise<Reply> {
    if (this.latest) return reply(200, frame("state", { ...this.latest, changed: true }));
    const found = await (await this.archive).get("state", {});
    return found ? reply(200, found) : refused("The widget has no state.");
  }

  /** Whether what was sent along is still as the run is. */
  private isCurrent(archive: Archive): boolean {
    const now = this.latest?.runs[0]?.version;
    return now === undefined || now === archive.about.version;
  }

  private async sent(archive: Archive, view: string, question: object): Promise<Reply | null> {
    const found = await archive.get(view, question, true);
    if (!found) return null;
    return reply(200, view === "search" ? searched(found, question) : found);
  }

  private async overHttp(
    view: string,
    question: object,
    abort: AbortSignal,
  ): Promise<Reply | null> {
    const { base, token } = (this.model.get("_door") ?? {}) as Door;
    if (!base || Date.now() - this.awayMs < RETRY_MS) return null;
    try {
      const response = await fetch(new URL(`api/${view}?${encode(question)}`, base), {
        signal: abort,
        headers: { authorization: `Bearer ${token}` },
        credentials: "omit",
        cache: "no-store",
      });
      return {
        ...reply(response.status, await response.arrayBuffer()),
        retryAfter: Number(response.headers.get("retry-after")) || null,
      };
    } catch (error) {
      if (abort.aborted) throw error;
      this.awayMs = Date.now(); // another machine's kernel, or a host that forbids it
      return null;
    }
  }

  /** This is on screen: the kernel sends it from now on, as soon as it has heard so. */
  private show(view: string, question: object): void {
    const plain = pairs(question);
    const key = JSON.stringify([view, plain]);
    this.shown.delete(key);
    this.shown.set(key, [view, plain]);
    for (const old of this.shown.keys()) {
      if (this.shown.size <= MOST_SHOWN) break;
      this.shown.delete(old);
    }
    this.telling ??= setTimeout(() => {
      this.telling = undefined;
      this.model.send({ kind: "shown", questions: [...this.shown.values()] });
    }, 200);
  }

  /** Waits for the kernel; what was sent along is shown when that takes long. */
  private throughKernel(
    view: string,
    question: object,
    sent: Reply | null,
    abort: AbortSignal,
  ): Promise<Reply> {
    this.count += 1;
    const id = this.count;
    return new Promise((resolve, reject) => {
      const patience = setTimeout(() => {
        if (sent) end(() => resolve(sent));
        else this.onWaiting(true);
      }, PATIENCE_MS);
      const end = (finish: () => void) => {
        clearTimeout(patience);
        this.waiting.delete(id);
        if (this.waiting.size === 0) this.onWaiting(false);
        finish();
      };
      this.waiting.set(id, (found) => end(() => resolve(found)));
      abort.addEventListener("abort", () => end(() => reject(abort.reason)));
      this.model.send({ kind: "ask", id, view, question: pairs(question) });
    });
  }

  private heard(message: Message, buffers: readonly DataView[]): void {
    if (message.kind === "state") {
      this.latest = message.state;
      for (const { state } of this.listeners) state(message.state);
      return;
    }
    if (message.kind === "archive") {
      const blocks = new Map(Object.entries(message.blocks));
      this.archive = Archive.read((name) => blocks.get(name) ?? null);
      return;
    }
    const body = buffers[0] ? copied(buffers[0]) : new ArrayBuffer(0);
    this.waiting.get(message.id)?.(reply(message.status, body));
  }
}

/** A question as pairs of text, without what asks for a part only. */
function pairs(question: object): [string, string][] {
  const { after: _, ...plain } = question as { after?: string };
  return [...new URLSearchParams(encode(plain))];
}

function copied(view: DataView): ArrayBuffer {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength).slice()
    .buffer as ArrayBuffer;
}

function frame(view: string, spec: unknown): ArrayBuffer {
  const answer = { api: API, version: __VERSION__, view, run: null, spec };
  return new TextEncoder().encode(JSON.stringify(answer)).buffer as ArrayBuffer;
}
