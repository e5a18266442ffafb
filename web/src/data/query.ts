/**
 * A question that stays asked: it keeps its last answer while a new one is on its way, and while a
 * run grows it asks for what came since. Made for one view, closed with it.
 */

import { type Signal, signal } from "@preact/signals";
import type { Routes } from "../api.gen";
import type { Client, View } from "./client";
import { Refusal, UNREACHABLE } from "./decode";
import { encode } from "./question";

export interface Result<T> {
  /** The last answer, perhaps to an earlier question. */
  data: T | null;
  /** The question that `data` answers, as text. */
  key: string;
  isLoading: boolean;
  error: Refusal | null;
}

type Merge<T> = (old: T, delta: T) => T;

/** Counts what is on its way, so that the page can say when all that was asked for is there. */
export interface Waiting {
  begin(): void;
  end(): void;
}

export class Query<V extends View> {
  readonly result: Signal<Result<Routes[V]["answer"]>> = signal({
    data: null,
    key: "",
    isLoading: false,
    error: null,
  });

  private question: Routes[V]["question"] | null = null;
  private key = "";
  private abort: AbortController | null = null;
  private isRefreshing = false;
  private wantsRefresh = false;
  private version = "";

  constructor(
    private readonly client: Client,
    private readonly waiting: Waiting,
    private readonly view: V,
    private readonly cursor: ((data: Routes[V]["answer"]) => string) | null,
    private readonly merge: Merge<Routes[V]["answer"]> | null,
  ) {}

  /** Asks this from now on. Null for nothing. The same question again does nothing. */
  ask(question: Routes[V]["question"] | null): void {
    const key = question === null ? "" : encode(question);
    if (key === this.key && (question === null) === (this.question === null)) return;
    this.key = key;
    this.question = question;
    this.abort?.abort();
    this.abort = null;
    this.wantsRefresh = false;
    if (question === null)
      this.result.value = { data: null, key: "", isLoading: false, error: null };
    else void this.load(question, key);
  }

  /** The run has come as far as `version`: asks for what came since, if anything did. */
  refresh(version?: string): void {
    if (!this.question || (version !== undefined && version === this.version)) return;
    const { data, key, isLoading, error } = this.result.peek();
    if (isLoading) return;
    if (this.isRefreshing) this.wantsRefresh = true;
    else if (data !== null && key === this.key && !error)
      void this.update(this.question, key, data);
    else void this.load(this.question, this.key);
  }

  close(): void {
    this.abort?.abort();
    this.question = null;
  }

  private async load(question: Routes[V]["question"], key: string): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    this.waiting.begin();
    this.result.value = { ...this.result.peek(), isLoading: true };
    try {
      const { spec, run } = await this.client.ask(this.view, question, abort.signal);
      if (abort.signal.aborted) return;
      this.version = run?.version ?? "";
      this.result.value = { data: spec, key, isLoading: false, error: null };
    } catch (error) {
      if (!abort.signal.aborted) this.fail(error, key);
    } finally {
      this.waiting.end();
    }
  }

  private async update(
    question: Routes[V]["question"],
    key: string,
    data: Routes[V]["answer"],
  ): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    this.isRefreshing = true;
    try {
      const more = this.cursor ? { ...question, after: this.cursor(data) } : question;
      const { spec, run } = await this.client.ask(this.view, more, abort.signal);
      if (abort.signal.aborted) return;
      this.version = run?.version ?? "";
      const joined = this.merge ? this.merge(data, spec) : spec;
      this.result.value = { data: joined, key, isLoading: false, error: null };
    } catch (error) {
      // What is on screen stays: the connection has its own place to say that it is lost.
      const isAway = error instanceof Refusal && error.code === UNREACHABLE;
      if (!abort.signal.aborted && !isAway) this.fail(error, key);
    } finally {
      this.isRefreshing = false;
      if (this.wantsRefresh && !abort.signal.aborted) {
        this.wantsRefresh = false;
        this.refresh();
      }
    }
  }

  private fail(error: unknown, key: string): void {
    const problem =
      error instanceof Refusal
        ? error
        : new Refusal({
            status: 0,
            code: "failed",
            message: `The answer could not be read: ${error}`,
          });
    const { data, key: oldKey } = this.result.peek();
    this.result.value = {
      data: oldKey === key ? data : null,
      key,
      isLoading: false,
      error: problem,
    };
  }
}
