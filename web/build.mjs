// Builds the page into src/sonde/present/static, or with --check says whether what lies there is current.
//
//   app.js      the page: one ES module, styles included
//   inter.woff2 its typeface
//   NOTICES.txt licences of what was bundled
//   build.json  sizes and hashes of the above

import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const WEB = dirname(fileURLToPath(import.meta.url));
const STATIC = join(WEB, "../src/sonde/present/static");
const LIMIT_BYTES = 400_000; // of the module; its typeface and licences come on top
const FONT = "@fontsource-variable/inter";

const version = /VERSION.*=\s*"([^"]+)"/.exec(
  await readFile(join(WEB, "../src/sonde/_version.py"), "utf8"),
)[1];

const result = await build({
  absWorkingDir: WEB,
  entryPoints: ["src/index.ts"],
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  charset: "utf8",
  legalComments: "none", // NOTICES.txt has the whole texts
  loader: { ".css": "text" },
  plugins: [minifiedCss()],
  define: { __VERSION__: JSON.stringify(version) },
  metafile: true,
  write: false,
});

const files = new Map([
  ["app.js", result.outputFiles[0].contents],
  [
    "inter.woff2",
    await readFile(join(WEB, `node_modules/${FONT}/files/inter-latin-wght-normal.woff2`)),
  ],
  ["index.html", await readFile(join(WEB, "src/index.html"))],
  ["icon.svg", await readFile(join(WEB, "src/icon.svg"))],
  ["NOTICES.txt", new TextEncoder().encode(await notices())],
]);
const total = [...files.values()].reduce((sum, bytes) => sum + bytes.length, 0);
const list = Object.fromEntries(
  [...files].map(([name, bytes]) => [
    name,
    { bytes: bytes.length, sha256: createHash("sha256").update(bytes).digest("hex") },
  ]),
);
files.set(
  "build.json",
  new TextEncoder().encode(`${JSON.stringify({ version, files: list }, null, 2)}\n`),
);

if (process.argv.includes("--check")) await check();
else await write();

async function write() {
  await mkdir(STATIC, { recursive: true });
  for (const name of await readdir(STATIC)) if (!files.has(name)) await rm(join(STATIC, name));
  for (const [name, bytes] of files) await writeFile(join(STATIC, name), bytes);
  for (const [name, { bytes }] of Object.entries(list)) console.log(`${name.padEnd(14)}${bytes}`);
  console.log(`${"all".padEnd(14)}${total}`);
  if (process.argv.includes("--sizes")) printSizes();
  const { bytes } = list["app.js"];
  if (bytes > LIMIT_BYTES) fail(`app.js has ${bytes} bytes; ${LIMIT_BYTES} are allowed.`);
}

async function check() {
  const there = await readdir(STATIC).catch(() => []);
  const stale = [];
  for (const [name, bytes] of files) {
    const found = await readFile(join(STATIC, name)).catch(() => Buffer.alloc(0));
    if (Buffer.compare(found, Buffer.from(bytes)) !== 0) stale.push(name);
  }
  for (const name of there) if (!files.has(name)) stale.push(`${name} (not built any more)`);
  if (stale.length)
    fail(`Stale: ${stale.join(", ")}. Run \`npm ci && npm run build\` in web/ and commit.`);
  console.log("The page in src/sonde/present/static is current.");
}

/** The texts of all licences of bundled packages, in the order of their names. */
async function notices() {
  const names = new Set([FONT]);
  for (const input of Object.keys(result.metafile.inputs)) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) names.add(found[1]);
  }
  const parts = ["The page contains the following software, each under its own licence.\n"];
  for (const name of [...names].sort()) {
    const folder = join(WEB, "node_modules", name);
    const about = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).sort().find((f) => /^licen[cs]e/i.test(f));
    const text = file ? await readFile(join(folder, file), "utf8") : `Licence: ${about.license}\n`;
    parts.push(
      `${"=".repeat(80)}\n${name} ${about.version} (${about.license})\n\n${text.trim()}\n`,
    );
  }
  return parts.join("\n");
}

/** Styles as text inside the module, minified: hosts other than the page cannot load files. */
function minifiedCss() {
  return {
    name: "minified-css",
    setup(setup) {
      setup.onLoad({ filter: /\.css$/ }, async ({ path }) => {
        const css = await build({
          entryPoints: [path],
          bundle: true,
          minify: true,
          write: false,
          loader: { ".css": "css" },
          target: ["es2022"],
          legalComments: "none",
          absWorkingDir: WEB,
        });
        return { contents: css.outputFiles[0].text, loader: "text" };
      });
    },
  };
}

function printSizes() {
  const { inputs } = Object.values(result.metafile.outputs)[0];
  const byPart = {};
  for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
    const part = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? path;
    byPart[part] = (byPart[part] ?? 0) + bytesInOutput;
  }
  for (const [part, bytes] of Object.entries(byPart).sort((a, b) => b[1] - a[1])) {
    console.log(`  ${String(bytes).padStart(8)} ${part}`);
  }
}

function fail(message) {
  console.error(message);
  process.exitCode = 1;
}
