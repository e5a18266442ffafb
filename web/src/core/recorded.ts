/**
 * What was drawn on a canvas, remembered, and the same as SVG: text and lines stay text and lines,
 * and what was painted pixel by pixel is an image.
 */

export type Op = readonly [name: string, args: readonly unknown[]];

const LOGS = new WeakMap<HTMLCanvasElement, () => readonly Op[]>();
const LEFT_OUT = new Set(["createImageData", "getImageData", "measureText", "clearRect"]);

/** The same context; what is drawn through it can be had as SVG. */
export function recorded(context: CanvasRenderingContext2D): CanvasRenderingContext2D {
  const ops: Op[] = [];
  LOGS.set(context.canvas, () => ops);
  return new Proxy(context, {
    get(target, name) {
      const found = Reflect.get(target, name) as unknown;
      if (typeof found !== "function") return found;
      return (...args: unknown[]) => {
        if (!LEFT_OUT.has(String(name))) ops.push([String(name), slim(args)]);
        return found.apply(target, args);
      };
    },
    set(target, name, value) {
      ops.push([String(name), [value]]);
      return Reflect.set(target, name, value);
    },
  });
}

/** For a canvas that something else draws on: what it shows, told when it is asked for. */
export function describeCanvas(canvas: HTMLCanvasElement, draw: (c: CanvasLike) => void): void {
  LOGS.set(canvas, () => {
    const ops: Op[] = [];
    draw(
      new Proxy({} as CanvasLike, {
        get:
          (_, name) =>
          (...args: unknown[]) =>
            ops.push([String(name), args]),
        set: (_, name, value) => {
          ops.push([String(name), [value]]);
          return true;
        },
      }),
    );
    return ops;
  });
}

export type CanvasLike = Omit<CanvasRenderingContext2D, "canvas">;

/** Pixels stay on the canvas: only their place is remembered. */
function slim(args: readonly unknown[]): readonly unknown[] {
  return args.map((a) => (a instanceof ImageData ? { width: a.width, height: a.height } : a));
}

interface Pen {
  fillStyle: string;
  strokeStyle: string;
  lineWidth: number;
  font: string;
  textAlign: string;
  textBaseline: string;
  dash: string;
  alpha: number;
  clips: number;
}

const PEN: Pen = {
  fillStyle: "#000",
  strokeStyle: "#000",
  lineWidth: 1,
  font: "12px sans-serif",
  textAlign: "start",
  textBaseline: "alphabetic",
  dash: "",
  alpha: 1,
  clips: 0,
};

const ANCHOR = new Map([
  ["right", "end"],
  ["end", "end"],
  ["center", "middle"],
]);
const LOWERED = new Map([
  ["middle", 0.35],
  ["top", 0.8],
  ["hanging", 0.8],
]);

/** The canvas as elements of SVG, in CSS pixels; all of it as one image where nothing is known. */
export function canvasToSvg(canvas: HTMLCanvasElement, id: string): string {
  const box = canvas.getBoundingClientRect();
  const ratio = canvas.width / (box.width || canvas.width);
  const ops = LOGS.get(canvas)?.();
  if (!ops)
    return image(canvas, [0, 0, canvas.width, canvas.height], [0, 0, box.width, box.height]);
  const out: string[] = [];
  const saved: Pen[] = [];
  let pen = { ...PEN };
  let path = "";
  let clips = 0;
  const paint = (d: string, isFill: boolean) =>
    out.push(
      isFill
        ? `<path d="${d}" fill="${pen.fillStyle}" opacity="${pen.alpha}"/>`
        : `<path d="${d}" fill="none" stroke="${pen.strokeStyle}" stroke-width="${pen.lineWidth}" stroke-dasharray="${pen.dash}" opacity="${pen.alpha}"/>`,
    );
  const rectangle = ([x, y, w, h]: readonly number[]) =>
    `M${r(x)} ${r(y)}h${r(w)}v${r(h)}h${r(-w)}z`;
  for (const [name, args] of ops) {
    const n = args as readonly number[];
    if (name === "save") saved.push({ ...pen });
    else if (name === "restore") {
      const before = saved.pop() ?? { ...PEN };
      for (let i = before.clips; i < pen.clips; i++) out.push("</g>");
      pen = before;
    } else if (name === "beginPath") path = "";
    else if (name === "moveTo") path += `M${r(n[0])} ${r(n[1])}`;
    else if (name === "lineTo") path += `L${r(n[0])} ${r(n[1])}`;
    else if (name === "rect") path += rectangle(n);
    else if (name === "arc") path += circle(n);
    else if (name === "closePath") path += "z";
    else if (name === "stroke") paint(path, false);
    else if (name === "fill") paint(path, true);
    else if (name === "fillRect") paint(rectangle(n), true);
    else if (name === "strokeRect") paint(rectangle(n), false);
    else if (name === "clip") {
      clips += 1;
      pen.clips += 1;
      out.push(`<clipPath id="${id}-${clips}"><path d="${path}"/></clipPath>`);
      out.push(`<g clip-path="url(#${id}-${clips})">`);
    } else if (name === "setLineDash") pen.dash = (args[0] as number[]).join(" ");
    else if (name === "globalAlpha") pen.alpha = n[0];
    else if (name === "fillText") out.push(text(String(args[0]), Number(n[1]), Number(n[2]), pen));
    else if (name === "putImageData") {
      const { width, height } = args[0] as ImageData;
      const from = [n[1], n[2], width, height];
      out.push(
        image(
          canvas,
          from,
          from.map((v) => v / ratio),
        ),
      );
    } else if (name in pen) pen = { ...pen, [name]: args[0] };
  }
  for (let i = 0; i < pen.clips; i++) out.push("</g>");
  return out.join("");
}

function text(words: string, x: number, y: number, pen: Pen): string {
  const size = Number(/(\d+(?:\.\d+)?)px/.exec(pen.font)?.[1] ?? 12);
  const weight = /^(\d{3}|bold) /.exec(pen.font)?.[1] ?? "400";
  const down = size * (LOWERED.get(pen.textBaseline) ?? 0);
  const anchor = ANCHOR.get(pen.textAlign) ?? "start";
  return `<text x="${r(x)}" y="${r(y + down)}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}" fill="${pen.fillStyle}">${escaped(words)}</text>`;
}

/** A part of the canvas, in its own pixels, put at a place in CSS pixels. */
function image(
  canvas: HTMLCanvasElement,
  [x, y, width, height]: readonly number[],
  at: readonly number[],
): string {
  if (width < 1 || height < 1) return "";
  const part = document.createElement("canvas");
  part.width = width;
  part.height = height;
  part.getContext("2d")!.drawImage(canvas, -x, -y);
  return `<image x="${r(at[0])}" y="${r(at[1])}" width="${r(at[2])}" height="${r(at[3])}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${part.toDataURL("image/png")}"/>`;
}

function circle([x, y, radius]: readonly number[]): string {
  return `M${r(x - radius)} ${r(y)}a${r(radius)} ${r(radius)} 0 1 0 ${r(2 * radius)} 0a${r(radius)} ${r(radius)} 0 1 0 ${r(-2 * radius)} 0`;
}

function r(value: number): number {
  return Math.round(value * 100) / 100;
}

export function escaped(words: string): string {
  return (
    words
      .replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`)
      // biome-ignore lint/suspicious/noControlCharactersInRegex: XML allows none of them
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "")
  );
}
