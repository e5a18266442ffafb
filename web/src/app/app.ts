/**
 * What all parts of the page share: the state, the time axis, the cursor, the theme, the connection.
 * One is made for each place where the page is mounted; nothing lives outside it.
 */

import { batch, computed, effect, type ReadonlySignal, type Signal, signal } from "@preact/signals";
import { type Answer, API, type RunHeader, type RunStatus, type TimeAxis } from "../api.gen";
import type { Domain } from "../core/columns";
import type { Command } from "../core/keys";
import { DARK, LIGHT, type Tokens } from "../core/tokens";
import { type PageState, read, write } from "../core/url";
import type { ArchiveAbout } from "../data/archive";
import { Client } from "../data/client";
import { Live } from "../data/live";
import { Query } from "../data/query";
import type { Transport } from "../data/transport";
import type { Address } from "./address";
import { Readiness } from "./ready";

declare const __VERSION__: string;
export const VERSION = __VERSION__;

export interface Theme {
  isDark: boolean;
  tokens: Tokens;
}

/** Something worth going to with `,` and `.`: where values stopped being finite, a notice. */
export interface Event {
  step: number;
  label: string;
  isBad: boolean;
}

/** What the page around the app says. */
export interface Surroundings {
  isDark?: ReadonlySignal<boolean | null>;
  isWaiting?: ReadonlySignal<boolean>;
  /** The document is ours, its title too. */
  isWholePage: boolean;
}

/** How often what has no deltas is asked again while a run grows. */
const HEADER_MS = 4000;

export class App {
  readonly state: Signal<PageState>;
  readonly client: Client;
  readonly live: Live;
  readonly ready: Readiness;
  readonly header: Query<"run">;
  private readonly clocks: Query<"clock">;

  /** The step under the pointer, in whichever chart it is. */
  readonly hover: Signal<number | null> = signal(null);
  /** What the pointer is on, for the line at the bottom; the honesty line of what is in front. */
  readonly status: Signal<string> = signal("");
  readonly notes: Signal<readonly string[]> = signal([]);
  readonly dialog: Signal<"palette" | "search" | "help" | null> = signal(null);
  readonly events: Signal<readonly Event[]> = signal([]);
  /** Nothing was asked for yet: then a single run is opened at once. */
  isFresh: boolean;
  readonly toast: Signal<string> = signal("");
  readonly stale: Signal<string> = signal("");
  /** Of the report that this is; null where a server answers. */
  readonly report: Signal<ArchiveAbout | null> = signal(null);
  /** What is being dragged to the panels. */
  readonly dragged: Signal<{ label: string; x: number; y: number } | null> = signal(null);
  /** What commands mean where they depend on what is on screen. */
  readonly handlers = new Map<Command, () => void>();

  /** Where the time axis of the largest plot lies on screen; the timeline shares it. */
  readonly axis: Signal<{ left: number; right: number } | null> = signal(null);
  readonly run: ReadonlySignal<string | null>;
  readonly about: ReadonlySignal<RunHeader | null>;
  readonly runStatus: ReadonlySignal<RunStatus | null>;
  readonly lastStep: ReadonlySignal<number | null>;
  readonly domain: ReadonlySignal<Domain | null>;
  readonly wholeDomain: ReadonlySignal<Domain | null>;
  readonly cursor: ReadonlySignal<number | null>;
  /** What stands on the time axis in place of steps. */
  readonly clock: ReadonlySignal<TimeAxis | null>;
  /** Events, and what the user noted at steps. */
  readonly marks: ReadonlySignal<readonly Event[]>;
  readonly theme: ReadonlySignal<Theme>;
  readonly isDarkHost: Signal<boolean>;

  /** Where the page stood still when following was switched off. */
  private readonly frozen: Signal<number | null> = signal(null);
  private readonly endings: (() => void)[] = [];

