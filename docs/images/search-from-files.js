// Browsers start no worker for a page that was opened as a file: there the search runs in a frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe"), waiting = [];
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const send = data => inside.dispatchEvent(new MessageEvent("message", { data }));
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.postMessage = data => waiting.push(data);
      const script = inside.document.createElement("script");
      script.onload = () => { this.postMessage = send; waiting.forEach(send); };
      script.src = url;
      inside.document.body.append(script);
    }
  };
