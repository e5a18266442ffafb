/** A sentence of Python's: what stands between backticks is code. */

export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}
