/** Asks questions: a few at a time, decoded, with what is busy asked again. */

import type { Answer, Routes } from "../api.gen";
import { decode, Refusal, UNREACHABLE } from "./decode";
import type { Transport } from "./transport";

/** Browsers allow six connections to a host; one is the stream, one is kept for what is urgent. */
const AT_ONCE = 4;
const BUSY_TRIES = 4;

export type View = keyof Routes;

export class Client {
  private active = 0;
  private readonly waiting: (() => void)[] = [];

  constructor(
    readonly transport: Transport,
    private readonly onAnswer: (answer: Answer<unknown>) => void,
    private readonly onUnreachable: () => void,
  ) {}

  async ask<V extends View>(
    view: V,
    question: Routes[V]["question"],
    abort: AbortSignal,
  ): Promise<Answer<Routes[V]["answer"]>> {
    await this.turn();
    try {
      return await this.askNow(view, question, abort);
    } finally {
      this.active -= 1;
      this.waiting.shift()?.();
    }
  }

  private async askNow<V extends View>(
    view: V,
    question: Routes[V]["question"],
    abort: AbortSignal,
  ): Promise<Answer<Routes[V]["answer"]>> {
    for (let attempt = 1; ; attempt++) {
      abort.throwIfAborted();
      try {
        const reply = await this.reach(view, question, abort);
        const answer = decode<Routes[V]["answer"]>(reply);
        this.onAnswer(answer);
        return answer;
      } catch (error) {
        const isBusy = error instanceof Refusal && error.code === "busy";
        if (!isBusy || attempt >= BUSY_TRIES) throw error;
        await pause(1000 * Math.min(5, error.retryAfter ?? attempt), abort);
      }
    }
  }

  private async reach(view: string, question: object, abort: AbortSignal) {
    try {
      return await this.transport.get(view, question, abort);
    } catch (error) {
      if (abort.aborted) throw error;
      this.onUnreachable();
      const message = "The server cannot be reached.";
      throw new Refusal({ status: 0, code: UNREACHABLE, message });
    }
  }

  private async turn(): Promise<void> {
    if (this.active >= AT_ONCE) await new Promise<void>((go) => this.waiting.push(go));
    this.active += 1;
  }
}

function pause(ms: number, abort: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    abort.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(abort.reason);
    });
  });
}
