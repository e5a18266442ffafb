/** Says on the host element when all that was asked for is drawn: `data-ready="1"`. */

import type { Waiting } from "../data/query";

export class Readiness implements Waiting {
  private count = 0;
  private turn = 0;

  constructor(private readonly host: HTMLElement) {
    host.dataset.ready = "0";
  }

  begin(): void {
    this.count += 1;
    this.turn += 1;
    this.host.dataset.ready = "0";
  }

  end(): void {
    this.count -= 1;
    if (this.count === 0) this.settle(this.turn);
  }

  /** Call once when the page is mounted: it may have nothing to ask. */
  check(): void {
    if (this.count === 0) this.settle(this.turn);
  }

  /** What was drawn may ask for more: wait until two frames have passed without. */
  private settle(turn: number): void {
    const later = () => {
      if (this.count === 0 && turn === this.turn) this.host.dataset.ready = "1";
    };
    void document.fonts.ready.then(() =>
      requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(later))),
    );
  }
}
