// How long a heatmap of 500 rows by 2,000 columns takes to draw into 1600 × 900 pixels, in ms of
// processor time: the same on a busy machine.
//
//   node bench.mjs      prints the median and the longest of 30 times as JSON

import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const code = await build({
  absWorkingDir: dirname(fileURLToPath(import.meta.url)),
  stdin: {
    contents: `export * from "./src/core/heat"; export * from "./src/core/columns";`,
    resolveDir: dirname(fileURLToPath(import.meta.url)),
  },
  bundle: true,
  format: "esm",
  write: false,
});
const text = Buffer.from(code.outputFiles[0].contents).toString("base64");
const { classify, palette, drawPlane, mapColumns, mapRows, spans } = await import(
  `data:text/javascript;base64,${text}`
);

const [rows, columns, width, height] = [500, 2000, 1600, 900];
const values = Float32Array.from({ length: rows * columns }, (_, i) => 2 ** ((i * 7919) % 31));
const flags = new Uint8Array(rows * columns).fill(1);
const first = Float64Array.from({ length: columns }, (_, i) => i);
const pixels = new Uint32Array(width * height);
const colours = palette("viridis", false, false, "#ff00c8", "#5c0048");
const times = [];
for (let i = 0; i < 30; i++) {
  const start = process.cpuUsage();
  const classes = classify(values, flags, { kind: "log", low: 1, high: 2 ** 31 });
  const x = mapColumns(spans({ first, last: first }), { from: 0, to: columns, cadence: 1 }, width);
  drawPlane({ classes, rows, columns }, x, mapRows(rows, height), pixels, colours);
  const { user, system } = process.cpuUsage(start);
  times.push((user + system) / 1000);
}
times.sort((a, b) => a - b);
console.log(JSON.stringify({ median_ms: times[15], longest_ms: times[29] }));
