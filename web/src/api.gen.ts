// Written by `python -m sonde.views.typescript`. Do not edit.

export const API = 2;

export const KINDS = ["input", "output", "input_grad", "output_grad", "param", "param_grad", "update", "optim", "attach", "attach_grad", "local"] as const;

export const EMPTY = 0;
export const NUMBER = 1;
export const NONFINITE = 2;

export type RunStatus = "live" | "finished" | "failed" | "crashed" | "unknown";
export type Scale = "linear" | "log" | "asinh" | "exponent";
export type ScaleChoice = "auto" | "linear" | "log" | "asinh" | "exponent";
export type Aggregate = "max_abs" | "max" | "min" | "mean" | "last";
export type Norm = "none" | "start" | "z";
export type Measure = "ratio" | "distance";
export type VerdictWord = "identical" | "different" | "alike" | "no verdict";
export type NodeKind = "module" | "input" | "output" | "attach";
export type Flow = "none" | "chain" | "parallel" | "mixed";
export type NoticeLevel = "info" | "warning" | "error";
export type NumberFormat = "number" | "share" | "count";
export type RangeMode = "robust" | "all" | "fixed";

/** Every answer, decoded (web/API.md). `run` is null where none was asked about. */
export interface Answer<T> {
  api: number;
  version: string;
  view: string;
  run: RunState | null;
  spec: T;
}

/**
 * How far a run has come. `version` changes whenever any answer about the run may change.
 */
export interface RunState {
  id: string;
  status: RunStatus;
  last_step: number | null;
  version: string;
}

/**
 * The x axis: one entry per column that holds anything, rising.
 *
 * `first` and `last` are the first and the last recorded step in the column, `steps` is how many.
 * If `from_step` is set, this is a delta: drop all columns whose `first` is at least `from_step`
 * and append these. Send `cursor` back as `after` to ask for what came since.
 */
export interface Columns {
  stride: number;
  first: Float64Array;
  last: Float64Array;
  steps: Int32Array;
  from_step: number | null;
  cursor: string;
}

/**
 * Limits for a colour or an axis: robust ones to draw with, the true extremes, and which share.
 *
 * `low_share` and `high_share` are the shares of finite values below `low` and above `high`.
 * `least_positive` is where a logarithmic axis may begin.
 */
export interface Bounds {
  low: number | null;
  high: number | null;
  min: number | null;
  max: number | null;
  least_positive: number | null;
  low_share: number;
  high_share: number;
}

/**
 * A line of a tooltip or of a page about a run. Both are text to show, never markup.
 */
export interface Fact {
  label: string;
  value: string;
}

/**
 * A tensor that goes into or comes out of a call. A dimension that varied is -1.
 */
export interface Port {
  slot: string;
  dtype: string;
  shape: number[];
}

/**
 * A site: what can be drawn over time. `label` is short, `name` is whole and unique.
 */
export interface SiteRef {
  id: string;
  name: string;
  label: string;
  module: string;
  kind: string;
  call: number;
  slot: string;
  dtype: string;
  shape: number[];
}

/**
 * One of the repeated things behind a `×N`: `node` for a level, `module` for a panel.
 */
export interface Instance {
  node: string | null;
  module: string;
  label: string;
}

/**
 * Why there is no answer: `code` for programs, `message` for people.
 */
export interface Problem {
  status: number;
  code: string;
  message: string;
}

/**
 * The body of every answer with a status of 400 or more.
 */
export interface Failure {
  version: string;
  error: Problem;
}

/**
 * What the server is. `page` is false when the page was not built into this installation.
 */
export interface Server {
  version: string;
  api: number;
  folder: string;
  page: boolean;
  started_ms: number;
  how_to_record: string;
}

/**
 * A run in the list, as far as it can be told without opening a segment.
 *
 * `settings` is what the user gave as `config=`, without `tags` and `note`, which stand apart.
 * `stamp` changes whenever the run does. `last_step` is that of the last sign of life, which comes
 * every few seconds.
 */
export interface RunRow {
  id: string;
  name: string;
  status: RunStatus;
  stamp: string;
  created_ms: number;
  last_seen_ms: number | null;
  last_step: number | null;
  records: number;
  dropped: number;
  ranks: number;
  size_bytes: number;
  model: string | null;
  problem: string | null;
  settings: Fact[];
  tags: string[];
  note: string;
}

