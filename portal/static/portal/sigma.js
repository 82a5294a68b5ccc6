// The behaviour of Sigma's pages: live regions, relative times, logs and copy buttons. Pages also work without JavaScript.
"use strict";

(() => {
  const TOO_MANY = 4429; // the close code for too many watchers: the browser tries again later
  const RETRY_MS = 500, RETRY_MOST_MS = 15000, RESYNC_EVERY_MS = 2000, ANNOUNCE_EVERY_MS = 5000, LOG_EVERY_MS = 1500;

  // ---- times: "3 min. ago", and the exact time on hover -------------------------------------------------------------
  // Requests do not contain the time zone of the browser, so this cookie does. Pages show times in it, unless the user
  // has chosen another one.
  const ownZone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (ownZone) {
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `borg-time-zone=${ownZone}; path=/; max-age=31536000; samesite=lax${secure}`;
  }
  // Such as 2026-11-29 18:41:07 CET, in the time zone of the page. Live parts of a page come without one.
  const exact = exactIn(document.documentElement.dataset.timeZone || "UTC");

  function exactIn(timeZone) {
    const two = "2-digit";
    try {
      return new Intl.DateTimeFormat("sv-SE", {
        timeZone, year: "numeric", month: two, day: two, hour: two, minute: two, second: two, timeZoneName: "short",
      });
    } catch {
      return exactIn("UTC"); // the server may have a time zone that this browser does not have
    }
  }
  const relative = new Intl.RelativeTimeFormat(document.documentElement.lang || "en", { numeric: "always", style: "short" });
  // [unit, its seconds, smallest count]: hundreds of days are shown in days, thousands of days in years.
  const UNITS = [["year", 31556952, 2], ["day", 86400, 1], ["hour", 3600, 1], ["minute", 60, 1], ["second", 1, 0]];

  function showTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const seconds = (new Date(time.dateTime) - Date.now()) / 1000;
      const [unit, size] = UNITS.find(([, size, least]) => Math.abs(seconds) >= size * least);
      time.textContent = relative.format(Math.trunc(seconds / size) || -0, unit);
      time.title = exact.format(new Date(time.dateTime));
    }
  }

  // Replace an element. A link, a copy button or a field of an open form in it keeps the focus.
  function swap(old, fresh) {
    keepForms(old, fresh);
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const link = focused?.getAttribute("href"), copies = focused?.dataset.copy;
    const same = (root) => [...root.querySelectorAll(`a[href="${CSS.escape(link)}"]`)];
    const place = link ? same(old).indexOf(focused) : 0, pressed = focused?.matches("button[name]") ? focused : null;
    const field = focused?.name, box = focused?.closest("details[id]")?.id;
    showTimes(fresh);
    old.replaceWith(fresh);
    offerCopies(fresh);
    document.dispatchEvent(new CustomEvent("part-replaced", { detail: { fresh, old, focused } }));
    if (link) (same(fresh)[place] ?? same(fresh)[0])?.focus({ preventScroll: true });
    if (pressed) fresh.querySelector(`button[name="${CSS.escape(pressed.name)}"][value="${CSS.escape(pressed.value)}"]`)?.focus({ preventScroll: true });
    if (field && box) fresh.querySelector(`#${CSS.escape(box)} [name="${CSS.escape(field)}"]`)?.focus({ preventScroll: true });
    if (copies) fresh.querySelector(`[data-copy="${CSS.escape(copies)}"]`)?.focus({ preventScroll: true });
  }

  // Keep open boxes open, with the text of their fields.
  function keepForms(old, fresh) {
    for (const box of old.querySelectorAll("details[open][id]")) {
      const same = fresh.querySelector(`#${CSS.escape(box.id)}`);
      if (!same) continue;
      same.open = true;
      for (const field of box.querySelectorAll("input:not([type=hidden])[name]")) {
        const again = same.querySelector(`[name="${CSS.escape(field.name)}"]`);
        if (again) again.value = field.value;
      }
    }
  }

  // Read this page again from the server. Return it as a cleaned document.
  async function readPage() {
    const answer = await fetch(location.href, { headers: { "X-Live": "resync" } });
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    return safe.page(await answer.text());
  }

  // ---- live regions ----------------------------------------------------------------------------------
  // The server sends {seq, revision, rows, parts, resync}. Rows and parts replace the elements with their ids. The
  // whole region is read again after a gap, after a reconnection, and when `resync` is set.
  class Region {
    constructor(element) {
      this.path = element.dataset.live;
      this.name = element.dataset.liveRegion;
      this.revision = Number(element.dataset.revision);
      this.seq = null;
      this.held = null; // messages that came while the region is being read again
      this.retry = RETRY_MS;
      this.lastResync = 0;
      this.lastAnnounced = 0;
      this.status = document.querySelector("[data-live-status]");
      this.connect();
      this.scheduleReread();
    }

    get element() {
      return document.querySelector(`[data-live-region="${this.name}"]`);
    }

    connect() {
      const url = new URL(this.path, location.href);
      url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
      url.searchParams.set("revision", this.revision);
      const socket = new WebSocket(url);
      socket.addEventListener("message", (event) => this.take(JSON.parse(event.data)));
      socket.addEventListener("close", (event) => this.closed(event));
    }

    closed(event) {
      this.seq = null;
      if (event.code >= 4400 && event.code < 4500 && event.code !== TOO_MANY) {
        this.showStatus("off", `${this.status.dataset.textClosed}: ${event.reason}`, "ended");
        return;
      }
      this.showStatus("off", this.status.dataset.textWaiting);
      setTimeout(() => this.connect(), this.retry * (0.5 + Math.random()));
      this.retry = Math.min(this.retry * 2, RETRY_MOST_MS);
    }

    take(message) {
      if (message.hello) {
        this.seq = message.seq;
        this.retry = RETRY_MS;
        this.showStatus("on", this.status.dataset.textLive);
        if (message.resync) this.resync();
        return;
      }
      const gap = this.seq === null || message.seq !== this.seq + 1;
      this.seq = message.seq;
      if (this.held) this.held.push(message);
      else this.apply(message);
      if (gap || message.resync) this.resync();
    }

    apply(message) {
      for (const [id, html] of Object.entries(message.rows || {})) this.replace(id, html, true);
      for (const [id, html] of Object.entries(message.parts || {})) this.replace(id, html, false);
      if (message.machines && !message.resync) this.element.dispatchEvent(new CustomEvent("live:machines", { detail: message }));
      this.revision = Math.max(this.revision, message.revision);
      this.announce();
      this.scheduleReread();
    }

    replace(id, html, mark) {
      const old = document.getElementById(id);
      if (!old) return;
      const fresh = safe.element(html);
      if (!fresh) return;
      if (mark) fresh.classList.add("changed");
      swap(old, fresh);
    }

    resyncLater(wait = RESYNC_EVERY_MS) {
      clearTimeout(this.later);
      this.later = setTimeout(() => this.resync(), wait);
    }

    async resync() {
      if (this.held) return this.resyncLater();
      const wait = this.lastResync + RESYNC_EVERY_MS * (1 + Math.random() / 2) - Date.now();
      if (wait > 0) return this.resyncLater(wait);
      this.lastResync = Date.now();
      this.held = [];
      try {
        if (this.element.hasAttribute("data-live-reads")) {
          // The script of this region reads its data, and returns their revision.
          this.revision = await this.element.readAgain();
        } else {
          const fresh = (await readPage()).querySelector(`[data-live-region="${this.name}"]`);
          if (fresh) {
            swap(this.element, document.adoptNode(fresh));
            this.revision = Number(this.element.dataset.revision);
            this.announce();
            this.scheduleReread();
          }
        }
      } catch (error) {
        console.warn("The live page could not be read again:", error);
        this.resyncLater();
      }
      const held = this.held;
      this.held = null;
      for (const message of held) if (message.revision > this.revision) this.apply(message);
    }

    showStatus(how, text, detail = how) {
      this.status.classList.toggle("on", how === "on");
      this.status.classList.toggle("off", how === "off");
      this.status.querySelector("[data-live-text]").textContent = text;
      this.element.dispatchEvent(new CustomEvent("live:status", { detail }));
    }

    // Announce a summary to screen readers, at most every ANNOUNCE_EVERY_MS, instead of every row.
    announce() {
      clearTimeout(this.announceLater);
      const wait = this.lastAnnounced + ANNOUNCE_EVERY_MS - Date.now();
      if (wait > 0) {
        this.announceLater = setTimeout(() => this.announce(), wait);
        return;
      }
      const part = this.element.querySelector("[data-announce]");
      if (!part) return;
      this.lastAnnounced = Date.now();
      document.querySelector("[data-live-announcement]").textContent = part.dataset.announce;
    }

    // Read the region again after the seconds that the page gives, for changes that come without an event.
    scheduleReread() {
      clearTimeout(this.again);
      const part = this.element.querySelector("[data-again-s]");
      if (part) this.again = setTimeout(() => this.resync(), part.dataset.againS * 1000);
    }
  }

  // ---- parts that a visible page reads again every few seconds ---------------------------
  const TOKEN = /name="csrfmiddlewaretoken" value="[^"]*"/g;

  // Return whether two parts of a page show different things. Each page has another token against forgery in its forms.
  function differs(old, fresh) {
    showTimes(fresh);
    return old.innerHTML.replaceAll(TOKEN, "") !== fresh.innerHTML.replaceAll(TOKEN, "");
  }

  function isSelected(part) {
    const selection = getSelection();
    return !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  function refreshPart(id, seconds) {
    setInterval(async () => {
      const old = document.getElementById(id);
      if (!old || document.hidden) return;
      try {
        const fresh = (await readPage()).getElementById(id);
        if (fresh && !isSelected(old) && differs(old, fresh)) swap(old, document.adoptNode(fresh));
      } catch (error) {
        console.warn("A part of the page could not be read again:", error);
      }
    }, seconds * 1000);
  }

  // ---- logs ------------------------------------------------------------------------------------------
  // Return whether a later attempt may succeed: server errors, rate limits, and tasks that have not started yet.
  function isTemporary(status, code) {
    return status >= 500 || status === 408 || status === 429 || code === "no-log" || code === "log-unavailable";
  }

  const LOG_SHOWN = 262144, LOG_CHUNK = 262144, LOG_DOWNLOADED = 64 * 1048576;

  function followLog(box) {
    const part = (name) => box.querySelector(`[data-logs-${name}]`);
    const text = part("text"), stream = part("stream"), follow = part("follow"), search = part("search");
    const wrap = part("wrap"), note = part("note"), download = part("download");
    let offset = -65536, generation = 0, shown = "", searching = false;

    async function ask(parameters) {
      const url = `${box.dataset.logs}?${new URLSearchParams({ stream: stream.value, ...parameters })}`;
      const answer = await fetch(url, { headers: { Accept: "application/json" } });
      return [answer, await answer.json()];
    }

    // Return what an answer adds to the shown text. The lines that a search found come with their times.
    function added(chunk) {
      if (!search.value) return chunk.text;
      return chunk.lines.map((line) => {
        const at = line.at ? new Date(line.at).toLocaleString([], { dateStyle: "short", timeStyle: "medium", timeZone: exact.resolvedOptions().timeZone }) : "";
        return `${at ? `${at}  ` : ""}${line.text.replace(/\n$/, "")}\n`;
      }).join("");
    }

    async function read(mine) {
      if (mine !== generation) return;
      if (follow.checked || searching || offset < 0) {
        try {
          const [answer, chunk] = await ask(search.value ? { offset, search: search.value, ignore_case: "true" } : { offset });
          if (mine !== generation) return;
          if (!answer.ok && !isTemporary(answer.status, chunk.code)) {
            // The error is permanent: show it and stop.
            text.textContent = chunk.detail || `${box.dataset.textFailed} ${answer.status}`;
            return;
          }
          if (!answer.ok) throw new Error(chunk.detail || String(answer.status));
          const fresh = added(chunk);
          searching = Boolean(search.value) && !chunk.complete;
          offset = chunk.end;
          shown = (shown + fresh).slice(-LOG_SHOWN);
          const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
          if (fresh || !shown) text.textContent = shown || (searching ? box.dataset.textSearching : search.value ? box.dataset.textNone : box.dataset.textEmpty);
          if (atEnd) text.scrollTop = text.scrollHeight;
        } catch (error) {
          if (!shown) text.textContent = `${box.dataset.textFailed} ${error.message}`;
        }
      }
      setTimeout(() => read(mine), document.hidden ? LOG_EVERY_MS * 5 : searching ? 50 : LOG_EVERY_MS);
    }

    function restart() {
      offset = search.value ? 0 : -65536;
      shown = "";
      searching = Boolean(search.value);
      read(++generation);
    }

    // Read the log in parts, and offer it as a file. The file has the newest LOG_DOWNLOADED bytes, all from one run.
    async function save() {
      const of = stream.value, fixed = { stream: of, incarnation: box.dataset.incarnation };
      const parts = [];
      let why = "";
      download.disabled = true;
      note.textContent = "";
      try {
        for (let from = -LOG_DOWNLOADED, size = 0; size < LOG_DOWNLOADED; ) {
          const [answer, chunk] = await ask({ ...fixed, offset: from, limit: LOG_CHUNK });
          if (!answer.ok) throw new Error(chunk.detail || String(answer.status));
          if (from < 0 && chunk.offset > 0) why = box.dataset.textCut;
          if (chunk.end <= chunk.offset) break;
          parts.push(chunk.text);
          size += chunk.end - chunk.offset;
          from = chunk.end;
        }
      } catch (error) {
        why = `${box.dataset.textFailed} ${error.message}`;
      }
      note.textContent = why;
      if (parts.length) {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
        link.download = `${box.dataset.file}-${of}.log`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60000);
      }
      download.disabled = false;
    }

    let later = 0;
    stream.addEventListener("change", restart);
    search.addEventListener("input", () => {
      clearTimeout(later);
      later = setTimeout(restart, 300);
    });
    wrap.addEventListener("change", () => text.classList.toggle("unwrapped", !wrap.checked));
    download.addEventListener("click", save);
    read(generation);
  }

  // ---- copy ------------------------------------------------------------------------------------------
  function offerCopy(button) {
    if (!navigator.clipboard) return;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = button.dataset.text;
      button.removeAttribute("aria-label");
    });
  }

  function offerCopies(root) {
    for (const button of root.querySelectorAll("[data-copy]")) offerCopy(button);
  }

  // ---- forms that are checked while the user fills them in -----------------------------------------------------
  // Error texts appear beside their fields. Mark those fields as invalid.
  function markErrors(root) {
    for (const error of root.querySelectorAll("[id^=error-]")) {
      const field = document.querySelector(`[aria-describedby~="${error.id}"]`);
      if (!field) continue;
      if (error.textContent.trim()) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  }
  document.addEventListener("htmx:afterSettle", () => {
    showTimes(document);
    markErrors(document);
  });

  showTimes(document);
  markErrors(document);
  setInterval(() => showTimes(document), 10000);
  for (const region of document.querySelectorAll("[data-live]")) new Region(region);
  for (const box of document.querySelectorAll("[data-logs]")) followLog(box);
  for (const part of document.querySelectorAll("[data-refresh-s]")) refreshPart(part.id, Number(part.dataset.refreshS));
  offerCopies(document);
  for (const button of document.querySelectorAll("[data-print]")) button.addEventListener("click", () => window.print());
})();
