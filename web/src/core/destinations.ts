/** Where one can go on the page: the tabs about a run, each with its key after `G`. */

export const DESTINATIONS = [
  { page: "overview", label: "Overview", key: "o" },
  { page: "explore", label: "Explore", key: "e" },
  { page: "layers", label: "Layers", key: "l" },
  { page: "compare", label: "Compare", key: "c" },
] as const;

export type Destination = (typeof DESTINATIONS)[number]["page"];
export type Page = Destination | "runs";

export const PAGES: readonly Page[] = ["runs", ...DESTINATIONS.map((d) => d.page)];