/**
 * All runs, newest first. When there are none, show `how_to_record` and `folder`.
 */
export interface Runs {
  folder: string;
  runs: RunRow[];
  left_out: number;
  how_to_record: string;
}

/**
 * A small line: the mean of each stretch of steps. `flags` as everywhere.
 */
export interface Spark {
  name: string | null;
  phase: string | null;
  x: Float64Array;
  y: Float64Array;
  flags: Uint8Array;
  last: number | null;
}

/**
 * A kind of site that the run has, and how many sites of it.
 */
export interface KindCount {
  kind: string;
  sites: number;
}

/**
 * A statistic that can be asked for: what people read, how its numbers are shown, and whether
 * whole sketches are read for it.
 */
export interface StatisticName {
  name: string;
  label: string;
  format: NumberFormat;
  needs_bins: boolean;
}

/**
 * A scalar or metric by name. `modules` is 0 for a scalar.
 */
export interface NumberName {
  name: string;
  phases: string[];
  modules: number;
  numbers: number;
}

/**
 * Something that happened to the recording: a skip, a warning, a loss, a damaged file.
 */
export interface Notice {
  level: NoticeLevel;
  code: string;
  where: string;
  message: string;
  step: number | null;
  count: number;
}

/**
 * A text that the user put at a step: `watch.log(note="warmup ends")`.
 */
export interface StepNote {
  step: number;
  text: string;
}

/**
 * Another time axis: what stood for each step, rising. `values` are the last of a scalar, or
 * for `time` the seconds since the first record.
 */
export interface TimeAxis {
  name: string;
  steps: Float64Array;
  values: Float64Array;
}

/**
 * Recorded steps `first`, `first + every`, ... up to `last`.
 */
export interface StepRange {
  first: number;
  last: number;
  every: number;
}

/**
 * All that a page needs to know of a run before it draws anything.
 *
 * Of `known_steps` there is something, if only a scalar; `recorded_steps` have sketches, and
 * `recorded` says which they are (empty where they follow no rule).
 * `timeline` is the scalar to show as the reference signal. `kind` and `stat` are good first
 * choices for the overview. `graph` says whether data flow was recorded; `graph_note` what to say
 * about it.
 */
export interface RunHeader {
  name: string;
  model: string | null;
  status: RunStatus;
  reason: string | null;
  created_ms: number | null;
  last_seen_ms: number | null;
  first_step: number | null;
  last_step: number | null;
  recorded_steps: number;
  recorded: StepRange[];
  known_steps: number;
  records: number;
  size_bytes: number;
  phases: string[];
  ranks: number[];
  kinds: KindCount[];
  statistics: StatisticName[];
  scalars: NumberName[];
  metrics: NumberName[];
  timeline: string | null;
  kind: string | null;
  stat: string;
  modules: number;
  graph: boolean;
  graph_note: string;
  facts: Fact[];
  notices: Notice[];
  step_notes: StepNote[];
}

/**
 * How far runs have come, for polling. `runs` is empty when nothing changed since `token`.
 */
export interface State {
  token: string;
  list_version: string;
  changed: boolean;
  runs: RunState[];
}

/**
 * A module in the tree, or `count` repeated ones of which the first stands for all.
 *
 * `parent` is an index into the list, -1 at the top. `node` is what to open in the graph.
 */
export interface TreeNode {
  module: string;
  node: string | null;
  parent: number;
  depth: number;
  label: string;
  path: string;
  type: string;
  count: number;
  instances: Instance[];
  children: number;
  parameters: number;
  kinds: string[];
}

/**
 * Modules in order, depth first, with repeats folded. `left_out` nodes were too many.
 */
export interface Tree {
  nodes: TreeNode[];
  left_out: number;
}

/**
 * A step of the way from the model to the level shown. `instances` if it can be stepped.
 */
export interface Crumb {
  node: string;
  module: string;
  label: string;
  type: string;
  instances: Instance[];
}

/**
 * A box of the graph. With `count` above 1 it stands for the repeated `instances`.
 *
 * `id` is unique in the level. `node` is what to open (`can_open`) and to pin; `group` is what to
 * name in `unfold` to see the instances one by one. `passes` is in how many recorded passes it
 * was seen, out of `Level.passes`.
 */
