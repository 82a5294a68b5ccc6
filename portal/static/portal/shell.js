// A terminal in a task: xterm.js connected to a WebSocket with the frames of borglet/messages.py.
"use strict";

(() => {
  const DATA = 100, CONSUMED = 97, RESIZE = 114, ALIVE = 112, OPENED = 111, EXIT = 120, FAILED = 102; // d a r p o x f
  const WINDOW = 256 * 1024, FRAME = 16 * 1024, LEAST_COST = 512, ALIVE_MS = 5000;
  const LIGHT = {
    background: "#ffffff", foreground: "#1f2430", cursor: "#1f2430", selectionBackground: "#b6d3f5",
    black: "#1f2430", red: "#b3261e", green: "#1d6f3a", yellow: "#7a5200", blue: "#1a55b0", magenta: "#8a2b8a",
    cyan: "#0b6a75", white: "#5d6470", brightBlack: "#5d6470", brightRed: "#c8352c", brightGreen: "#23803f",
    brightYellow: "#8a5d00", brightBlue: "#2463c4", brightMagenta: "#9a3a9a", brightCyan: "#107a86", brightWhite: "#3a404c",
  };
  const DARK = {
    background: "#12151c", foreground: "#e3e6ec", cursor: "#e3e6ec", selectionBackground: "#35507a",
    black: "#2a2f3a", red: "#ff8a80", green: "#7fd99a", yellow: "#f0c674", blue: "#8ab4f8", magenta: "#e09be0",
    cyan: "#78d5df", white: "#d5d9e0", brightBlack: "#8b93a1", brightRed: "#ffa79f", brightGreen: "#a0e6b5",
    brightYellow: "#f7dba0", brightBlue: "#aecbfa", brightMagenta: "#ecbdec", brightCyan: "#a0e5ec", brightWhite: "#ffffff",
  };
  // xterm.js adds <style> elements and writes `style` attributes. This code gives the elements the page's nonce and sets
  // the attributes through the style object, so that the Content-Security-Policy can forbid both to all other code.
  const NONCE = document.currentScript.nonce;
  const create = document.createElement.bind(document), setAttribute = Element.prototype.setAttribute;
  document.createElement = (name, ...more) => {
    const element = create(name, ...more);
    if (name === "style") element.nonce = NONCE;
    return element;
  };
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };

  const encoder = new TextEncoder(), decoder = new TextDecoder();
  const cost = (size) => Math.max(size, LEAST_COST);
  const theme = () => (document.documentElement.classList.contains("dark") ? DARK : LIGHT);

  class Shell {
    constructor(box) {
      this.box = box;
      this.status = box.querySelector("[data-shell-status]");
      this.typed = []; // input that may not be sent yet
      this.unconsumed = 0;
      this.over = false;
      this.terminal = new Terminal({ cursorBlink: true, fontSize: 14, lineHeight: 1.15, scrollback: 5000, theme: theme(), fontFamily: "ui-monospace, monospace" });
      this.fit = new FitAddon.FitAddon();
      this.terminal.loadAddon(this.fit);
      this.terminal.open(box.querySelector("[data-shell-screen]"));
      this.fit.fit();
      this.terminal.onData((text) => this.type(encoder.encode(text)));
      this.terminal.onBinary((text) => this.type(Uint8Array.from(text, (c) => c.charCodeAt(0))));
      this.terminal.onResize(({ rows, cols }) => this.send(RESIZE, encoder.encode(`${rows} ${cols}`)));
      new ResizeObserver(() => this.fit.fit()).observe(box);
      new MutationObserver(() => { this.terminal.options.theme = theme(); }).observe(document.documentElement, { attributeFilter: ["class"] });
      const again = box.querySelector("[data-shell-again]");
      again.addEventListener("click", () => location.reload());
      this.again = again;
      this.connect();
    }

    connect() {
      const url = new URL(this.box.dataset.shell, location.href);
      url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
      url.searchParams.set("rows", this.terminal.rows);
      url.searchParams.set("cols", this.terminal.cols);
      this.showStatus("wait", this.box.dataset.textOpening);
      this.socket = new WebSocket(url);
      this.socket.binaryType = "arraybuffer";
      this.socket.addEventListener("message", (event) => this.take(new Uint8Array(event.data)));
      this.socket.addEventListener("close", () => this.end(this.box.dataset.textLost));
      this.alive = setInterval(() => this.send(ALIVE), ALIVE_MS);
    }

    take(frame) {
      const kind = frame[0], payload = frame.subarray(1);
      if (kind === DATA) {
        // Acknowledge the data after it is drawn. A task that prints faster has to wait.
        this.terminal.write(payload, () => this.send(CONSUMED, encoder.encode(String(cost(payload.length)))));
      } else if (kind === CONSUMED) {
        this.unconsumed = Math.max(0, this.unconsumed - Number(decoder.decode(payload)));
        this.flush();
      } else if (kind === OPENED) {
        this.showStatus("good", this.box.dataset.textOpen);
        this.terminal.focus();
      } else if (kind === EXIT) {
        this.end(`${this.box.dataset.textExited} ${decoder.decode(payload)}`);
      } else if (kind === FAILED) {
        this.end(decoder.decode(payload));
      }
    }

    type(bytes) {
      if (this.over) return;
      for (let at = 0; at < bytes.length; at += FRAME) this.typed.push(bytes.subarray(at, at + FRAME));
      this.flush();
    }

    flush() {
      while (this.typed.length && this.unconsumed < WINDOW) {
        const part = this.typed.shift();
        this.unconsumed += cost(part.length);
        this.send(DATA, part);
      }
    }

    send(kind, payload = new Uint8Array()) {
      if (this.socket?.readyState !== WebSocket.OPEN) return;
      const frame = new Uint8Array(payload.length + 1);
      frame[0] = kind;
      frame.set(payload, 1);
      this.socket.send(frame);
    }

    end(reason) {
      if (this.over) return;
      this.over = true;
      clearInterval(this.alive);
      this.showStatus("bad", reason);
      this.terminal.options.cursorBlink = false;
      this.terminal.options.disableStdin = true;
      this.again.hidden = false;
    }

    showStatus(kind, text) {
      this.status.className = `tag tag-${kind}`;
      this.status.textContent = text;
    }
  }

  for (const box of document.querySelectorAll("[data-shell]")) new Shell(box);
})();
