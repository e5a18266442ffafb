/** Questions to text: the parameters of a request (web/API.md, "Rules"). */

/** `{run: "a", name: ["x", "y"], fold: true}` → `run=a&name=x&name=y&fold=1`. */
export function encode(question: object): string {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(question)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one === undefined || one === null) continue;
      parts.append(name, typeof one === "boolean" ? (one ? "1" : "0") : String(one));
    }
  }
  return parts.toString();
}