export interface LevelNode {
  id: string;
  kind: NodeKind;
  node: string;
  module: string;
  label: string;
  path: string;
  type: string;
  call: number;
  calls: number;
  inputs: Port[];
  outputs: Port[];
  facts: Fact[];
  parameters: number;
  can_open: boolean;
  count: number;
  instances: Instance[];
  group: string | null;
  flow: Flow;
  kinds: string[];
  passes: number;
}

/**
 * Data flowed from `source` to `target` in `count` recorded passes. `bytes` of one pass.
 */
export interface LevelEdge {
  source: string;
  target: string;
  count: number;
  label: string;
  bytes: number | null;
}

/**
 * The inside one call of a module. `crumbs` lead to it, the last one is the level itself.
 */
export interface GraphLevel {
  node: string;
  module: string;
  path: string;
  type: string;
  crumbs: Crumb[];
  nodes: LevelNode[];
  edges: LevelEdge[];
  passes: number;
  has_flow: boolean;
  note: string;
  left_out: number;
}

/**
 * Sites of one kind of a pinned module, in order of call and slot.
 *
 * `plain` are traced variables that never were a tensor: they have values, and nothing over time.
 */
export interface PanelSection {
  kind: string;
  title: string;
  sites: SiteRef[];
  plain: SiteRef[];
}

/**
 * A kind that was not recorded here, and the code that records it.
 */
export interface MissingKind {
  kind: string;
  title: string;
  how: string;
}

/**
 * What a pinned module, input, output or attached tensor has to show.
 */
export interface Panel {
  node: string | null;
  module: string;
  parent: string | null;
  label: string;
  path: string;
  type: string;
  call: number;
  inputs: Port[];
  outputs: Port[];
  facts: Fact[];
  parameters: number;
  sections: PanelSection[];
  metrics: string[];
  missing: MissingKind[];
}

/**
 * A module that was searched for.
 */
export interface Hit {
  module: string;
  node: string | null;
  path: string;
  type: string;
  kinds: string[];
}

/**
 * What a search found, best first. `left_out` more would match.
 */
export interface Hits {
  hits: Hit[];
  left_out: number;
}

/**
 * One series inside the arrays of `Lines`: entries `start` to `start + length`.
 */
export interface Line {
  name: string;
  phase: string;
  module: string | null;
  label: string;
  start: number;
  length: number;
  last: number | null;
  last_step: number | null;
}

/**
 * Series of numbers, each in buckets with their lowest, highest and last value.
 *
 * The arrays are the buckets of all lines one after the other. `low`, `high`, `mean` and `last`
 * are over finite values (`last`: NaN or infinite if the last number was); `flags` is 2 where any
 * number in the bucket was not finite. `from_step` and `cursor` as in `Columns`.
 */
export interface Lines {
  lines: Line[];
  stride: number;
  first: Float64Array;
  until: Float64Array;
  low: Float64Array;
  high: Float64Array;
  mean: Float64Array;
  last: Float64Array;
  count: Int32Array;
  flags: Uint8Array;
  limits: Bounds;
  from_step: number | null;
  cursor: string;
  notes: string[];
}

/**
 * A row of a heatmap: a site, or `count` sites that are shown as one.
 *
 * `site` is null for a metric and for a row of several. `node` leads into the graph.
 */
export interface HeatRow {
  site: string | null;
  module: string;
  node: string | null;
  label: string;
  path: string;
  slot: string;
  call: number;
  group: number;
  count: number;
}

/**
 * Neighbouring rows with a common beginning of their paths.
 */
export interface RowGroup {
  label: string;
  path: string;
  start: number;
  length: number;
}

/**
 * Rows (sites in module order) by columns (steps) of one statistic or metric, whose name is
 * `label` and whose numbers are shown as `format` says.
 *
 * `values` and `flags` are rows × columns, row by row. A cell of several steps or sites holds
 * their aggregate; a cell in which anything was not finite has flag 2 whatever the aggregate.
 */
