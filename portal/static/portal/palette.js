// The dialog of the search: Ctrl-K (on a Mac Command-K) opens it on every page of Sigma and of the console. The text field
// is a combobox of the results. The server returns only what the user may see.
"use strict";

(() => {
  const WAIT_MS = 120;

  function element(tag, properties, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  class Palette {
    constructor(dialog) {
      this.dialog = dialog;
      this.form = dialog.querySelector("form");
      this.input = dialog.querySelector("[role=combobox]");
      this.list = dialog.querySelector("[role=listbox]");
      this.status = dialog.querySelector("[data-palette-status]");
      this.options = [];
      this.place = -1;
      this.shown = null; // the text whose results are in the list
      this.input.addEventListener("input", () => this.searchLater());
      this.input.addEventListener("keydown", (event) => this.press(event));
      this.form.addEventListener("submit", (event) => this.submit(event));
      dialog.addEventListener("click", (event) => {
        // A click beside the content, or on the button.
        if (event.target === dialog || event.target.closest("[data-palette-close]")) dialog.close();
      });
      dialog.addEventListener("close", () => {
        this.request?.abort();
        clearTimeout(this.timer);
      });
    }

    open() {
      if (this.dialog.open) return this.dialog.close();
      this.dialog.showModal();
      this.input.select();
      this.search();
    }

    searchLater() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.search(), WAIT_MS);
    }

    // Read the results for the text in the field, and show them unless the text has changed since.
    async search() {
      clearTimeout(this.timer);
      this.request?.abort();
      const request = (this.request = new AbortController());
      const text = this.input.value.trim();
      try {
        const address = `${this.form.getAttribute("action")}?${new URLSearchParams({ q: text })}`;
        const answer = await fetch(address, { headers: { Accept: "application/json" }, signal: request.signal });
        if (answer.redirected) return location.reload(); // the session has ended, so this leads to the sign-in page
        if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
        this.show(text, (await answer.json()).groups);
      } catch (error) {
        if (request.signal.aborted) return;
        console.warn("The search has failed:", error);
        this.show(null, []);
        this.status.textContent = this.dialog.dataset.textFailed;
      }
    }

    show(text, groups) {
      let number = 0;
      const shown = groups.map((group, place) => {
        const title = element("div", { class: "palette-title", id: `palette-group-${place}` }, group.title);
        const options = group.results.map((one) =>
          element("a", { class: "palette-option", role: "option", id: `palette-${number++}`, href: one.link, tabindex: "-1", "aria-selected": "false" },
            element("strong", {}, one.title), element("span", {}, one.detail)));
        return element("div", { role: "group", "aria-labelledby": title.id }, title, ...options);
      });
      this.list.replaceChildren(...shown);
      this.list.scrollTop = 0;
      this.options = [...this.list.querySelectorAll("[role=option]")];
      this.shown = text;
      this.input.setAttribute("aria-expanded", String(this.options.length > 0));
      const { textNone, textOne, textMany } = this.dialog.dataset;
      this.status.textContent = number === 0 ? textNone : number === 1 ? textOne : textMany.replace("{number}", number);
      this.choose(this.options.length ? 0 : -1);
    }

    choose(place) {
      this.options[this.place]?.setAttribute("aria-selected", "false");
      this.place = place;
      const chosen = this.options[place];
      chosen?.setAttribute("aria-selected", "true");
      chosen?.scrollIntoView({ block: "nearest" });
      if (chosen) this.input.setAttribute("aria-activedescendant", chosen.id);
      else this.input.removeAttribute("aria-activedescendant");
    }

    press(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && this.options.length) {
        event.preventDefault();
        this.choose((this.place + step + this.options.length) % this.options.length);
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.go(true);
      }
    }

    submit(event) {
      event.preventDefault();
      this.go(false);
    }

    // Open the chosen result. If its results have not come yet, wait for them.
    async go(apart) {
      const text = this.input.value.trim();
      if (this.shown !== text) await this.search();
      if (this.shown !== text || !this.dialog.open) return; // another search has begun, or the dialog was closed
      const link = this.options[this.place]?.href;
      if (!link) return;
      if (apart) window.open(link, "_blank", "noopener");
      else location.assign(link);
    }
  }

  function start() {
    const dialog = document.querySelector("[data-palette]");
    if (!dialog) return;
    const palette = new Palette(dialog), mac = /^(Mac|iP)/.test(navigator.platform);
    document.addEventListener("keydown", (event) => {
      // On a Mac, Ctrl-K in a text field deletes to the end of the line.
      const pressed = (mac ? event.metaKey : event.ctrlKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
      // In a terminal, Ctrl-K deletes to the end of the line.
      if (!pressed || event.defaultPrevented || event.target.closest?.("[data-shell-screen]")) return;
      event.preventDefault();
      palette.open();
    });
    document.addEventListener("click", (event) => {
      const opener = event.target.closest("[data-palette-open]");
      if (!opener || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      palette.open();
    });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
