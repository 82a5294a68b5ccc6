// The behaviour of moments, timelines and plots. All of them also work without JavaScript.
"use strict";

(() => {
  // ---- moments: the slider sets the field and, when it is released, sends the form ----------------------------------
  // A page that shows a moment without loading again listens to the event "moment" and calls preventDefault().
  function followSlider(form) {
    const range = form.querySelector(".moment-range"), field = form.querySelector("[type=datetime-local]");
    const offset = Number(form.dataset.offsetS);
    const local = (seconds) => new Date((seconds + offset) * 1000).toISOString().slice(0, 19);

    range.addEventListener("input", () => {
      field.value = local(Number(range.value));
      range.setAttribute("aria-valuetext", field.value.replace("T", " "));
    });
    range.addEventListener("change", () => {
      const chosen = new CustomEvent("moment", { bubbles: true, cancelable: true, detail: { seconds: Number(range.value) } });
      if (form.dispatchEvent(chosen)) form.requestSubmit();
    });
    field.addEventListener("input", () => {
      const seconds = Date.parse(`${field.value}Z`) / 1000 - offset;
      if (Number.isFinite(seconds)) range.value = seconds;
    });
  }

  // ---- timelines: one stop of the Tab key per timeline, and arrow keys between its states and events ----------------
  const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };

  function followKeys(figure) {
    const links = [...figure.querySelectorAll(".timeline-track a")];

    function choose(place) {
      for (const [number, link] of links.entries()) link.setAttribute("tabindex", number === place ? "0" : "-1");
    }

    choose(0);
    figure.addEventListener("keydown", (event) => {
      const here = links.indexOf(event.target);
      if (here < 0) return;
      const place = event.key === "Home" ? 0 : event.key === "End" ? links.length - 1 : here + (STEPS[event.key] ?? NaN);
      if (!links[place]) return;
      event.preventDefault();
      choose(place);
      links[place].focus();
    });
    // A state or an event without a page of its own leads to its row in the table, which may be closed.
    figure.addEventListener("click", (event) => {
      const target = event.target.closest(".timeline-track a")?.getAttribute("href") ?? "";
      if (target.startsWith("#")) figure.querySelector("details").open = true;
    });
  }

  // ---- plots: the values at the pointer, which the table below the plot also has ------------------------------------
  function showValues(frame, x) {
    const figure = frame.closest("figure"), svg = frame.querySelector("svg.plot-box");
    const rows = [...figure.querySelectorAll("tr[data-x]")];
    if (!rows.length) return;
    const width = svg.viewBox.baseVal.width, box = svg.getBoundingClientRect();
    const at = ((x - box.left) / box.width) * width;
    const row = rows.filter((one) => Number(one.dataset.x) <= at).pop() ?? rows[0];
    const names = [...figure.querySelectorAll("thead th")].slice(1).map((one) => one.textContent);
    const values = [...row.querySelectorAll("td")].map((one, place) => `${names[place]} ${one.textContent}`);
    frame.querySelector("[data-plot-values]").textContent = `${row.querySelector("th").textContent}: ${values.join(" · ")}`;
    let cursor = svg.querySelector(".plot-cursor");
    if (!cursor) {
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
      cursor.setAttribute("class", "plot-cursor");
      cursor.setAttribute("y1", "0");
      cursor.setAttribute("y2", "100%");
      svg.append(cursor);
    }
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, row.dataset.x);
  }

  document.addEventListener("pointermove", (event) => {
    const box = event.target.closest?.("svg.plot-box"), frame = box?.closest("[data-plot]");
    if (frame) showValues(frame, event.clientX);
  });
  document.addEventListener("pointerout", (event) => {
    const box = event.target.closest?.("svg.plot-box");
    if (!box || box.contains(event.relatedTarget)) return;
    box.querySelector(".plot-cursor")?.remove();
    box.closest("[data-plot]").querySelector("[data-plot-values]").textContent = "";
  });

  // ---- pages that are read again: not while the user reads an open box, or has written in a field ------------------
  function readAgain(seconds) {
    const busy = "dialog[open], details[open]:not(nav details), :is(input, textarea, select):focus";
    setInterval(() => {
      if (document.visibilityState === "visible" && !document.querySelector(busy)) location.reload();
    }, 1000 * seconds);
  }

  for (const page of document.querySelectorAll("[data-reread-s]")) readAgain(Number(page.dataset.rereadS));
  for (const form of document.querySelectorAll("[data-moment]")) followSlider(form);
  for (const figure of document.querySelectorAll("[data-timeline]")) followKeys(figure);
  // A live page replaces a part.
  document.addEventListener("part-replaced", (event) => {
    for (const figure of event.detail.fresh.querySelectorAll("[data-timeline]")) followKeys(figure);
  });
})();
