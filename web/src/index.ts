/**
 * The module that hosts load. The page mounts itself where `data-sonde-auto` is and a report where
 * `data-sonde-report` is; notebooks call `render`.
 */

import { hashAddress, memoryAddress } from "./app/address";
import { mount } from "./app/mount";
import { Archive, archived, blocksOf, bytesOf } from "./data/archive";
import { http } from "./data/transport";
import { render } from "./widget";

/** A widget of anywidget. */
export default { render };
export { memoryAddress } from "./app/address";
export { mount } from "./app/mount";
export { http } from "./data/transport";

const page = document.querySelector<HTMLElement>("[data-sonde-auto]");
const report = document.querySelector<HTMLElement>("[data-sonde-report]");

if (page) {
  const transport = http(document.baseURI);
  mount(fill(page), { transport, address: hashAddress(), isWholePage: true });
} else if (report) {
  const blocks = blocksOf(report);
  const font = blocks("font");
  // Inside another page (`srcdoc`) the address is not this document's own.
  const isOwn = /^(file|https?):$/.test(location.protocol);
  mount(fill(report), {
    transport: archived(Archive.read(blocks)),
    address: isOwn ? hashAddress() : memoryAddress(),
    isWholePage: true,
    font: font ? bytesOf(font).buffer : undefined,
  });
}

/** An element that fills the whole page. What else lies in the body stays. */
function fill(place: HTMLElement): HTMLElement {
  const host = document.createElement("div");
  host.id = "sonde";
  place.append(host);
  for (const element of [document.documentElement, place]) {
    element.style.height = "100%";
    element.style.margin = "0";
  }
  host.style.height = "100%";
  return host;
}
