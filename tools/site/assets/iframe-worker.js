/* SPDX-License-Identifier: Apache-2.0
   Search in a page that was opened as a file. Browsers start no worker from a file, so its script runs in a hidden frame,
   which is told messages and tells its own. */
if (location.protocol === "file:") {
  // the theme's script asks for the second name, to find its own files
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.address = new URL(address, location.href);
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      // what a worker's script finds around it
      inside.importScripts = (...scripts) => scripts.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      inside.postMessage = (data) => this.tell(data);
      inside.addEventListener("error", (event) => this.dispatchEvent(new ErrorEvent("error", { message: event.message })));
      this.load(this.address).then(() => {
        const messages = this.waiting;
        this.waiting = null;
        messages.forEach((data) => this.hand(data));
      });
    }
    load(address) {
      return new Promise((done, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = new URL(address, this.address).href;
        script.onload = done;
        script.onerror = failed;
        this.frame.contentDocument.body.appendChild(script);
      });
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.hand(data);
    }
    hand(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
    tell(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
