/**
 * Where answers come from. The page knows this interface and nothing of HTTP: a notebook or a report
 * brings another one.
 */

import type { State } from "../api.gen";
import type { ArchiveAbout } from "./archive";
import { encode } from "./question";

/** What came back: the bytes of an answer, or of a failure. */
export interface Reply {
  status: number;
  type: string;
  body: ArrayBuffer;
  /** Seconds after which to ask again, if the other side said so. */
  retryAfter: number | null;
}

/** Something that answers questions. Throws when the other side cannot be reached. */
export interface Transport {
  get(view: string, question: object, abort: AbortSignal): Promise<Reply>;
  /** Follows runs; null where that is not possible and the page has to ask now and then. */
  follow: ((runs: readonly string[], heard: Heard) => () => void) | null;
  /** Of an archive that stands in for a server. */
  about?: Promise<ArchiveAbout>;
}

export interface Heard {
  state(state: State): void;
  /** The stream ended or could not be opened. */
  lost(): void;
}

/** Over HTTP, with addresses relative to the page, so that it works below any prefix. */
export function http(base: string): Transport {
  const address = (view: string, question: object) => {
    const query = encode(question);
    return new URL(`api/${view}${query ? `?${query}` : ""}`, base).href;
  };
  return {
    async get(view, question, abort) {
      const response = await fetch(address(view, question), {
        signal: abort,
        credentials: "same-origin",
        cache: "no-cache",
      });
      return {
        status: response.status,
        type: response.headers.get("content-type") ?? "",
        body: await response.arrayBuffer(),
        retryAfter: Number(response.headers.get("retry-after")) || null,
      };
    },
    follow:
      typeof EventSource === "undefined"
        ? null
        : (runs, heard) => {
            const source = new EventSource(address("events", { run: runs }));
            source.addEventListener("state", (event) => heard.state(JSON.parse(event.data)));
            // Reconnecting is ours to time and to show: EventSource gives up for good on a refusal.
            source.onerror = () => {
              source.close();
              heard.lost();
            };
            return () => source.close();
          },
  };
}
