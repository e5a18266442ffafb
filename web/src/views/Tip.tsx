/** The tip at the pointer. HTML with text in it, placed where there is room. */

import { useLayoutEffect, useRef } from "preact/hooks";

export interface TipContent {
  title: string;
  note?: string;
  rows: readonly (readonly [string, string])[];
  x: number;
  y: number;
}

export function Tip({ content }: { content: TipContent | null }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !content) return;
    const { width, height } = element.getBoundingClientRect();
    const x = content.x + 16 + width > innerWidth ? content.x - 14 - width : content.x + 16;
    const y = content.y + 14 + height > innerHeight ? content.y - 12 - height : content.y + 14;
    element.style.transform = `translate(${Math.max(4, Math.round(x))}px, ${Math.max(4, Math.round(y))}px)`;
  });
  if (!content) return null;
  return (
    <div class="tip" ref={box} role="tooltip">
      <div class="tip-title">
        <span>{content.title}</span>
        {content.note && <span class="dim">{content.note}</span>}
      </div>
      {content.rows.length > 0 && (
        <dl>
          {content.rows.map(([name, value], i) => (
            <div key={i}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
    </div>
  );
}
