/** Drawing on a canvas at the resolution of the screen. */

import type { TimeTick } from "../core/clock";
import type { PixelMap } from "../core/columns";
import { drawPlane, type Palette, type Plane } from "../core/heat";
import { cutMiddle } from "../core/pathcut";
import { recorded } from "../core/recorded";
import type { Tick } from "../core/scales";

export const FONT = '"Sonde Inter", Inter, system-ui, -apple-system, "Segoe UI", sans-serif';

export interface Surface {
  context: CanvasRenderingContext2D;
  /** CSS pixels. */
  width: number;
  height: number;
  ratio: number;
}

/** Makes a canvas as large as asked and clears it. Null if there is nothing to draw on. */
export function prepare(
  canvas: HTMLCanvasElement | null,
  width: number,
  height: number,
): Surface | null {
  const context = canvas?.getContext("2d");
  if (!canvas || !context || width < 1 || height < 1) return null;
  const ratio = Math.max(1, Math.min(3, devicePixelRatio || 1));
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context: recorded(context), width, height, ratio };
}

/** Puts a plane of classes on the canvas at device pixels `left`, `top`. */
export function paintPlane(
  { context }: Surface,
  plane: Plane,
  x: PixelMap,
  y: PixelMap,
  palette: Palette,
  left = 0,
  top = 0,
): void {
  const [width, height] = [x.from.length, y.from.length];
  if (width < 1 || height < 1) return;
  const image = context.createImageData(width, height);
  drawPlane(plane, x, y, new Uint32Array(image.data.buffer), palette);
  context.putImageData(image, left, top);
}

/** Text in the middle of its line, cut with … where it does not fit. */
export function label(
  context: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  most: number,
): void {
  context.fillText(
    cutMiddle(text, (t) => context.measureText(t).width <= most),
    x,
    y,
  );
}

let ruler: CanvasRenderingContext2D | null = null;

/** How wide text is at 12 pixels. */
export function textWidth(text: string, weight = 400): number {
  ruler ??= document.createElement("canvas").getContext("2d");
  if (!ruler) return 7 * text.length;
  ruler.font = `${weight} 12px ${FONT}`;
  return ruler.measureText(text).width;
}

/** Ticks on a vertical axis, right-aligned at `x`; powers of two with a raised exponent. */
export function verticalTicks(
  context: CanvasRenderingContext2D,
  ticks: readonly Tick[],
  x: number,
  top: number,
  height: number,
  size: number,
): void {
  context.textBaseline = "middle";
  context.textAlign = "right";
  const drawn: number[] = [];
  for (const tick of ticks) {
    const y = top + (1 - tick.at) * height;
    const inside = Math.max(top + size / 2 - 1, Math.min(top + height - size / 2 + 1, y));
    if (drawn.some((d) => Math.abs(d - inside) < size + 2)) continue;
    drawn.push(inside);
    if (tick.power === undefined) {
      context.font = `${size}px ${FONT}`;
      context.fillText(tick.label, x, inside);
    } else {
      const exponent = String(tick.power).replace("-", "\u2212");
      context.font = `${size}px ${FONT}`;
      context.fillText(exponent, x, inside - 4);
      const width = context.measureText(exponent).width;
      context.font = `${size}px ${FONT}`;
      context.fillText("2", x - width - 1, inside);
    }
  }
}

/** Ticks along a horizontal axis; `place` gives 0 to 1 for a step. */
export function horizontalTicks(
  context: CanvasRenderingContext2D,
  ticks: readonly TimeTick[],
  place: (step: number) => number,
  left: number,
  width: number,
  y: number,
): void {
  context.textBaseline = "top";
  let end = -Infinity;
  for (const { step, label: words } of ticks) {
    const at = place(step);
    if (at < 0 || at > 1) continue;
    const half = context.measureText(words).width / 2;
    const x = Math.max(left + half, Math.min(left + width - half, left + at * width));
    if (x - half < end + 8) continue;
    context.textAlign = "center";
    context.fillText(words, x, y);
    end = x + half;
  }
}
