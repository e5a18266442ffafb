/**
 * Follows runs. First it asks how far they have come; once that works a stream says whenever
 * something advances, or where streams cannot be had, it asks now and then. While the server is
 * away it asks with growing pauses. What advanced is for queries to ask.
 */

import { type Signal, signal } from "@preact/signals";
import type { RunState, State } from "../api.gen";
import type { Client } from "./client";
import { Refusal, UNREACHABLE } from "./decode";

export interface Connection {
  is: "connecting" | "open" | "lost" | "refused";
  /** When it will be tried again, in milliseconds since the epoch. */
  retryAtMs: number;
  message: string;
}

const POLL_MS = 1500;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
const AFTER_STREAM_MS = 300;
/** A stream that says nothing for this long is held back by something in between. */
const SILENT_MS = 5000;
const SILENT_STREAMS = 2;

export class Live {
  readonly connection: Signal<Connection> = signal({ is: "connecting", retryAtMs: 0, message: "" });
  readonly states: Signal<ReadonlyMap<string, RunState>> = signal(new Map());
  readonly listVersion = signal("");

  private runs: readonly string[] | null = null;
  private token = "";
  private failures = 0;
  private silentStreams = 0;
  private isAsking = false;
  private attempt = new AbortController();
  private readonly ended = new AbortController();

  constructor(private readonly client: Client) {
    const { signal: abort } = this.ended;
    document.addEventListener("visibilitychange", () => this.onVisible(), { signal: abort });
  }

  /** Follows these runs from now on. */
  follow(runs: readonly string[]): void {
    if (this.runs && runs.join() === this.runs.join()) return;
    this.runs = runs;
    this.token = "";
    void this.begin();
  }

  /** Tries again now, whatever the pause. */
  retry(): void {
    if (this.connection.value.is !== "open") void this.begin();
  }

  /** Another request could not reach the server: find out now instead of waiting for the stream. */
  doubt(): void {
    if (this.connection.value.is === "open" && !this.isAsking) void this.begin();
  }

  close(): void {
    this.ended.abort();
    this.attempt.abort();
  }

  private async begin(): Promise<void> {
    this.attempt.abort();
    if (!this.runs || this.ended.signal.aborted) return;
    this.attempt = new AbortController();
    const { signal: abort } = this.attempt;
    this.isAsking = true;
    try {
      const question = { run: [...this.runs], since: this.token || undefined };
      this.hear((await this.client.ask("state", question, abort)).spec);
    } catch (error) {
      if (!abort.aborted) this.fail(error);
      return;
    } finally {
      if (!abort.aborted) this.isAsking = false; // else a later attempt asks
    }
    if (this.client.transport.follow && this.silentStreams < SILENT_STREAMS) this.stream(abort);
    else this.later(POLL_MS);
  }

  private stream(abort: AbortSignal): void {
    let hasSpoken = false;
    const next = () => {
      if (!hasSpoken) this.silentStreams += 1;
      end();
      clearTimeout(silence);
      this.later(AFTER_STREAM_MS);
    };
    const silence = setTimeout(next, SILENT_MS);
    const state = (said: State) => {
      hasSpoken = true;
      this.silentStreams = 0;
      clearTimeout(silence);
      this.hear(said);
    };
    const end = this.client.transport.follow!(this.runs!, { state, lost: next });
    abort.addEventListener("abort", () => {
      clearTimeout(silence);
      end();
    });
  }

  private hear(state: State): void {
    this.failures = 0;
    this.token = state.token;
    this.listVersion.value = state.list_version;
    if (this.connection.peek().is !== "open") {
      this.connection.value = { is: "open", retryAtMs: 0, message: "" };
    }
    if (state.runs.length === 0) return;
    const states = new Map(this.states.peek());
    for (const run of state.runs) states.set(run.id, run);
    this.states.value = states;
  }

  private fail(error: unknown): void {
    const pauseMs = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.failures);
    this.failures += 1;
    const refusal = error instanceof Refusal ? error : null;
    const isRefused =
      refusal !== null && refusal.code !== UNREACHABLE && refusal.problem.status < 500;
    this.connection.value = {
      is: isRefused ? "refused" : "lost",
      retryAtMs: Date.now() + pauseMs,
      message: refusal?.message ?? "The connection was lost.",
    };
    this.later(pauseMs);
  }

  private later(ms: number): void {
    const timer = setTimeout(() => void this.begin(), ms);
    this.attempt.signal.addEventListener("abort", () => clearTimeout(timer));
  }

  private onVisible(): void {
    if (document.hidden) this.attempt.abort();
    else void this.begin();
  }
}
