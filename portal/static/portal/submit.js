// The page on which a job is submitted: checks the job while the user types, and keeps the form and the job file equal.
// Without this script, the buttons of the page do the same.
"use strict";

(() => {
  const form = document.querySelector("[data-submit]");
  if (!form) return;
  const WAIT_MS = 500;
  const views = { form: form.querySelector("[data-view=form]"), file: form.querySelector("[data-view=file]") };
  const text = form.elements.text, base = form.elements.base;
  let edits = 0, later = 0, running = false, view = "form";

  function showState(word) {
    const state = form.querySelector("[data-submit-state]");
    state.textContent = word ? state.dataset[word] : "";
  }

  // Return the fields of the form view, by name.
  function fieldsOf(root) {
    return root.querySelectorAll("[data-view=form] :is(input, select)[name]:not([type=hidden])");
  }

  // Show the other view of the job as the server answered it. The view in which the user types stays as it is.
  function showOther(fresh) {
    if (view === "form") {
      text.value = fresh.getElementById("spec-text").value;
    } else {
      for (const field of fieldsOf(fresh)) {
        const own = form.elements[field.name];
        if (own.tagName === "SELECT" && field.selectedIndex < 0) continue;
        own.value = field.value;
      }
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
    if (now && old.innerHTML !== now.innerHTML) old.replaceChildren(...document.adoptNode(now).childNodes);
  }

  async function check() {
    if (running) return;
    running = true;
    const seen = edits;
    showState("textChecking");
    try {
      const sent = new FormData(form);
      sent.set("do", "plan");
      const answer = await fetch(form.action, { method: "POST", body: sent, headers: { "X-Live": "check" } });
      if (!answer.headers.get("content-type")?.startsWith("text/html")) throw new Error(`HTTP status ${answer.status}`);
      const fresh = safe.page(await answer.text());
      if (!fresh.getElementById("submit-check")) throw new Error(`HTTP status ${answer.status}`);
      if (seen === edits) {
        showOther(fresh);
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
    if (seen !== edits) checkLater();
  }

  function checkLater() {
    clearTimeout(later);
    later = setTimeout(check, WAIT_MS);
  }

  for (const [name, root] of Object.entries(views)) {
    root.addEventListener("input", () => {
      // A change in the other view before the last one was checked stays: the server merges both.
      view = name;
      edits++;
      checkLater();
    });
  }
  check();
})();
