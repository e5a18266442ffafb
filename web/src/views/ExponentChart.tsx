/** Bars for each power of two, zero and non-finite values apart, formats as bands below. */

import { useLayoutEffect, useRef } from "preact/hooks";
import type { CrossSection, FormatLoss } from "../api.gen";
import { useApp, useSize } from "../app/hooks";
import { exponentRange } from "../core/exponents";
import { count, share } from "../core/format";
import { pinColour } from "../core/tokens";
import { FONT, label, prepare } from "./canvas";

export { lossAt } from "../core/exponents";

const BAND = 15;
const AXIS = 20;
const SPECIAL = 26;
const GUTTER = 54;

export function ExponentChart({
  data,
  formats,
  shift,
}: {
  data: CrossSection;
  formats: readonly FormatLoss[];
  shift: number;
}) {
  const app = useApp();
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const { width, height } = useSize(box);
  const { tokens, isDark } = app.theme.value;
  const [low, high] = exponentRange(data, formats, shift);
  useLayoutEffect(() => {
    const surface = prepare(canvas.current, width, height);
    if (!surface) return;
    const { context: c } = surface;
    const bars = height - AXIS - formats.length * BAND - 6;
    const left = GUTTER + SPECIAL + 6;
    const right = width - SPECIAL * 2 - 10;
    const slot = (right - left) / (high - low + 1);
    const x = (n: number) => left + (n - low) * slot;
    const finite = data.exponent_counts.reduce((m, v) => Math.max(m, v), 0);
    const bad = [data.neg_infs + data.pos_infs, data.nans];
    const most = Math.max(finite, data.zeros, ...bad) / (data.total || 1) || 1;
    const y = (counted: number) => (counted / (data.total || 1) / most) * (bars - 14);
    // Axis of shares
    c.font = `12px ${FONT}`;
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.fillStyle = tokens.text3;
    for (const part of [0, 0.5, 1]) {
      const at = bars - part * (bars - 14);
      c.fillStyle = tokens.border;
      c.fillRect(GUTTER, Math.round(at), width - GUTTER - 4, 1);
      c.fillStyle = tokens.text3;
      c.fillText(share(part * most), GUTTER - 6, Math.min(at, bars - 5));
    }
    const bar = (at: number, wide: number, counted: number, colour: string) => {
      if (!(counted > 0)) return;
      const tall = Math.max(1.5, y(counted));
      c.fillStyle = colour;
      c.fillRect(at, bars - tall, wide, tall);
    };
    for (let i = 0; i < data.exponents.length; i++) {
      bar(x(data.exponents[i]) + slot * 0.08, slot * 0.84, data.exponent_counts[i], tokens.signal);
    }
    bar(GUTTER + 4, SPECIAL - 8, data.zeros, tokens.zeros);
    bar(right + 10, SPECIAL - 8, bad[0], tokens.nonfinite);
    bar(right + 10 + SPECIAL, SPECIAL - 8, bad[1], tokens.nonfinite);
    c.textAlign = "center";
    c.textBaseline = "top";
    c.fillStyle = tokens.text3;
    c.fillText("0", GUTTER + SPECIAL / 2, bars + 3);
    c.fillText("±∞", right + 10 + SPECIAL / 2 - 4, bars + 3);
    c.fillText("NaN", right + 10 + SPECIAL * 1.5 - 4, bars + 3);
    const every = [1, 2, 4, 5, 8, 10, 16, 20, 32].find((s) => s * slot >= 34) ?? 64;
    for (let n = Math.ceil(low / every) * every; n <= high; n += every) {
      const words = String(n).replace("-", "\u2212");
      c.font = `12px ${FONT}`;
      const two = c.measureText("2").width + 1;
      const small = c.measureText(words).width;
      const at = x(n) + slot / 2 - (two + small) / 2;
      c.textAlign = "left";
      c.fillText(words, at + two, bars + 1);
      c.fillText("2", at, bars + 7);
    }
    formats.forEach((f, i) => {
      const top = bars + AXIS + 3 + i * BAND;
      const colour = pinColour(String.fromCharCode(65 + i), isDark);
      const clip = (v: number) => Math.max(left, Math.min(right, v));
      const [sub, normal, end] = [
        f.smallest_exponent - shift,
        f.normal_exponent - shift,
        f.top_exponent + 1 - shift,
      ].map((n) => clip(x(n)));
      c.fillStyle = colour;
      c.fillRect(normal, top + 3, Math.max(0, end - normal), 6);
      hatch(c, sub, top + 3, normal - sub, 6, colour);
      c.textAlign = "right";
      c.textBaseline = "middle";
      c.fillStyle = tokens.text2;
      label(c, f.title, GUTTER + SPECIAL, top + 6, GUTTER + SPECIAL - 4);
    });
  }, [data, formats, shift, width, height, tokens]);
  return (
    <div
      class="exponent-chart"
      ref={box}
      role="img"
      aria-label={`Exponents of ${count(data.total)} values at step ${data.step}, from 2^${low} to 2^${high}`}
    >
      <canvas ref={canvas} data-exponents />
    </div>
  );
}

/** Stripes: the subnormal part of a format. */
function hatch(
  c: CanvasRenderingContext2D,
  x: number,
  y: number,
  width: number,
  height: number,
  colour: string,
): void {
  if (width <= 0) return;
  c.save();
  c.beginPath();
  c.rect(x, y, width, height);
  c.clip();
  c.strokeStyle = colour;
  c.lineWidth = 1.2;
  for (let at = x - height; at < x + width; at += 4) {
    c.beginPath();
    c.moveTo(at, y + height);
    c.lineTo(at + height, y);
    c.stroke();
  }
  c.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  c.restore();
}
