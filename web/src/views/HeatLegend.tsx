/** The legend of a heatmap: what the colours mean, in numbers, and what is not a colour of the map. */

import { useLayoutEffect, useRef } from "preact/hooks";
import type { Heat } from "../api.gen";
import { share, value } from "../core/format";
import { CLASS_LOW, CLASS_TOP, type Palette } from "../core/heat";
import type { ColourScale } from "../core/scales";

const WIDTH = 254;

export function HeatLegend({
  heat,
  scale,
  colours,
}: {
  heat: Heat;
  scale: ColourScale;
  colours: Palette;
}) {
  const bad = heat.flags.includes(2);
  return (
    <div class="legend">
      <span class="legend-title">{heat.title.replace(/_/g, " ")}</span>
      <Ramp
        colours={colours}
        low={value(scale.low, heat.format)}
        high={value(scale.high, heat.format)}
        below={heat.limits.low_share}
        above={heat.limits.high_share}
      />
      <span class="dim">
        {{ linear: "linear", log: "logarithmic", signed: "signed" }[scale.kind]}
      </span>
      <span class="legend-key">
        <i class="swatch nonfinite" /> {bad ? "NaN or infinite" : "NaN or infinite: none"}
      </span>
      <span class="legend-key">
        <i class="swatch missing dots" /> not recorded
      </span>
    </div>
  );
}

interface RampProps {
  colours: Palette;
  low: string;
  high: string;
  below?: number;
  above?: number;
}

/** The colours from low to high, with the numbers at their ends, and what lies beyond them. */
export function Ramp({ colours, low, high, below = 0, above = 0 }: RampProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const context = canvas.current!.getContext("2d")!;
    const image = context.createImageData(WIDTH, 1);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < WIDTH; i++) {
      pixels[i] =
        colours.colours[Math.round(CLASS_LOW + ((CLASS_TOP - CLASS_LOW) * i) / (WIDTH - 1))];
    }
    context.putImageData(image, 0, 0);
  }, [colours]);
  return (
    <span class="ramp">
      {below > 0 && (
        <span class="clipped" title={`${share(below)} of the values are below`}>
          ◂ {share(below)}
        </span>
      )}
      <span class="number">{low}</span>
      <canvas ref={canvas} width={WIDTH} height={1} data-ramp aria-hidden="true" />
      <span class="number">{high}</span>
      {above > 0 && (
        <span class="clipped" title={`${share(above)} of the values are above`}>
          {share(above)} ▸
        </span>
      )}
    </span>
  );
}
