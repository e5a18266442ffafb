import { describe, expect, test } from "vitest";
import { DEFAULTS, type PageState, read, write } from "../src/core/url";

const FULL: PageState = {
  page: "layers",
  runs: ["a-12", "b-34"],
  x: { first: 10, last: null },
  step: 1200,
  kind: "output_grad",
  stat: "max_abs",
  metric: "entropy of √x & y",
  phase: "eval",
  rank: 3,
  axis: "epoch",
  line: "train/loss",
  isLineLog: true,
  scale: "exponent",
  range: "all",
  colour: "log",
  map: "cividis",
  norm: "start",
  aggregate: "mean",
  under: "h.3",
  order: "change",
  versus: "b-34",
  measure: "distance",
  names: ["encoder=backbone"],
  areRowsFolded: true,
  isTable: true,
  site: "h.3.attn#1/output/0",
  formats: ["bfloat16"],
  shift: -7,
  at: "h.3#1",
  on: "~0a1b2c",
  isFolded: false,
  unfold: ["h.0", "h.1.mlp"],
  direction: "LR",
  pins: [
    { letter: "B", node: "h.3.attn#1" },
    { letter: "A", module: "lm_head" },
  ],
  closed: ["optim"],
  isFollowing: false,
  theme: "dark",
  crosshair: "off",
  hasTree: false,
  hasDeck: false,
  unknown: [["later", "1 & 2"]],
};

describe("the address holds the state", () => {
  test("a state with everything set comes back as it was", () => {
    const hash = write(FULL);
    expect(read(hash)).toEqual(FULL);
    expect(write(read(hash))).toBe(hash);
  });

  test("every field differs from its default above, so that none is forgotten", () => {
    for (const [name, value] of Object.entries(FULL)) {
      expect(value, name).not.toEqual(DEFAULTS[name as keyof PageState]);
    }
  });

  test("each field alone comes back", () => {
    for (const name of Object.keys(FULL) as (keyof PageState)[]) {
      const state = { ...DEFAULTS, runs: ["r"], [name]: FULL[name] };
      expect(read(write(state)), name).toEqual(state);
    }
  });

  test("only what differs from the default is written", () => {
    expect(write({ ...DEFAULTS, runs: ["a-12"] })).toBe("#/overview?run=a-12");
    expect(write({ ...DEFAULTS, page: "runs" })).toBe("#/runs");
  });

  test("without an address the runs are shown; with a run the overview", () => {
    expect(read("").page).toBe("runs");
    expect(read("#/nonsense?run=a").page).toBe("overview");
  });

  test("what cannot be read has its default", () => {
    const state = read(
      "#/explore?run=a&step=x&scale=cubic&x=9:3&pins=1:a,A:b,A:c&rank=--&fold=maybe&%E0%A4%A=1",
    );
    expect(state).toMatchObject({
      step: null,
      scale: "auto",
      x: null,
      rank: null,
      isFolded: true,
    });
    expect(state.pins).toEqual([{ letter: "A", node: "b" }]);
  });

  test("a window may be open to the right", () => {
    expect(read("#/overview?run=a&x=5:").x).toEqual({ first: 5, last: null });
    expect(read("#/overview?run=a&x=5:9").x).toEqual({ first: 5, last: 9 });
  });
});

test("without a run every page is the list", () => {
  for (const page of ["explore", "layers", "overview"]) expect(read(`#/${page}`).page).toBe("runs");
  expect(read("#/explore?run=a").page).toBe("explore");
});
