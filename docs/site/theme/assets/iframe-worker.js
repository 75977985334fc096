// Pages opened from a folder (file://) may not start workers, which the search does. There a hidden frame runs the
// worker's script instead, with the few parts of a worker's interface that the search uses.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.src = address;
          script.addEventListener("load", () => resolve(inner));
          inner.document.body.append(script);
        }, { once: true });
      });
      frame.srcdoc = "<!doctype html><html><body></body></html>";
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
