/** All layers, large: grouped, folded, sorted; a click opens the cell. */

import { useApp } from "../app/hooks";
import { Boundary } from "./Boundary";
import { CombineSteps } from "./CombineSteps";
import { Button, Segments, Select } from "./Controls";
import { Drawer } from "./Drawer";
import { HeatPanel } from "./HeatPanel";
import { LayerTable } from "./LayerTable";

export function LayersPage() {
  const app = useApp();
  const { norm, order, colour, map, areRowsFolded, isTable, site } = app.state.value;
  return (
    <div class="layers">
      <div class="subbar" role="toolbar" aria-label="Layers">
        <Segments
          label="Show"
          value={isTable ? "table" : "heatmap"}
          options={[
            { value: "heatmap", label: "heatmap" },
            { value: "table", label: "table" },
          ]}
          onChange={(value) => app.set({ isTable: value === "table" }, true)}
        />
        {!isTable && (
          <>
            <Select
              label="Normalize"
              value={norm}
              options={[
                { value: "none", label: "none" },
                { value: "start", label: "relative to start" },
                { value: "z", label: "z-score" },
              ]}
              onChange={(value) => app.set({ norm: value as typeof norm })}
            />
            <CombineSteps />
            <Select
              label="Rows"
              value={order}
              options={[
                { value: "module", label: "module order" },
                { value: "max", label: "largest first" },
                { value: "change", label: "most changed first" },
              ]}
              onChange={(value) => app.set({ order: value as typeof order })}
            />
            <Select
              label="Colour"
              value={colour}
              options={[
                { value: "auto", label: "auto" },
                { value: "log", label: "logarithmic" },
                { value: "linear", label: "linear" },
              ]}
              onChange={(value) => app.set({ colour: value as typeof colour })}
            />
            <Select
              label="Map"
              value={map}
              options={[
                { value: "viridis", label: "viridis" },
                { value: "cividis", label: "cividis" },
              ]}
              onChange={(value) => app.set({ map: value as typeof map })}
            />
            <Button
              label="Draw repeated layers as one row"
              isOn={areRowsFolded}
              onClick={() => app.set({ areRowsFolded: !areRowsFolded })}
            >
              Group repeats
            </Button>
          </>
        )}
      </div>
      <Boundary what="The heatmap" of={app.run.value}>
        {isTable ? <LayerTable /> : <HeatPanel least={15} most={26} />}
      </Boundary>
      <Boundary what="The tensor at the cursor" of={site}>
        <Drawer />
      </Boundary>
    </div>
  );
}
