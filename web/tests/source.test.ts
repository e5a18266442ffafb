import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const SOURCE = join(import.meta.dirname, "../src");
const BUILT = join(import.meta.dirname, "../../src/sonde/present/static");

function files(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? files(join(folder, entry.name)) : [join(folder, entry.name)],
  );
}

const sources = files(SOURCE).filter((f) => /\.tsx?$/.test(f) && !f.endsWith("api.gen.ts"));

test("text never becomes markup or code", () => {
  for (const file of sources) {
    const text = readFileSync(file, "utf8");
    expect(text, file).not.toMatch(
      /innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write/,
    );
    expect(text, file).not.toMatch(/\beval\(|new Function\(/);
  }
});

test("only data/ talks to the server, and only relative to the page", () => {
  for (const file of sources) {
    const text = readFileSync(file, "utf8");
    expect(text, file).not.toMatch(/https?:\/\//);
    if (!file.includes("/data/"))
      expect(text, file).not.toMatch(/\bfetch\(|EventSource|XMLHttpRequest|WebSocket/);
  }
});

test("the built page is small, and loads nothing from elsewhere", () => {
  const total = readdirSync(BUILT).reduce((sum, name) => sum + statSync(join(BUILT, name)).size, 0);
  expect(statSync(join(BUILT, "app.js")).size).toBeLessThanOrEqual(400_000);
  expect(total).toBeLessThanOrEqual(470_000);
  const html = readFileSync(join(BUILT, "index.html"), "utf8");
  expect(html).not.toMatch(/<style|style=|onload|<script>|\/\//);
});

test("styles lie beside the view they dress, and each is part of the page once", () => {
  const index = readFileSync(join(SOURCE, "style.css"), "utf8");
  const imported = [...index.matchAll(/@import "\.\/views\/(\w+)\.css"/g)].map((found) => found[1]);
  const views = readdirSync(join(SOURCE, "views"));
  const there = views.filter((name) => name.endsWith(".css")).map((name) => name.slice(0, -4));
  expect([...imported].sort()).toEqual([...there].sort());
  for (const name of there) expect(views).toContain(`${name}.tsx`);
});
