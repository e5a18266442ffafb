import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Client } from "../src/data/client";
import { Live } from "../src/data/live";
import type { Heard, Transport } from "../src/data/transport";

const SAID = { token: "t", list_version: "v", changed: true, runs: [] };
const answer = () => new TextEncoder().encode(JSON.stringify({ spec: SAID })).buffer as ArrayBuffer;

/** A server that can be switched off. */
class Far implements Transport {
  isUp = true;
  asked = 0;
  heard: Heard | null = null;

  async get() {
    this.asked += 1;
    await Promise.resolve();
    if (!this.isUp) throw new TypeError("Failed to fetch");
    return { status: 200, type: "", body: answer(), retryAfter: null };
  }

  follow = (_runs: readonly string[], heard: Heard) => {
    this.heard = heard;
    heard.state(SAID);
    return () => {};
  };
}

function followed() {
  const far = new Far();
  const client: Client = new Client(
    far,
    () => {},
    () => live.doubt(),
  );
  const live: Live = new Live(client);
  live.follow(["a"]);
  return { far, live };
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("document", { addEventListener: () => {}, hidden: false });
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

test("a server that went away is asked with growing pauses, and found again", async () => {
  const { far, live } = followed();
  await vi.advanceTimersByTimeAsync(10);
  expect(live.connection.value.is).toBe("open");
  far.isUp = false;
  far.asked = 0;
  far.heard?.lost();
  await vi.advanceTimersByTimeAsync(400);
  expect(live.connection.value.is).toBe("lost");
  expect(far.asked).toBe(1);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(far.asked).toBeLessThan(8);
  far.isUp = true;
  await vi.advanceTimersByTimeAsync(16_000);
  expect(live.connection.value.is).toBe("open");
  live.close();
});

test("a question that cannot reach the server makes the page look for it at once", async () => {
  const { far, live } = followed();
  await vi.advanceTimersByTimeAsync(10);
  far.isUp = false;
  live.doubt();
  await vi.advanceTimersByTimeAsync(10);
  expect(live.connection.value.is).toBe("lost");
  live.close();
});
