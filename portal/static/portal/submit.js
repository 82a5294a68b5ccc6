// The page on which a job is submitted: checks the job while the user types, and keeps the form and the job file equal.
// Without this script, the buttons of the page do the same.
"use strict";

(() => {
  const form = document.querySelector("[data-submit]");
  if (!form) return;
  const WAIT_MS = 500;
  const text = form.elements.text, base = form.elements.base;
  let edits = 0, later = 0, running = false, waitMs = WAIT_MS;

  function showState(word) {
    const state = form.querySelector("[data-submit-state]");
    state.textContent = word ? state.dataset[word] : "";
  }

  // Show the job as the server answered it in both views, so that they are equal to `base`. The user has typed nothing
  // since the request. The focused field keeps its text.
  function showJob(fresh) {
    for (const field of fresh.querySelectorAll("[data-view=form] :is(input, select, textarea)[name]")) {
      const own = form.elements[field.name];
      if (own.tagName === "SELECT" && ![...own.options].some((one) => one.value === field.value)) {
        own.append(document.importNode(field.selectedOptions[0], true));
      }
      if (own !== document.activeElement || own.tagName === "SELECT") own.value = field.value;
    }
    const now = fresh.getElementById("spec-text").value;
    if (text.value !== now) {
      const { selectionStart, selectionEnd } = text;
      text.value = now;
      if (text === document.activeElement) text.setSelectionRange(selectionStart, selectionEnd);
    }
    base.value = fresh.getElementById("submit-base").value;
  }

  function showErrors(fresh) {
    for (const old of form.querySelectorAll(".error[id^=error-]")) {
      const words = fresh.getElementById(old.id)?.textContent ?? "";
      if (old.textContent !== words) old.textContent = words;
      const field = form.querySelector(`[aria-describedby~="${old.id}"]`);
      if (words) field?.setAttribute("aria-invalid", "true");
      else field?.removeAttribute("aria-invalid");
    }
    text.toggleAttribute("aria-invalid", false);
    if (fresh.getElementById("spec-text").hasAttribute("aria-invalid")) text.setAttribute("aria-invalid", "true");
  }

  // Replace a part of the page if it differs, so that a button does not vanish under the pointer.
  function showPart(fresh, id) {
    const old = document.getElementById(id), now = fresh.getElementById(id);
    if (!now || old.innerHTML === now.innerHTML) return;
    const focused = old.contains(document.activeElement) ? document.activeElement.value : null;
    old.replaceChildren(...document.adoptNode(now).childNodes);
    if (focused) old.querySelector(`button[value="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  async function check() {
    if (running) return;
    running = true;
    const seen = edits, began = performance.now();
    showState("textChecking");
    try {
      const sent = new FormData(form);
      sent.set("do", "plan");
      const answer = await fetch(form.action, { method: "POST", body: sent, headers: { "X-Live": "check" } });
      if (!answer.headers.get("content-type")?.startsWith("text/html")) throw new Error(`HTTP status ${answer.status}`);
      const fresh = safe.page(await answer.text());
      if (!fresh.getElementById("submit-check")) throw new Error(`HTTP status ${answer.status}`);
      if (seen === edits) {
        showJob(fresh);
        showErrors(fresh);
        showPart(fresh, "submit-check");
        showPart(fresh, "submit-actions");
      }
      showState("");
    } catch (error) {
      console.warn("The job could not be checked:", error);
      showState("textFailed");
    }
    running = false;
    waitMs = Math.max(WAIT_MS, 2 * (performance.now() - began)); // a busy portal gets fewer requests
    if (seen !== edits) checkLater();
  }

  function checkLater() {
    clearTimeout(later);
    later = setTimeout(check, waitMs);
  }

  form.addEventListener("input", () => {
    edits++;
    checkLater();
  });
  check();
})();
