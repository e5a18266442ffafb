import { expect, test } from "vitest";
import { BINDINGS, commandOf, type Press } from "../src/core/keys";

const press = (key: string, more: Partial<Press> = {}): Press => ({
  key,
  code: "",
  shiftKey: false,
  ctrlKey: false,
  metaKey: false,
  altKey: false,
  ...more,
});

test("keys mean what the sheet says", () => {
  expect(commandOf(press("p"), null)).toBe("pin");
  expect(commandOf(press("P", { shiftKey: true }), null)).toBe("pinAll");
  expect(commandOf(press("k", { metaKey: true }), null)).toBe("palette");
  expect(commandOf(press("k", { ctrlKey: true }), null)).toBe("palette");
  expect(commandOf(press("k"), null)).toBeNull();
  expect(commandOf(press("ArrowLeft", { shiftKey: true }), null)).toBe("stepBack10");
  expect(commandOf(press("?", { shiftKey: true }), null)).toBe("help");
});

test("zooming is by the place of a key, whatever is printed on it", () => {
  expect(commandOf(press(",", { code: "KeyW" }), null)).toBe("zoomIn"); // Dvorak
  expect(commandOf(press("ц", { code: "KeyW" }), null)).toBe("zoomIn");
  expect(commandOf(press("s", { code: "KeyS" }), null)).toBe("zoomOut");
});

test("G waits for the name of a page, and forgets when another key comes", () => {
  expect(commandOf(press("g"), null)).toBeNull();
  expect(commandOf(press("l"), "g")).toBe("go:layers");
  expect(commandOf(press("l"), null)).toBe("scale");
  expect(commandOf(press("p"), "g")).toBe("pin");
  expect(commandOf(press("o"), "x")).toBe("fold");
});

test("what the browser and the system need is left alone", () => {
  expect(commandOf(press("p", { ctrlKey: true }), null)).toBeNull();
  expect(commandOf(press("ArrowLeft", { altKey: true }), null)).toBeNull();
});

test("every command is bound once", () => {
  const commands = BINDINGS.map((b) => b.command);
  expect(new Set(commands).size).toBe(commands.length);
});
