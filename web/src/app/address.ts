/** Where the state of the page is kept: in the address of the page, or in memory elsewhere. */

export interface Address {
  read(): string;
  /** `isPlace`: Back returns to what was before. */
  write(hash: string, isPlace: boolean): void;
  listen(heard: () => void): () => void;
}

/** Browsers stop counting when the address changes too often, so small changes are gathered. */
const GATHER_MS = 250;

export function hashAddress(): Address {
  let waiting: string | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const flush = () => {
    clearTimeout(timer);
    timer = undefined;
    if (waiting !== null && waiting !== location.hash) history.replaceState(null, "", waiting);
    waiting = null;
  };
  addEventListener("pagehide", flush);
  return {
    read: () => waiting ?? location.hash,
    write(hash, isPlace) {
      if (isPlace) {
        flush();
        if (hash !== location.hash) history.pushState(null, "", hash);
        return;
      }
      waiting = hash;
      timer ??= setTimeout(flush, GATHER_MS);
    },
    listen(heard) {
      const onChange = () => {
        clearTimeout(timer);
        timer = undefined;
        waiting = null;
        heard();
      };
      addEventListener("popstate", onChange);
      addEventListener("hashchange", onChange);
      return () => {
        removeEventListener("popstate", onChange);
        removeEventListener("hashchange", onChange);
      };
    },
  };
}

export function memoryAddress(hash = ""): Address {
  let kept = hash;
  return {
    read: () => kept,
    write: (next) => {
      kept = next;
    },
    listen: () => () => {},
  };
}