export interface Heat {
  title: string;
  label: string;
  format: NumberFormat;
  kind: string | null;
  stat: string | null;
  metric: string | null;
  aggregate: Aggregate;
  norm: Norm;
  columns: Columns;
  rows: HeatRow[];
  groups: RowGroup[];
  values: Float32Array;
  flags: Uint8Array;
  limits: Bounds;
  is_signed: boolean;
  notes: string[];
}

/**
 * How the values of one site are spread, over time. Exact: from the bins of the sketches.
 *
 * `counts` is columns × cells, column by column; cell `i` counts the finite, non-zero-width share
 * of values in `[edges[i], edges[i + 1])`. With scale `log` and `exponent` the edges are
 * magnitudes and both signs count together, without zeros. `below` and `above` are the finite
 * values outside the edges. A column of several steps holds all their values.
 *
 * `density` is what is drawn: the share of a column's values per unit of value, exact zeros left
 * out, so that a distribution has the same shape on every axis. `max_density` is the brightest
 * colour (the largest density, unless only a few columns are that dense), `min_density` the
 * smallest density that is not 0.
 */
export interface Kymograph {
  site: SiteRef;
  scale: Scale;
  columns: Columns;
  edges: Float64Array;
  counts: Float32Array;
  density: Float32Array;
  below: Float32Array;
  above: Float32Array;
  zeros: Float64Array;
  nans: Float64Array;
  pos_infs: Float64Array;
  neg_infs: Float64Array;
  total: Float64Array;
  p1: Float32Array;
  p50: Float32Array;
  p99: Float32Array;
  low: Float32Array;
  high: Float32Array;
  mean: Float32Array;
  rms: Float32Array;
  limits: Bounds;
  range: RangeMode;
  has_zero: boolean;
  max_density: number;
  min_density: number;
  first_nonfinite_step: number | null;
  notes: string[];
}

/**
 * A statistic and its value; `is_main` ones are shown with every tensor.
 */
export interface Named {
  name: string;
  value: number | null;
  label: string;
  format: NumberFormat;
  is_main: boolean;
}

/**
 * What a number format would do to the values: shares between 0 and 1, and its limits.
 *
 * The exponents are the columns of the exponent histogram in which the limits lie.
 */
export interface FormatLoss {
  name: string;
  title: string;
  underflow: number | null;
  subnormal: number | null;
  overflow: number | null;
  largest: number;
  top_exponent: number;
  normal_exponent: number;
  smallest_exponent: number;
}

/**
 * One site at one step: its histogram, its exponents, its statistics.
 *
 * `step` is the recorded step that is shown: the last one at or before the step asked for, else
 * the first one after it. `previous` and `next` are its recorded neighbours.
 */
export interface CrossSection {
  site: SiteRef;
  asked: number | null;
  step: number;
  previous: number | null;
  next: number | null;
  scale: Scale;
  edges: Float64Array;
  counts: Float64Array;
  below: number;
  above: number;
  exponents: Int32Array;
  exponent_counts: Float64Array;
  zeros: number;
  nans: number;
  pos_infs: number;
  neg_infs: number;
  total: number;
  statistics: Named[];
  formats: FormatLoss[];
  notes: string[];
}

/**
 * The value of one box. Of a folded box: of its first instance, and the spread over all.
 *
 * A box that has no site of the kind itself shows the largest of the sites inside it
 * (`is_inside`). `row` is its line in `Tint.sparks`, -1 if it has none. `why` says why there is
 * no value, where there is none.
 */
export interface NodeTint {
  id: string;
  site: string | null;
  value: number | null;
  flag: number;
  low: number | null;
  median: number | null;
  high: number | null;
  sites: number;
  is_inside: boolean;
  row: number;
  why: string;
}

/**
 * One statistic at one step for all boxes of a level, and how it went.
 *
 * `sparks` is rows × columns; NaN where nothing was recorded, `spark_flags` as everywhere.
 */
export interface Tint {
  node: string;
  label: string;
  format: NumberFormat;
  kind: string | null;
  stat: string | null;
  metric: string | null;
  step: number | null;
  nodes: NodeTint[];
  columns: Columns;
  sparks: Float32Array;
  spark_flags: Uint8Array;
  limits: Bounds;
  notes: string[];
}

/**
 * A tensor in the table of layers. `change` is log2 of its rms, last over first quarter.
 */
