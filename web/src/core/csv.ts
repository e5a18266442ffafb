/** Tables as text for spreadsheets (RFC 4180). */

export type Cell = string | number | null;

export function csv(rows: readonly (readonly Cell[])[]): string {
  return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

function field(cell: Cell): string {
  if (cell === null) return "";
  const text = String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}
