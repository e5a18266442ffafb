/** The header of a group of rows in a heatmap. */

import { useMemo } from "preact/hooks";
import { count } from "../core/format";
import { cutPath } from "../core/pathcut";
import { Icon } from "./Controls";
import { textWidth } from "./canvas";

export const LABEL_PX = 14;
/** Where the labels of groups begin, after the mark that opens them; rows below them stand in. */
export const TWIST_PX = 18;

interface HeaderProps {
  label: string;
  count: number;
  isFolded: boolean;
  y: number;
  width: number;
  onToggle: () => void;
}

/** The header of a group of rows. Keys reach it through its line in the heatmap. */
export function HeatHeader({ label, count: rows, isFolded, y, width, onToggle }: HeaderProps) {
  const shown = useMemo(
    () => cutPath(label, (text) => textWidth(text, 500) <= width - TWIST_PX - 34),
    [label, width],
  );
  return (
    <button
      type="button"
      class="heat-group"
      tabIndex={-1}
      aria-expanded={!isFolded}
      title={`${label}: ${count(rows)} rows. ${isFolded ? "Open" : "Fold"}`}
      data-group={label}
      style={{
        top: `${y - LABEL_PX / 2}px`,
        height: `${LABEL_PX}px`,
        width: `${width - 4}px`,
      }}
      onClick={onToggle}
    >
      <Icon name={isFolded ? "right" : "down"} size={12} />
      <span class="heat-group-name">{shown}</span>
      {isFolded && <span class="dim">{rows}</span>}
    </button>
  );
}