export interface LayerRow {
  site: SiteRef;
  node: string | null;
  rms: number | null;
  max_abs: number | null;
  change: number | null;
  zeros: number | null;
  first_nonfinite_step: number | null;
  underflow: number | null;
  overflow: number | null;
}

/**
 * All tensors of a kind at a step, in module order; shares of the non-zero values that would
 * be lost in the number format `format`.
 */
export interface LayerTable {
  kind: string;
  step: number;
  format: string;
  rows: LayerRow[];
  notes: string[];
}

/**
 * A site that moved. `change` is log2(after / before) of the statistic's magnitude.
 *
 * `before` and `after` are medians over the first and the last quarter of the window.
 */
export interface Mover {
  site: SiteRef;
  node: string | null;
  before: number | null;
  after: number | null;
  change: number | null;
  nonfinite_steps: number;
  first_nonfinite_step: number | null;
}

/**
 * Sites with values that are not finite, earliest first; then those that moved most.
 */
export interface Movers {
  kind: string | null;
  stat: string;
  label: string;
  format: NumberFormat;
  first_step: number | null;
  last_step: number | null;
  rows: Mover[];
  nonfinite_sites: number;
  sites: number;
  notes: string[];
}

/**
 * Where two runs part: the site in the first run, and `others` more in the same step.
 */
export interface FirstDifference {
  step: number;
  site: SiteRef;
  others: number;
}

/**
 * Something by name in the first and in the second run; null where it is not there.
 */
export interface TwoValues {
  name: string;
  a: string | null;
  b: string | null;
}

/**
 * A site at the step where it is farthest apart. `w1` and `shift` are in octaves, null where
 * one of the runs has nothing but zeros; `zeros` and `nonfinite` are differences of shares.
 */
export interface FarSite {
  site: SiteRef;
  other: string;
  step: number;
  w1: number | null;
  shift: number | null;
  zeros: number;
  nonfinite: number;
}

/**
 * What two runs have in common, and where they part.
 *
 * `headline` is the verdict in one sentence. `removed` is only in the first run, `added` only in
 * the second one, `renamed` in both under two paths; the lists are cut, the counts are not.
 * `settings` is what the user configured, `environment` versions of packages and code.
 */
export interface ComparedRuns {
  a: string;
  b: string;
  verdict: VerdictWord;
  headline: string;
  first: FirstDifference | null;
  sites: number;
  steps: number;
  removed: string[];
  added: string[];
  renamed: TwoValues[];
  removed_count: number;
  added_count: number;
  settings: TwoValues[];
  environment: TwoValues[];
  farthest: FarSite[];
  notes: string[];
}

/**
 * One statistic of the sites that two runs share. All three heatmaps have the same rows and
 * columns; `a` and `b` have the same limits, those of `difference` are symmetric for a ratio.
 *
 * `others` is the path in the second run for each row, empty where it is the same.
 */
export interface PairedHeat {
  measure: Measure;
  a: Heat;
  b: Heat;
  difference: Heat;
  others: string[];
}

/**
 * One site of two runs at a step, with the same edges, and how far apart they are.
 */
export interface PairedSection {
  a: CrossSection;
  b: CrossSection;
  w1: number | null;
  shift: number | null;
  zeros: number;
  nonfinite: number;
}

/**
 * A line of a method. `is_here` for the one that gave a variable its value.
 */
export interface SourceLine {
  number: number;
  text: string;
  is_here: boolean;
}

/**
 * A tensor's last two dimensions: `height` × `width` elements. A vector is one row.
 *
 * The dimensions before them make `items` matrices; this is `item`, which is `index` in each of
 * them. The arrays are `rows` × `columns`, row by row. A cell stands for `cell_rows` ×
 * `cell_columns` neighbouring elements, fewer at the lower and the right end. In `values` it holds
 * the finite one that is farthest from zero; in `low` and `high` the smallest and the largest one,
 * which may be infinite; NaN where there is none. Its flag is 2 where any element is not finite;
 * `not_finite` is how many are in the whole matrix. `limits` are robust over the cells; their
 * `min` and `max` are those of all finite elements.
 */
