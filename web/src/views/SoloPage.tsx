/** One view without the frame around it, as notebooks show it; the timeline always stands below. */

import type { ComponentChildren, ComponentType } from "preact";
import type { SiteRef } from "../api.gen";
import { useApp, useQuery } from "../app/hooks";
import { Boundary } from "./Boundary";
import { ComparePage } from "./ComparePage";
import { Drawer } from "./Drawer";
import { ExplorePage } from "./ExplorePage";
import { HeatPanel } from "./HeatPanel";
import { Kymo } from "./Kymo";
import { LayerTable } from "./LayerTable";
import { Empty, Failed, Loading } from "./States";
import { Timeline } from "./Timeline";
import { VariableView } from "./VariableView";

const VIEWS = {
  heatmap: HeatView,
  kymograph: KymoView,
  exponents: Drawer,
  lines: Nothing,
  table: TableView,
  variable: SoloVariable,
  compare: ComparePage,
  graph: ExplorePage,
} satisfies Record<string, ComponentType>;

export type Solo = keyof typeof VIEWS;

export function isSolo(name: unknown): name is Solo {
  return typeof name === "string" && Object.hasOwn(VIEWS, name);
}

export function SoloPage({ solo }: { solo: Solo }) {
  const app = useApp();
  const View = VIEWS[solo];
  const { error, data } = app.header.result.value;
  if (error && !data) return <Failed error={error} what="This run" />;
  if (!data) return <Loading what="the run" />;
  return (
    <div class="solo" data-solo={solo}>
      <div class="solo-view">
        <Boundary what="This view" of={app.run.value}>
          <View />
        </Boundary>
      </div>
      <Boundary what="The timeline" of={app.run.value}>
        <Timeline />
      </Boundary>
    </div>
  );
}

function Nothing() {
  return null;
}

/** The heatmap; a click on a cell opens its histogram below. */
function HeatView() {
  return (
    <>
      <HeatPanel least={15} most={26} />
      <Drawer />
    </>
  );
}

/** All tensors of a kind; a click on one opens its histogram below. */
function TableView() {
  return (
    <>
      <LayerTable />
      <Drawer />
    </>
  );
}

/** One tensor over time, and at the cursor. */
function KymoView() {
  return (
    <ChosenSite>
      {(run, site) => (
        <>
          <Kymo run={run} site={site} />
          <Drawer />
        </>
      )}
    </ChosenSite>
  );
}

function SoloVariable() {
  return <ChosenSite>{(run, site) => <VariableView run={run} site={site} />}</ChosenSite>;
}

/** The tensor of the address, out of the panel of its module. */
function ChosenSite({ children }: { children: (run: string, site: SiteRef) => ComponentChildren }) {
  const app = useApp();
  const run = app.run.value!;
  const { site, under } = app.state.value;
  const { data, error } = useQuery("panel", under ? { run, module: under } : null).value;
  if (error && !data) return <Failed error={error} what="This tensor" />;
  if (!data) return <Loading what="the tensor" />;
  const found = data.sections
    .flatMap((section): readonly SiteRef[] => section.sites)
    .find((one) => one.id === site);
  if (!found) return <Empty title="This tensor was not recorded" />;
  return <>{children(run, found)}</>;
}