  constructor(
    transport: Transport,
    private readonly address: Address,
    readonly host: HTMLElement,
    readonly around: Surroundings,
  ) {
    this.state = signal(read(address.read()));
    this.isFresh = address.read() === "";
    this.ready = new Readiness(host);
    this.client = new Client(
      transport,
      (answer) => this.compareVersions(answer),
      () => this.live.doubt(),
    );
    this.live = new Live(this.client);
    void transport.about?.then((about) => put(this.report, about));
    this.header = new Query(this.client, this.ready, "run", null, null);
    this.clocks = new Query(this.client, this.ready, "clock", null, null);

    const dark = matchMedia("(prefers-color-scheme: dark)");
    this.isDarkHost = signal(dark.matches);
    const onDark = () => {
      this.isDarkHost.value = dark.matches;
    };
    dark.addEventListener("change", onDark);

    this.run = computed(() => this.state.value.runs[0] ?? null);
    this.about = computed(() => this.header.result.value.data);
    const told = computed(() => this.live.states.value.get(this.run.value ?? ""));
    this.runStatus = computed(() => told.value?.status ?? this.about.value?.status ?? null);
    const latest = computed(() => {
      const [state, about] = [told.value, this.about.value];
      const isOver = state !== undefined && state.status !== "live";
      return (
        (isOver ? about?.last_step : state?.last_step) ??
        about?.last_step ??
        state?.last_step ??
        null
      );
    });
    this.lastStep = latest;
    this.wholeDomain = computed(() => {
      const about = this.about.value;
      const last = this.frozen.value ?? latest.value;
      if (!about || about.first_step === null || last === null) return null;
      return span(about.first_step, last, cadenceOf(about));
    });
    this.domain = computed(() => {
      const whole = this.wholeDomain.value;
      const { x } = this.state.value;
      if (!whole || !x) return whole;
      return span(x.first, x.last ?? Math.max(x.first, whole.to - whole.cadence), whole.cadence);
    });
    this.cursor = computed(() => {
      const whole = this.wholeDomain.value;
      return this.state.value.step ?? (whole ? whole.to - whole.cadence : null);
    });
    this.clock = computed(() => (this.state.value.axis ? this.clocks.result.value.data : null));
    this.marks = computed(() => {
      const notes = this.about.value?.step_notes ?? [];
      const told = notes.map(({ step, text: label }) => ({ step, label, isBad: false }));
      return [...this.events.value, ...told];
    });
    this.theme = computed(() => {
      const wish = this.state.value.theme;
      const isDarkAround = around.isDark?.value ?? this.isDarkHost.value;
      const isDark = wish === "auto" ? isDarkAround : wish === "dark";
      return { isDark, tokens: isDark ? DARK : LIGHT };
    });

    this.endings.push(
      address.listen(() => {
        this.state.value = read(address.read());
      }),
      () => dark.removeEventListener("change", onDark),
      () => this.live.close(),
      () => this.header.close(),
      effect(() => {
        const { runs, page } = this.state.value;
        this.live.follow(page === "runs" ? [] : runs);
      }),
      effect(() => {
        const { page } = this.state.value;
        const run = this.run.value;
        this.header.ask(run && page !== "runs" ? { run } : null);
      }),
      () => this.clocks.close(),
      effect(() => {
        const { axis: name, page } = this.state.value;
        const run = this.run.value;
        this.clocks.ask(run && name && page !== "runs" ? { run, name } : null);
        const state = run ? this.live.states.value.get(run) : undefined;
        if (state && name) this.clocks.refresh(state.version);
        const { error } = this.clocks.result.value;
        if (error && name) this.say(error.message);
      }),
      this.freezeWhenPaused(),
      this.refreshHeader(),
    );
  }

  /** Changes the state. `isPlace` for what Back should return from: a page, a level, a pin. */
  set(change: Partial<PageState>, isPlace = false): void {
    const next = { ...this.state.peek(), ...change };
    this.isFresh = false;
    this.state.value = next;
    this.address.write(write(next), isPlace);
  }

  /** Shows a node of the graph: its inside, or the level that it stands on with it chosen. */
  focusNode(node: string, isOpened: boolean): void {
    const run = this.run.peek();
    if (!run) return;
    if (isOpened) {
      this.set({ page: "explore", at: node, on: null }, true);
      return;
    }
    this.ready.begin();
    this.client
      .ask("panel", { run, node }, new AbortController().signal)
      .then(({ spec }) => this.set({ page: "explore", at: spec.parent ?? ".", on: node }, true))
      .catch((error: Error) => this.say(error.message))
      .finally(() => this.ready.end());
  }

  /** The name of a run. Others than the first are known by their ids: a name and six digits. */
  nameOf(run: string): string {
    const about = this.about.value;
    return run === this.run.value && about ? about.name : run.replace(/-[0-9a-f]{6}$/, "");
  }

  link(): string {
    return new URL(write(this.state.peek()), document.baseURI).href;
  }

  say(text: string): void {
    this.toast.value = text;
  }

  close(): void {
    for (const end of this.endings) end();
  }

  /** New steps that are not shown because the page is paused. */
  newSteps(): number {
    const frozen = this.frozen.value;
    const last = this.lastStep.value;
    return frozen === null || last === null ? 0 : Math.max(0, last - frozen);
  }

  private compareVersions(answer: Answer<unknown>): void {
    if (answer.api !== API || answer.version !== VERSION) {
      this.stale.value = `This page is of version ${VERSION}, the server of ${answer.version}.`;
    } else if (this.stale.peek()) this.stale.value = "";
  }

  private freezeWhenPaused(): () => void {
    return effect(() => {
      const { isFollowing } = this.state.value;
      const run = this.run.value;
      const last = this.lastStep.value;
      batch(() => {
        if (isFollowing || !run) this.frozen.value = null;
        else if (this.frozen.peek() === null) this.frozen.value = last;
      });
    });
  }

  private refreshHeader(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let status: string | undefined;
    const end = effect(() => {
      const run = this.run.value;
      const state = run ? this.live.states.value.get(run) : undefined;
      if (!state) return;
      const hasTurned = status !== undefined && status !== state.status;
      status = state.status;
      if (hasTurned) this.header.refresh();
      else
        timer ??= setTimeout(() => {
          timer = undefined;
          this.header.refresh(state.version);
        }, HEADER_MS);
    });
    return () => {
      end();
      clearTimeout(timer);
    };
  }
}

function span(first: number, last: number, cadence: number): Domain {
  return { from: first, to: Math.max(last, first) + cadence, cadence };
}

/** The usual distance between two steps of which a run knows something. */
function cadenceOf(about: RunHeader): number {
  const { first_step: first, last_step: last, known_steps: n } = about;
  if (first === null || last === null || n < 2) return 1;
  return Math.max(1, Math.round((last - first) / (n - 1)));
}

/** Gives a signal a value, where a statement would be in the way. */
export function put<T>(signal: Signal<T>, value: T): void {
  signal.value = value;
}