export interface Matrix {
  items: number;
  item: number;
  index: number[];
  height: number;
  width: number;
  rows: number;
  columns: number;
  cell_rows: number;
  cell_columns: number;
  values: Float64Array;
  low: Float64Array;
  high: Float64Array;
  flags: Uint8Array;
  not_finite: number;
  limits: Bounds;
  is_signed: boolean;
}

/**
 * What a traced variable held at a step: the last value that was kept at or before it.
 *
 * `step` is when it was kept, null if there was none yet; `previous` and `next` are the steps of
 * its neighbours. In one step a variable may have had `of` values one after the other: this is
 * number `nth`, from 0. Of a tensor there is a `shape`, and a `matrix` unless a note says why not;
 * anything else is told by `text`. `lines` are those of `method` around the one that gave the
 * value.
 */
export interface Variable {
  site: SiteRef;
  name: string;
  asked: number | null;
  step: number | null;
  previous: number | null;
  next: number | null;
  rank: number | null;
  nth: number;
  of: number;
  dtype: string;
  shape: number[] | null;
  text: string;
  matrix: Matrix | null;
  method: string;
  lines: SourceLine[];
  notes: string[];
}

/**
 * A question without parameters.
 */
export interface NoQuestion {

}

/**
 * How far have these runs come? `since` is the `token` of an earlier answer.
 */
export interface StateQuestion {
  run?: string[];
  since?: string;
}

/**
 * A question about a run as a whole.
 */
export interface RunQuestion {
  run: string;
}

/**
 * A small line of a scalar; of the loss if no name is given.
 */
export interface SparkQuestion {
  run: string;
  name?: string;
  columns?: number;
}

/**
 * Another time axis: a scalar by name (`epoch`, `tokens`), or `time` for seconds.
 */
export interface ClockQuestion {
  run: string;
  name?: string;
}

/**
 * The modules, from the top or below one of them. `fold` collapses repeats.
 */
export interface TreeQuestion {
  run: string;
  module?: string;
  fold?: boolean;
}

/**
 * The inside a call (`node`, by default the model). `unfold` names groups to show singly;
 * `unfold=*` all.
 */
export interface LevelQuestion {
  run: string;
  node?: string;
  fold?: boolean;
  unfold?: string[];
}

/**
 * What a module (`module`), or a call, input, output or attached tensor (`node`), can show.
 */
export interface PanelQuestion {
  run: string;
  node?: string;
  module?: string;
}

/**
 * Modules by part of their path, a glob (`*.q_proj`), `re:...` or `=exact path`.
 */
export interface SearchQuestion {
  run: string;
  q?: string;
  limit?: number;
}

/**
 * Scalars by name, or with `module` (an id; `*` for all) metrics by name.
 */
export interface LinesQuestion {
  run: string;
  name?: string[];
  module?: string[];
  phase?: string;
  rank?: number;
  first?: number;
  last?: number;
  columns?: number;
  after?: string;
}

/**
 * A statistic of all sites of a kind, or with `metric` a metric of all modules, over time.
 *
 * `under` keeps a module and what lies below it. `fold` shows repeated siblings as one row.
 */
export interface HeatQuestion {
  run: string;
  kind?: string;
  stat?: string;
  metric?: string;
  under?: string;
  fold?: boolean;
  phase?: string;
  rank?: number;
  first?: number;
  last?: number;
  columns?: number;
  rows?: number;
  aggregate?: Aggregate;
  norm?: Norm;
  after?: string;
}

/**
 * How the values of a site are spread, over time.
 *
 * Scale `auto` is `linear`, or `log` where the window spans more than four decades. `range`
 * `fixed` takes `low` and `high`; the others find them. `cells` is how many there are on the y
 * axis; with scale `exponent` there is one per power of two.
 */
export interface KymographQuestion {
  run: string;
  site: string;
  phase?: string;
  rank?: number;
  first?: number;
  last?: number;
  columns?: number;
  cells?: number;
  scale?: ScaleChoice;
  range?: RangeMode;
  low?: number;
  high?: number;
  after?: string;
}

/**
 * One site at one step (the last one by default), on the axis of a kymograph.
 *
 * With `low` and `high` the axis is theirs, else it covers all values.
 */
export interface SectionQuestion {
  run: string;
  site: string;
  step?: number;
  phase?: string;
  rank?: number;
  cells?: number;
  scale?: Scale;
  low?: number;
  high?: number;
  format?: string[];
}

