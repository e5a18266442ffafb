/** Small controls that all parts use: buttons, choices, icons. */

import type { ComponentChildren } from "preact";

const ICONS = {
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9ZM10.3 10.3 13.5 13.5",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6ZM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M12.8 3.2l-1.1 1.1M4.3 11.7l-1.1 1.1",
  moon: "M13.4 9.6A5.8 5.8 0 0 1 6.4 2.6 5.8 5.8 0 1 0 13.4 9.6Z",
  close: "M4 4l8 8M12 4l-8 8",
  pin: "M9.6 2.2l4.2 4.2-2.6.9-2.9 2.9.1 2.8-1 .9-2.7-2.7L2.1 13.9M4.7 11.3 2.1 8.6l.9-1 2.8.1 2.9-2.9Z",
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  up: "M3.5 10 8 5.5 12.5 10",
  open: "M3 8h8.5M8 4.5 11.5 8 8 11.5",
  fit: "M2.5 6v-3.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  tree: "M3 3h4M3 8h7M3 13h7M3 3v10",
  panels: "M2.5 3h11v10h-11zM10 3v10",
  help: "M6 6.2a2 2 0 1 1 2.7 1.9c-.5.2-.7.5-.7 1V9.6M8 12v.2",
  link: "M6.7 9.3l2.6-2.6M7.2 4.7l1.3-1.3a2.9 2.9 0 0 1 4.1 4.1l-1.3 1.3M8.8 11.3l-1.3 1.3a2.9 2.9 0 0 1-4.1-4.1l1.3-1.3",
  play: "M5 3.5v9l7-4.5Z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  drag: "M6 4v.1M6 8v.1M6 12v.1M10 4v.1M10 8v.1M10 12v.1",
  grid: "M2.5 2.5h4.5v4.5H2.5zM9 2.5h4.5v4.5H9zM2.5 9h4.5v4.5H2.5zM9 9h4.5v4.5H9z",
  warn: "M8 2.5 14 13H2ZM8 6.5v3M8 11.2v.1",
  filter: "M2.5 3.5h11L9.3 8.5v4l-2.6-1.3V8.5Z",
  table: "M2.5 3h11v10h-11zM2.5 6.5h11M2.5 9.8h11M6.5 3v10",
  more: "M3.5 8v.1M8 8v.1M12.5 8v.1",
} as const;

export type IconName = keyof typeof ICONS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true">
      <path d={ICONS[name]} />
    </svg>
  );
}

interface ButtonProps {
  icon?: IconName;
  label: string;
  keys?: string;
  isOn?: boolean;
  isQuiet?: boolean;
  class?: string;
  disabled?: boolean;
  tabIndex?: number;
  onClick: (event: MouseEvent) => void;
  children?: ComponentChildren;
}

/** A button; with an icon alone its label is for assistive technology and for the tip. */
export function Button({
  icon,
  label,
  keys,
  isOn,
  isQuiet,
  onClick,
  children,
  disabled,
  tabIndex,
  class: extra = "",
}: ButtonProps) {
  return (
    <button
      type="button"
      class={`button ${children ? "" : "only-icon"} ${isQuiet ? "quiet" : ""} ${extra}`}
      aria-label={children ? undefined : label}
      aria-pressed={isOn}
      title={keys ? `${label} (${keys})` : label}
      disabled={disabled}
      tabIndex={tabIndex}
      onClick={onClick}
    >
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

export interface Option {
  value: string;
  label: string;
  group?: string;
}

interface SelectProps {
  label: string;
  value: string;
  options: readonly Option[];
  onChange: (value: string) => void;
  isLabelShown?: boolean;
  title?: string;
}

/** A choice of one from a list, with its name before it. */
export function Select({
  label,
  value,
  options,
  onChange,
  isLabelShown = true,
  title,
}: SelectProps) {
  const groups = [...new Set(options.map((o) => o.group ?? ""))];
  const known = options.some((o) => o.value === value);
  const draw = (list: readonly Option[]) =>
    list.map((o) => (
      <option key={o.value} value={o.value} selected={o.value === value}>
        {o.label}
      </option>
    ));
  return (
    <label class="select" title={title ?? label}>
      <span class={isLabelShown ? "select-name" : "visually-hidden"}>{label}</span>
      <select value={value} onChange={(e) => onChange(e.currentTarget.value)}>
        {!known && (
          <option value={value} selected>
            {value}
          </option>
        )}
        {groups.map((group) =>
          group ? (
            <optgroup key={group} label={group}>
              {draw(options.filter((o) => o.group === group))}
            </optgroup>
          ) : (
            draw(options.filter((o) => !o.group))
          ),
        )}
      </select>
    </label>
  );
}

interface SegmentsProps<T extends string> {
  label: string;
  value: T;
  options: readonly { value: T; label: string; title?: string }[];
  onChange: (value: T) => void;
}

/** A choice among few, all to be seen. */
export function Segments<T extends string>({ label, value, options, onChange }: SegmentsProps<T>) {
  return (
    <div class="segments" role="group" aria-label={label}>
      {options.map((o) => (
        <button
          key={o.value}
          type="button"
          aria-pressed={o.value === value}
          title={o.title ?? `${label}: ${o.label}`}
          onClick={() => onChange(o.value)}
        >
          {o.label}
        </button>
      ))}
    </div>
  );
}

export function Key({ children }: { children: string }) {
  return <kbd>{children}</kbd>;
}
