/* Search on pages opened from a folder: browsers start no workers there, so a hidden frame of the same
 * origin runs the script of the worker. On a server, workers are used. */
(() => {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.ready = new Promise((resolve) => {
        this.frame.addEventListener("load", () => resolve(this.start(url)), { once: true });
      });
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.addEventListener("load", resolve);
          script.addEventListener("error", reject);
          script.src = src;
          inside.document.head.append(script);
        });
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = (...urls) =>
        urls.reduce((before, src) => before.then(() => load(src)), Promise.resolve());
      return load(url);
    }

    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  }

  if (location.protocol === "file:") window.Worker = FrameWorker;
})();
