// Grids of states: one link per object, made from one letter per object. Arrow keys move between the cells, and the Tab
// key stops once per grid.
"use strict";

(() => {
  // Return one letter per object: "3r2p" becomes "rrrpp".
  function letters(text) {
    return text.replace(/(\d+)(\D)/g, (_match, length, letter) => letter.repeat(Number(length)));
  }

  // Draw the cells of a grid. `old`: the grid that this one replaces. Its cells and its scroll position are kept, so
  // that a cell does not move under the pointer.
  function draw(box, old) {
    if (box.dataset.drawn) return;
    box.dataset.drawn = "yes";
    const { before, after, noun, old: oldText, keys } = box.dataset;
    const states = new Map(keys.split(";").map((key) => {
      const [letter, tone, ...title] = key.split(" ");
      return [letter, { tone, title: title.join(" ") }];
    }));
    const known = new Map([...(old?.children ?? [])].map((cell) => [cell.getAttribute("href"), cell]));
    const cells = document.createDocumentFragment(), scrolled = old?.scrollTop ?? 0;
    let stop = null;
    [...letters(box.dataset.stateGrid)].forEach((letter, index) => {
      const state = states.get(letter.toLowerCase());
      if (!state) return;
      const href = `${before}${index}${after}`, isOld = letter !== letter.toLowerCase();
      const cell = known.get(href) ?? document.createElement("a");
      const name = `state-cell state-${state.tone} state-of-${letter.toLowerCase()}${isOld ? " state-old" : ""}`;
      const title = `${noun} ${index}: ${state.title}${isOld ? `, ${oldText}` : ""}`;
      if (cell.className !== name) cell.className = name;
      if (cell.title !== title) {
        cell.title = title;
        cell.setAttribute("aria-label", title);
      }
      if (!cell.hasAttribute("href")) {
        cell.href = href;
        cell.tabIndex = -1;
      }
      if (cell.tabIndex === 0) stop = cell;
      cells.append(cell);
    });
    if (!stop && cells.firstElementChild) cells.firstElementChild.tabIndex = 0;
    box.replaceChildren(cells);
    box.scrollTop = scrolled;
  }

  // Return the cell that an arrow key leads to, or undefined. Rows differ in no other way than their position.
  function target(box, cell, key) {
    const cells = box.children, place = Array.prototype.indexOf.call(cells, cell);
    const inRow = Math.max(1, [...cells].findIndex((one) => one.offsetTop !== cells[0].offsetTop));
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: inRow, ArrowUp: -inRow, Home: -place, End: cells.length - 1 - place };
    return key in steps ? cells[place + steps[key]] : undefined;
  }

  document.addEventListener("keydown", (event) => {
    const box = event.target.closest?.("[data-state-grid]");
    if (!box || event.target === box) return;
    const next = target(box, event.target, event.key);
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  function drawAll(root, replaced) {
    for (const box of root.querySelectorAll("[data-state-grid]")) draw(box, replaced?.querySelector("[data-state-grid]"));
  }

  // A live page replaces a part. The cell that had the focus keeps it.
  document.addEventListener("part-replaced", (event) => {
    const { fresh, old, focused } = event.detail;
    drawAll(fresh, old);
    if (focused?.matches(".state-cell") && fresh.contains(focused)) focused.focus({ preventScroll: true });
  });
  drawAll(document);
})();
