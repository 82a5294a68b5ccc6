// Grids of states: one link per object, made from one letter per object. Arrow keys move between the cells, and the Tab
// key stops once per grid.
"use strict";

(() => {
  const drawn = new WeakSet();

  // Return one letter per object: "3r2p" becomes "rrrpp".
  function letters(text) {
    return text.replace(/(\d+)(\D)/g, (_match, length, letter) => letter.repeat(Number(length)));
  }

  function draw(box) {
    if (drawn.has(box)) return;
    drawn.add(box);
    const { before, after, noun, old, keys } = box.dataset;
    const states = new Map(keys.split(";").map((key) => {
      const [letter, tone, ...title] = key.split(" ");
      return [letter, { tone, title: title.join(" ") }];
    }));
    const cells = document.createDocumentFragment();
    [...letters(box.dataset.stateGrid)].forEach((letter, index) => {
      const state = states.get(letter.toLowerCase());
      if (!state) return;
      const cell = document.createElement("a"), isOld = letter !== letter.toLowerCase();
      cell.className = `state-cell state-${state.tone}${isOld ? " state-old" : ""}`;
      cell.href = `${before}${index}${after}`;
      cell.title = `${noun} ${index}: ${state.title}${isOld ? `, ${old}` : ""}`;
      cell.setAttribute("aria-label", cell.title);
      cell.tabIndex = cells.childElementCount ? -1 : 0;
      cells.append(cell);
    });
    box.replaceChildren(cells);
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

  function drawAll(root) {
    if (root.matches?.("[data-state-grid]")) draw(root);
    for (const box of root.querySelectorAll("[data-state-grid]")) draw(box);
  }

  // A live page replaces a part. The cell that had the focus keeps it.
  document.addEventListener("part-replaced", (event) => {
    const { fresh, focused } = event.detail;
    drawAll(fresh);
    const link = focused?.matches(".state-cell") ? focused.getAttribute("href") : null;
    const cell = link && fresh.querySelector(`.state-cell[href="${CSS.escape(link)}"]`);
    if (!cell) return;
    for (const one of cell.parentElement.querySelectorAll("[tabindex='0']")) one.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus({ preventScroll: true });
  });
  drawAll(document);
})();
