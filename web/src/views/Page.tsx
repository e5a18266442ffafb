/** The frame: top bar, tree, page, panels, timeline, status. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren, ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { useApp, useCommand } from "../app/hooks";
import type { Destination } from "../core/destinations";
import { hasPanels } from "../core/url";
import { Banners, Toast } from "./Banners";
import { Boundary } from "./Boundary";
import { ComparePage } from "./ComparePage";
import { Deck } from "./Deck";
import { DragGhost } from "./DragGhost";
import { ExplorePage } from "./ExplorePage";
import { HelpSheet } from "./HelpSheet";
import { LayersPage } from "./LayersPage";
import { ModuleTree } from "./ModuleTree";
import { OverviewPage } from "./OverviewPage";
import { Palette } from "./Palette";
import { RunsPage } from "./RunsPage";
import { type Solo, SoloPage } from "./SoloPage";
import { Splitter } from "./Splitter";
import { RunProblem } from "./States";
import { StatusBar } from "./StatusBar";
import { Timeline } from "./Timeline";
import { Toolbar, TopBar } from "./TopBar";

/** What each destination shows. */
const VIEWS: Record<Destination, ComponentType> = {
  overview: OverviewPage,
  explore: ExplorePage,
  layers: LayersPage,
  compare: ComparePage,
};

export function Page({ solo }: { solo?: Solo }) {
  const app = useApp();
  const { page } = app.state.value;
  useEffect(() => {
    const name = app.about.value?.name;
    if (app.around.isWholePage)
      document.title = page === "runs" || !name ? "Sonde" : `${name} · Sonde`;
  }, [page, app.about.value?.name]);
  if (solo) {
    return (
      <div class="app">
        <Banners />
        <SoloPage solo={solo} />
        <Toast />
      </div>
    );
  }
  return (
    <div class="app">
      <button type="button" class="skip" onClick={skip}>
        Skip to the content
      </button>
      <TopBar />
      <Banners />
      <Boundary what="This page" key={page === "runs" ? "runs" : "run"} of={app.run.value}>
        {page === "runs" ? <RunsPage /> : <RunFrame />}
      </Boundary>
      <StatusBar />
      <Boundary what="The search" of={page}>
        <Palette />
      </Boundary>
      <HelpSheet />
      <DragGhost />
      <Toast />
    </div>
  );
}

/** Past the bars and the tree. A button: an address after `#` is the state of the page. */
function skip(e: Event): void {
  const root = (e.currentTarget as HTMLElement).getRootNode() as ShadowRoot;
  root.querySelector<HTMLElement>("main")?.focus();
}

function heading(name: string | undefined, page: string): string {
  return name ? `${name}: ${page}` : page;
}

/** Everything that is about one run. */
function RunFrame() {
  const app = useApp();
  const { hasTree, page } = app.state.value;
  const View = page === "runs" ? null : VIEWS[page];
  const hasDeck = hasPanels(app.state.value);
  const run = app.run.value;
  const treeWidth = useSignal(232);
  // On a wide screen two panels stand side by side.
  const deckWidth = useSignal(
    Math.round(innerWidth >= 1600 ? innerWidth * 0.44 : Math.max(392, innerWidth * 0.36)),
  );
  const { error, data } = app.header.result.value;
  useCommand("tree", () => app.set({ hasTree: !app.state.peek().hasTree }));
  if (error && !data) return <RunProblem error={error} />;
  return (
    <>
      <Toolbar />
      <div class="main">
        {hasTree && (
          <aside class="side" style={{ width: `${treeWidth.value}px` }} aria-label="Modules">
            <Boundary what="The module tree" of={run}>
              <ModuleTree />
            </Boundary>
          </aside>
        )}
        {hasTree && (
          <Splitter
            label="Width of the module tree"
            width={treeWidth}
            sign={1}
            least={160}
            most={480}
          />
        )}
        <main class="centre" id="content" tabIndex={-1}>
          <h1 class="visually-hidden">{heading(app.about.value?.name, page)}</h1>
          <Boundary what="This page" key={page} of={run}>
            {View && <View />}
          </Boundary>
        </main>
        {hasDeck && (
          <Splitter
            label="Width of the panels"
            width={deckWidth}
            sign={-1}
            least={300}
            most={1400}
          />
        )}
        {hasDeck && (
          <Side width={deckWidth.value}>
            <Deck />
          </Side>
        )}
      </div>
      <Boundary what="The timeline" of={run}>
        <Timeline />
      </Boundary>
    </>
  );
}

function Side({ width, children }: { width: number; children: ComponentChildren }) {
  return (
    <aside class="side deck-side" style={{ width: `${width}px` }} aria-label="Panels">
      <Boundary what="The panels">{children}</Boundary>
    </aside>
  );
}
