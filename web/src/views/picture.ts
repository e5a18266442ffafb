/** A chart as a picture: SVG made of what is on screen, and PNG made of that. */

import { canvasToSvg, escaped } from "../core/recorded";
import { FONT } from "./canvas";

/** Elements that belong to the page and not to the picture. */
const HIDDEN =
  ".menu, .tip, .brush, .hover-line, .row-hover, .visually-hidden, .stepper, .select, .button, .exponent-controls";
const COPIED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
];

/** All that is drawn inside an element, on the ground of the page. */
export function toSvg(root: HTMLElement, ground: string): string {
  const box = root.getBoundingClientRect();
  const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)];
  const parts = [`<rect width="${width}" height="${height}" fill="${ground}"/>`];
  const walk = (element: Element) => {
    const style = getComputedStyle(element);
    if (element.matches(HIDDEN) || style.display === "none" || style.visibility === "hidden")
      return;
    const at = element.getBoundingClientRect();
    const [x, y] = [at.left - box.left, at.top - box.top];
    if (at.width === 0 || at.height === 0 || y > height || x > width) return;
    if (element instanceof HTMLCanvasElement) {
      const inside = canvasToSvg(element, `c${parts.length}`);
      parts.push(`<g transform="translate(${x.toFixed(2)} ${y.toFixed(2)})">${inside}</g>`);
      return;
    }
    if (element instanceof SVGSVGElement) {
      parts.push(drawing(element, x, y, at));
      return;
    }
    if (!/^rgba\(.*, 0\)$|^transparent$/.test(style.backgroundColor) && element !== root) {
      parts.push(
        `<rect x="${x.toFixed(2)}" y="${y.toFixed(2)}" width="${at.width.toFixed(2)}" height="${at.height.toFixed(2)}" fill="${style.backgroundColor}"/>`,
      );
    }
    for (const child of element.childNodes) {
      if (child instanceof Element) walk(child);
      else if (child instanceof Text && child.data.trim()) parts.push(words(child, style, box));
    }
  };
  walk(root);
  // The name that files of SVG begin with: that of the icons of the page.
  const name = (root.getRootNode() as ParentNode).querySelector("svg")?.namespaceURI ?? "";
  return `<svg xmlns="${name}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${FONT.replace(/"/g, "'")}">${parts.join("")}</svg>`;
}

function words(node: Text, style: CSSStyleDeclaration, box: DOMRect): string {
  const range = document.createRange();
  range.selectNodeContents(node);
  const at = range.getBoundingClientRect();
  if (at.width === 0) return "";
  const size = Number.parseFloat(style.fontSize);
  const y = at.top - box.top + at.height / 2 + size * 0.35;
  return `<text x="${(at.left - box.left).toFixed(2)}" y="${y.toFixed(2)}" font-size="${size}" font-weight="${style.fontWeight}" fill="${style.color}">${escaped(node.data.trim())}</text>`;
}

/** What is SVG already, with the styles that the page gives it. */
function drawing(svg: SVGSVGElement, x: number, y: number, at: DOMRect): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
  for (const [i, element] of from.entries()) {
    const style = getComputedStyle(element);
    for (const name of COPIED) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
    if (style.display === "none") to[i].setAttribute("display", "none");
  }
  copy.setAttribute("x", x.toFixed(2));
  copy.setAttribute("y", y.toFixed(2));
  copy.setAttribute("width", String(at.width));
  copy.setAttribute("height", String(at.height));
  return new XMLSerializer().serializeToString(copy);
}

export async function savePicture(
  root: HTMLElement,
  ground: string,
  name: string,
  type: "svg" | "png",
): Promise<void> {
  const svg = new Blob([toSvg(root, ground)], { type: "image/svg+xml" });
  save(type === "svg" ? svg : await toPng(svg, root.getBoundingClientRect()), `${name}.${type}`);
}

async function toPng(svg: Blob, { width, height }: DOMRect): Promise<Blob> {
  const address = URL.createObjectURL(svg);
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    const ratio = Math.max(2, devicePixelRatio || 1);
    canvas.width = Math.round(Math.ceil(width) * ratio);
    canvas.height = Math.round(Math.ceil(height) * ratio);
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, fail) =>
      canvas.toBlob((made) => (made ? done(made) : fail(new Error("no picture")))),
    );
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Hands a file to the browser. */
export function save(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, "_").slice(-120);
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
