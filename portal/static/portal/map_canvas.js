// Draws the machines of a cell on a canvas: the places of groups and machines, the part that is shown, and one frame.
// It reads no data and handles no input; `map.js` does.
"use strict";

const mapCanvas = (() => {
  const GAP = 0.14, TITLE = 1.9, PAD = 0.7, MOST_PX = 72, LABEL_PX = 46;
  const compare = new Intl.Collator("en", { numeric: true }).compare;

  // Return the boxes of groups in rows, so that all boxes together have about this ratio of width to height. A machine
  // is one unit wide. `keys`: the group of each machine. `names`: the name of each machine.
  function layout(keys, names, titles, ratio) {
    const members = new Map();
    keys.forEach((key, place) => members.has(key) ? members.get(key).push(place) : members.set(key, [place]));
    const groups = [...members].map(([key, machines]) => ({ key, title: titles[key], machines: machines.sort((a, b) => compare(names[a], names[b])) }));
    groups.sort((a, b) => compare(a.title, b.title));
    for (const group of groups) {
      const wide = groups.length === 1 ? ratio : 1.5;
      group.columns = Math.max(1, Math.ceil(Math.sqrt(group.machines.length * wide)));
      group.w = Math.max(group.columns, 3) + 2 * PAD;
      group.h = Math.ceil(group.machines.length / group.columns) + TITLE + PAD;
    }
    let width = Math.sqrt(groups.reduce((sum, group) => sum + (group.w + 1) * (group.h + 1), 0) * ratio), height = 0;
    for (let attempt = 0; attempt < 6; attempt++) {
      height = shelve(groups, width);
      const now = Math.max(...groups.map((group) => group.x + group.w), 1) / Math.max(height, 1);
      if (Math.abs(now / ratio - 1) < 0.08) break;
      width *= Math.sqrt(ratio / now);
    }
    const x = new Float32Array(keys.length), y = new Float32Array(keys.length), order = [];
    for (const group of groups) {
      group.machines.forEach((place, number) => {
        x[place] = group.x + PAD + number % group.columns;
        y[place] = group.y + TITLE + Math.floor(number / group.columns);
        order.push(place);
      });
    }
    return { groups, x, y, order, width: Math.max(...groups.map((group) => group.x + group.w), 1), height: Math.max(height, 1) };
  }

  function shelve(groups, width) {
    let x = 0, y = 0, tallest = 0;
    for (const group of groups) {
      if (x > 0 && x + group.w > width) {
        x = 0;
        y += tallest + 1;
        tallest = 0;
      }
      Object.assign(group, { x, y });
      x += group.w + 1;
      tallest = Math.max(tallest, group.h);
    }
    return y + tallest;
  }

  class View {
    constructor(canvas) {
      this.canvas = canvas;
      this.pen = canvas.getContext("2d", { alpha: false });
      this.scale = 1;
      this.left = this.top = 0;
      this.chosen = -1;
      this.resize();
    }

    // Take the size of the element. Return whether it changed.
    resize() {
      const ratio = Math.min(window.devicePixelRatio || 1, 2), box = this.canvas.getBoundingClientRect();
      const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
      if (this.canvas.width === width && this.canvas.height === height) return false;
      this.ratio = ratio;
      this.canvas.width = width;
      this.canvas.height = height;
      return true;
    }

    get fitScale() {
      return 0.98 * Math.min(this.canvas.width / this.plan.width, this.canvas.height / this.plan.height);
    }

    get isWhole() {
      return this.scale <= this.fitScale * 1.001;
    }

    // Show the whole map.
    fit() {
      this.scale = Math.min(this.fitScale, MOST_PX * this.ratio);
      this.left = (this.canvas.width - this.plan.width * this.scale) / 2;
      this.top = (this.canvas.height - this.plan.height * this.scale) / 2;
    }

    // Zoom by a factor, so that the point (x, y) of the canvas stays where it is.
    zoom(factor, x = this.canvas.width / 2, y = this.canvas.height / 2) {
      const least = Math.min(this.fitScale, MOST_PX * this.ratio), next = Math.min(Math.max(this.scale * factor, least), MOST_PX * this.ratio);
      this.left = x - ((x - this.left) * next) / this.scale;
      this.top = y - ((y - this.top) * next) / this.scale;
      this.scale = next;
      if (next === least) this.fit();
      else this.move(0, 0);
    }

    // Move the map by pixels of the canvas, without losing it from sight.
    move(x, y) {
      const place = (value, size, whole) => size <= whole ? (whole - size) / 2 : Math.min(whole * 0.1, Math.max(value, whole * 0.9 - size));
      this.left = place(this.left + x, this.plan.width * this.scale, this.canvas.width);
      this.top = place(this.top + y, this.plan.height * this.scale, this.canvas.height);
    }

    // Show a box of units in the middle, at most `most` pixels per machine.
    show(x, y, w, h, most = 40) {
      const wanted = Math.min(this.canvas.width / w, this.canvas.height / h, most * this.ratio);
      this.scale = Math.min(Math.max(wanted, Math.min(this.fitScale, MOST_PX * this.ratio)), MOST_PX * this.ratio);
      this.left = this.canvas.width / 2 - (x + w / 2) * this.scale;
      this.top = this.canvas.height / 2 - (y + h / 2) * this.scale;
      this.move(0, 0);
    }

    // Move the map so that a machine can be seen. A machine that is smaller than a finger is shown larger.
    reveal(place) {
      const x = this.plan.x[place], y = this.plan.y[place];
      if (this.scale < 10 * this.ratio) return this.show(x - 8, y - 6, 17, 13, 24);
      const [left, top] = [x * this.scale + this.left, y * this.scale + this.top], edge = this.scale;
      this.move(Math.max(0, edge - left) - Math.max(0, left + 2 * edge - this.canvas.width), Math.max(0, edge - top) - Math.max(0, top + 2 * edge - this.canvas.height));
    }

    // Return the machine at a point of the canvas, or -1.
    at(x, y) {
      const unitX = (x - this.left) / this.scale, unitY = (y - this.top) / this.scale;
      const group = this.plan.groups.find((one) => unitX >= one.x && unitX < one.x + one.w && unitY >= one.y && unitY < one.y + one.h);
      if (!group) return -1;
      const column = Math.floor(unitX - group.x - PAD), row = Math.floor(unitY - group.y - TITLE);
      if (column < 0 || column >= group.columns || row < 0) return -1;
      return group.machines[row * group.columns + column] ?? -1;
    }

    // Return the nearest machine in a direction, or the machine itself.
    neighbour(place, stepX, stepY) {
      const { x, y } = this.plan;
      let found = place, least = Infinity;
      for (let other = 0; other < x.length; other++) {
        const along = (x[other] - x[place]) * stepX + (y[other] - y[place]) * stepY;
        const aside = Math.abs((x[other] - x[place]) * stepY) + Math.abs((y[other] - y[place]) * stepX);
        const distance = along + 3 * aside;
        if (along > 0.5 && aside <= along * 2 && distance < least) [found, least] = [other, distance];
      }
      return found;
    }

    // Draw one frame. `colours`: of the tokens. `kinds`: [{fill, machines, mark, small}], `machines` by their places.
    paint(colours, kinds, labels) {
      const { pen, canvas, scale, left, top, plan } = this, side = Math.max(1, Math.round(scale * (1 - GAP)));
      pen.fillStyle = colours.ground;
      pen.fillRect(0, 0, canvas.width, canvas.height);
      this.paintGroups(colours);
      const fromX = -left / scale - 1, toX = (canvas.width - left) / scale, fromY = -top / scale - 1, toY = (canvas.height - top) / scale;
      const { x, y } = plan;
      for (const { fill, machines, mark, small } of kinds) {
        pen.fillStyle = fill;
        const size = small ? Math.max(1, Math.round(side * 0.6)) : side, shift = left + (side - size) / 2, drop = top + (side - size) / 2;
        for (let number = 0; number < machines.length; number++) {
          const place = machines[number], unitX = x[place], unitY = y[place];
          if (unitX < fromX || unitX > toX || unitY < fromY || unitY > toY) continue;
          pen.fillRect(Math.round(unitX * scale + shift), Math.round(unitY * scale + drop), size, size);
        }
        if (mark && side >= 5) this.paintMarks(mark, machines, colours, side);
      }
      if (scale >= LABEL_PX * this.ratio) this.paintLabels(colours, labels, fromX, toX, fromY, toY);
      if (this.chosen >= 0) this.paintChosen(colours, side);
    }

    paintGroups(colours) {
      const { pen, scale, left, top, canvas } = this, text = Math.min(TITLE * 0.62 * scale, 13 * this.ratio);
      pen.lineWidth = 1;
      pen.strokeStyle = colours.line;
      pen.font = `600 ${Math.round(text)}px Inter, sans-serif`;
      pen.textBaseline = "middle";
      for (const group of this.plan.groups) {
        const x = Math.round(group.x * scale + left), y = Math.round(group.y * scale + top);
        const w = Math.round(group.w * scale), h = Math.round(group.h * scale);
        if (x > canvas.width || y > canvas.height || x + w < 0 || y + h < 0) continue;
        pen.fillStyle = colours.paper;
        pen.fillRect(x, y, w, h);
        pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
        if (text < 7 * this.ratio) continue;
        pen.fillStyle = colours.text;
        pen.fillText(this.shortened(group.title, w - PAD * scale, text), x + PAD * scale * 0.6, y + (TITLE * scale) / 2);
      }
    }

    // Return a title, cut to about this width. To measure each title would cost more than to draw it.
    shortened(title, width, text) {
      const most = Math.floor(width / (0.6 * text));
      return title.length <= most ? title : `${title.slice(0, Math.max(0, most - 1))}…`;
    }

    // Mark states by shapes too, and not by colours alone: a bar, or a cross.
    paintMarks(mark, machines, colours, side) {
      const { pen, scale, left, top, plan, canvas } = this;
      pen.strokeStyle = colours.paper;
      pen.lineWidth = Math.max(1, side / 7);
      pen.beginPath();
      for (const place of machines) {
        const x = Math.round(plan.x[place] * scale + left), y = Math.round(plan.y[place] * scale + top);
        if (x > canvas.width || y > canvas.height || x + side < 0 || y + side < 0) continue;
        if (mark === "cross") {
          pen.moveTo(x, y);
          pen.lineTo(x + side, y + side);
          pen.moveTo(x + side, y);
          pen.lineTo(x, y + side);
        } else {
          pen.moveTo(x, y + side / 2);
          pen.lineTo(x + side, y + side / 2);
        }
      }
      pen.stroke();
    }

    paintLabels(colours, labels, fromX, toX, fromY, toY) {
      const { pen, scale, left, top, plan } = this, size = Math.round(10 * this.ratio);
      pen.font = `500 ${size}px Inter, sans-serif`;
      for (let place = 0; place < labels.length; place++) {
        const x = plan.x[place], y = plan.y[place];
        if (x < fromX || x > toX || y < fromY || y > toY) continue;
        const at = Math.round(x * scale + left), under = Math.round((y + 1 - GAP) * scale + top), wide = Math.round(scale * (1 - GAP));
        pen.fillStyle = colours.paper;
        pen.fillRect(at + 2, under - size - 6, wide - 4, size + 4);
        pen.fillStyle = colours.text;
        pen.fillText(labels[place], at + 5, under - size / 2 - 4, wide - 10);
      }
    }

    paintChosen(colours, side) {
      const { pen, scale, left, top, plan, chosen, ratio } = this;
      const x = Math.round(plan.x[chosen] * scale + left), y = Math.round(plan.y[chosen] * scale + top);
      pen.lineWidth = 5 * ratio;
      pen.strokeStyle = colours.paper;
      pen.strokeRect(x - 2 * ratio, y - 2 * ratio, side + 4 * ratio, side + 4 * ratio);
      pen.lineWidth = 2.5 * ratio;
      pen.strokeStyle = colours.ink;
      pen.strokeRect(x - 2 * ratio, y - 2 * ratio, side + 4 * ratio, side + 4 * ratio);
    }
  }

  return { layout, compare, View };
})();
