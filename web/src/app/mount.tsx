/** Puts the page into an element: its own shadow tree, its own styles, its own state. */

import { effect, type ReadonlySignal } from "@preact/signals";
import { render } from "preact";
import { cssName } from "../core/tokens";
import type { Transport } from "../data/transport";
import styles from "../style.css";
import { Page } from "../views/Page";
import type { Solo } from "../views/SoloPage";
import type { Address } from "./address";
import { App } from "./app";
import { AppContext } from "./hooks";
import { listenToKeys } from "./keyboard";

export interface Host {
  transport: Transport;
  address: Address;
  /** Keys are taken from the whole document, not only while the focus is inside. */
  isWholePage: boolean;
  /** Whether the host is dark, where it says so itself. */
  isDark?: ReadonlySignal<boolean | null>;
  /** Whether an answer waits for something that takes long. */
  isWaiting?: ReadonlySignal<boolean>;
  /** The one view to show, without the frame around it. */
  solo?: Solo;
  /** The typeface, where it does not lie beside the page. */
  font?: ArrayBuffer;
}

export function mount(
  host: HTMLElement,
  { transport, address, isWholePage, isDark, isWaiting, solo, font }: Host,
): () => void {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(styles);
  root.adoptedStyleSheets = [sheet];
  const place = document.createElement("div");
  place.className = "root";
  root.replaceChildren(place);
  if (isWholePage) loadFont(font);

  const app = new App(transport, address, host, { isDark, isWaiting, isWholePage });
  const endTheme = effect(() => {
    const { isDark, tokens } = app.theme.value;
    host.dataset.theme = isDark ? "dark" : "light";
    host.style.colorScheme = isDark ? "dark" : "light";
    for (const [name, value] of Object.entries(tokens))
      host.style.setProperty(cssName(name), value);
    if (isWholePage) document.documentElement.style.background = tokens.ground;
  });
  const endKeys = listenToKeys(app, isWholePage ? document : host, root);
  render(
    <AppContext.Provider value={app}>
      <Page solo={solo} />
    </AppContext.Provider>,
    place,
  );
  app.ready.check();
  return () => {
    endKeys();
    endTheme();
    app.close();
    render(null, place);
  };
}

/** The typeface lies beside the module, or comes with it. Without it the system's own is used. */
function loadFont(bytes?: ArrayBuffer): void {
  const source = bytes ?? `url(${new URL("inter.woff2", document.baseURI).href})`;
  const font = new FontFace("Sonde Inter", source, { weight: "100 900" });
  document.fonts.add(font);
  font.load().catch(() => document.fonts.delete(font));
}