/**
 * What a traced variable (a `site` of kind `local`) held at a step, the last one by default.
 *
 * Of several values in that step `nth` is one, from 0, else it is the last one. Of a tensor with
 * more than two dimensions `item` is one matrix, from 0. Where there are not so many, it is the
 * last. `rows` and `columns` are how many cells there may be, `context` how many lines of source
 * before and after the one that gave the value.
 */
export interface VariableQuestion {
  run: string;
  site: string;
  step?: number;
  phase?: string;
  rank?: number;
  nth?: number;
  item?: number;
  rows?: number;
  columns?: number;
  context?: number;
}

/**
 * A statistic of all boxes of a level at a step (the last one by default).
 *
 * `node`, `fold` and `unfold` as in `LevelQuestion`: the answer speaks of the same boxes. The
 * lines depend on the window alone: with `sparks=0` they are left out.
 */
export interface TintQuestion {
  run: string;
  node?: string;
  fold?: boolean;
  unfold?: string[];
  kind?: string;
  stat?: string;
  metric?: string;
  step?: number;
  phase?: string;
  first?: number;
  last?: number;
  sparks?: boolean;
  columns?: number;
}

/**
 * Which sites moved most between the ends of a window, and which are not finite.
 */
export interface MoversQuestion {
  run: string;
  kind?: string;
  stat?: string;
  phase?: string;
  first?: number;
  last?: number;
  limit?: number;
}

/**
 * All tensors of a kind at a step (the last one by default), with what `format` would lose.
 *
 * Changes and the first step that is not finite are looked for between `first` and `last`.
 */
export interface TableQuestion {
  run: string;
  kind?: string;
  under?: string;
  step?: number;
  format?: string;
  phase?: string;
  first?: number;
  last?: number;
}

/**
 * How does the run `other` differ from `run`?
 *
 * `name` pairs paths of modules (`encoder=backbone`) that are not matched by themselves. `twin` is
 * a run that is the first one but for its seed.
 */
export interface CompareQuestion {
  run: string;
  other: string;
  name?: string[];
  twin?: string;
  phase?: string;
}

/**
 * A statistic of the matching sites of two runs, and how it differs.
 *
 * With `measure` `ratio` that is log2 of the first over the second (for shares: the difference),
 * with `distance` how far the values themselves are apart, in octaves.
 */
export interface PairedHeatQuestion {
  run: string;
  other: string;
  name?: string[];
  kind?: string;
  stat?: string;
  under?: string;
  phase?: string;
  first?: number;
  last?: number;
  columns?: number;
  aggregate?: Aggregate;
  measure?: Measure;
}

/**
 * A site of the first run and its match in the other at one step, on one axis.
 */
export interface PairedSectionQuestion {
  run: string;
  other: string;
  site: string;
  name?: string[];
  step?: number;
  phase?: string;
  cells?: number;
  scale?: Scale;
}

/** Every view: `GET api/<name>?<question>`. */
export interface Routes {
  server: { question: NoQuestion; answer: Server };
  runs: { question: NoQuestion; answer: Runs };
  state: { question: StateQuestion; answer: State };
  run: { question: RunQuestion; answer: RunHeader };
  spark: { question: SparkQuestion; answer: Spark };
  clock: { question: ClockQuestion; answer: TimeAxis };
  tree: { question: TreeQuestion; answer: Tree };
  level: { question: LevelQuestion; answer: GraphLevel };
  panel: { question: PanelQuestion; answer: Panel };
  search: { question: SearchQuestion; answer: Hits };
  lines: { question: LinesQuestion; answer: Lines };
  heat: { question: HeatQuestion; answer: Heat };
  kymograph: { question: KymographQuestion; answer: Kymograph };
  section: { question: SectionQuestion; answer: CrossSection };
  variable: { question: VariableQuestion; answer: Variable };
  tint: { question: TintQuestion; answer: Tint };
  table: { question: TableQuestion; answer: LayerTable };
  movers: { question: MoversQuestion; answer: Movers };
  compare: { question: CompareQuestion; answer: ComparedRuns };
  paired_heat: { question: PairedHeatQuestion; answer: PairedHeat };
  paired_section: { question: PairedSectionQuestion; answer: PairedSection };
}
