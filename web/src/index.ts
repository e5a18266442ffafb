/**
 * The module that hosts load. The page mounts itself where `data-sonde-auto` is; other hosts call
 * `mount` with a transport and an address of their own.
 */

import { hashAddress } from "./app/address";
import { mount } from "./app/mount";
import { http } from "./data/transport";

export { memoryAddress } from "./app/address";
export { mount } from "./app/mount";
export { http } from "./data/transport";

const place = document.querySelector<HTMLElement>("[data-sonde-auto]");
if (place) {
  const host = document.createElement("div");
  host.id = "sonde";
  place.replaceChildren(host);
  for (const element of [document.documentElement, place]) {
    element.style.height = "100%";
    element.style.margin = "0";
  }
  host.style.height = "100%";
  mount(host, { transport: http(document.baseURI), address: hashAddress(), isWholePage: true });
}
