// The map of a cell: reads the machines, colours them, follows changes, and answers the mouse, touches and keys.
// `map_canvas.js` draws. The live region of `sigma.js` receives the changes.
"use strict";

(() => {
  const POLL_MS = 5000, MEASURED_MS = 10000, TABLE_MS = 1000, MOST_QUEUED = 100, STEP = 1.25;
  const box = document.querySelector("[data-map]");
  if (!box) return;
  const find = (name) => box.querySelector(`[data-map-${name}]`);
  const canvas = find("canvas"), tip = find("tip"), spoken = find("spoken"), texts = JSON.parse(document.getElementById("map-texts").textContent);
  const chosenGroup = find("group"), chosenColour = find("colour"), chosenResource = find("resource");
  const number = new Intl.NumberFormat(document.documentElement.lang || "en", { maximumFractionDigits: 1 });
  const clock = clockIn(document.documentElement.dataset.timeZone);
  const view = new mapCanvas.View(canvas);
  let data = null, machines = null, places = new Map(), kinds = [], queued = [], colours = {}, frame = 0, tableAt = 0, tableLater = 0, live = false, ended = false, reading = 0, underWay = 0, againLater = 0;

  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_whole, name) => values[name]);
  const cores = (milli) => fill(texts.cores, { n: number.format(milli / 1000) });
  const gib = (mib) => `${number.format(mib / 1024)} GiB`;
  const amount = (resource, value) => (resource === "cpu" ? cores(value) : gib(value));
  const column = (what, resource) => machines[resource === "cpu" ? `${what}_cpu_milli` : `${what}_ram_mib`];
  const capacity = (place, resource) => data.texts.capacities[machines.capacity[place]][resource === "cpu" ? 0 : 1];
  const bandOf = (priority) => data.bands.findIndex((band) => priority >= band.low && priority <= band.high);

  // ---- colours ------------------------------------------------------------------------------------------------
  function readColours() {
    const style = getComputedStyle(document.documentElement), token = (name) => style.getPropertyValue(name).trim();
    colours = { ground: token("--ground"), paper: token("--paper"), line: token("--line"), text: token("--text"), ink: token("--ink") };
    for (const name of ["map-1", "map-2", "map-3", "map-4", "map-5", "map-6", "map-none", "good-bar", "wait-bar", "bad-bar", "accent", "plot-1", "plot-2", "plot-3", "plot-4", "plot-5", "plot-6"]) colours[name] = token(`--${name}`);
  }

  // Return the kinds of machines in the legend, and which of them each machine is: {kinds: [{colour, title, mark}], of}.
  function colouring() {
    const resource = chosenResource.value, unit = resource === "cpu" ? 1000 : 1024;
    const steps = (limits, title) => [1, 2, 3, 4, 5, 6].map((step) => ({ colour: `map-${step}`, title: title(limits[step - 2], limits[step - 1], step) }));
    const unknown = { colour: "map-none", title: data.own && chosenColour.value !== "allocation" ? texts.unknownOwn : texts.unknown }, down = { colour: "bad-bar", title: texts.states.down, mark: "cross" };
    const shares = [20, 40, 60, 80, 100];
    // Tenants see reservations and usage of their own tasks only, so a machine without such a task has no amount.
    const ofShare = (values, own = data.own) => ({
      kinds: [...steps(shares, (low, high) => low === undefined ? fill(texts.upTo, { high: `${high} %` }) : high === undefined ? fill(texts.above, { low: `${low} %` }) : fill(texts.between, { low: `${low} %`, high: `${high} %` })), unknown, down],
      of: (place) => {
        if (machines.state[place] === "down") return 7;
        const size = capacity(place, resource), value = values[place];
        if (!size || value === null || (own && !machines.own_tasks[place])) return 6;
        const step = shares.findIndex((limit) => 100 * value <= limit * size);
        return step < 0 ? 5 : step;
      },
    });
    switch (chosenColour.value) {
      case "free": {
        // Powers of two up to half of the largest machine.
        const most = Math.max(1, ...data.texts.capacities.map((one) => one[resource === "cpu" ? 0 : 1]));
        const used = column("limit", resource), top = unit * 2 ** (Math.floor(Math.log2(most / unit)) - 1), limits = [top / 16, top / 8, top / 4, top / 2, top];
        return {
          kinds: [...steps(limits, (low, high) => low === undefined ? fill(texts.below, { high: amount(resource, high) }) : high === undefined ? fill(texts.atLeast, { low: amount(resource, low) }) : fill(texts.between, { low: amount(resource, low), high: amount(resource, high) })), unknown, down],
          of: (place) => {
            if (machines.state[place] === "down") return 7;
            const free = Math.max(0, capacity(place, resource) - used[place]), step = limits.findIndex((limit) => free < limit);
            return step < 0 ? 5 : step;
          },
        };
      }
      case "reservation":
        return ofShare(column("reservation", resource));
      case "usage":
        return ofShare(column("usage", resource));
      case "state": {
        const names = ["up", "draining", "down"];
        return {
          kinds: [{ colour: "good-bar", title: texts.states.up }, { colour: "wait-bar", title: texts.states.draining, mark: "bar" }, down],
          of: (place) => Math.max(0, names.indexOf(machines.state[place])),
        };
      }
      case "band":
        return {
          kinds: [...data.bands.map((band, step) => ({ colour: `plot-${Math.min(step, 4) + 1}`, title: band.name })), { colour: "plot-6", title: texts.otherBand }, { colour: "map-none", title: data.own ? texts.noOwnTasks : texts.noTasks, small: true }],
          of: (place) => {
            const band = bandOf(machines.priority[place]), bands = data.bands.length;
            return machines.priority[place] < 0 ? bands + 1 : band < 0 ? bands : band;
          },
        };
      case "job":
        return {
          kinds: [{ colour: "accent", title: fill(texts.runsJob, { job: data.job }) }, { colour: "map-none", title: texts.otherMachines, small: true }],
          of: (place) => (machines.job_tasks?.[place] ? 0 : 1),
        };
      default:
        return ofShare(column("limit", resource), false);
    }
  }

  function colourAll() {
    const { kinds: wanted, of } = colouring(), members = wanted.map(() => []);
    for (let place = 0; place < machines.id.length; place++) members[of(place)].push(place);
    kinds = wanted.map((kind, step) => ({ ...kind, fill: colours[kind.colour], machines: members[step] }));
    const keys = kinds.filter((kind) => kind.machines.length || kind.colour.startsWith("map-") && kind.colour !== "map-none" || kind.colour === "good-bar");
    find("legend").replaceChildren(...keys.map((kind) => {
      const item = document.createElement("li"), swatch = document.createElement("span"), count = document.createElement("span");
      swatch.className = `map-swatch map-is-${kind.colour}${kind.mark ? ` map-mark-${kind.mark}` : ""}`;
      swatch.setAttribute("aria-hidden", "true");
      count.className = "soft";
      count.textContent = number.format(kind.machines.length);
      item.append(swatch, `${kind.title} `, count);
      return item;
    }));
    draw();
  }

  function draw() {
    if (frame || !data) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      view.paint(colours, kinds, machines.name);
    });
  }

  // ---- data ---------------------------------------------------------------------------------------------------
  async function read(part = "") {
    const address = new URL(box.dataset.mapData, location.href);
    if (part) address.searchParams.set("part", part);
    const answer = await fetch(address, { headers: { Accept: "application/json" } });
    if (answer.redirected || [401, 403, 404].includes(answer.status)) {
      ended = true;
      find("status").textContent = texts.ended;
      throw new Error(`HTTP status ${answer.status}`);
    }
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    return answer.json();
  }

  // Read the whole map. Return its revision.
  async function readAll() {
    const mine = ++reading;
    if (!underWay) queued = [];
    underWay++;
    let fresh;
    try {
      fresh = await read();
    } finally {
      underWay--;
    }
    if (mine !== reading && data) return data.revision; // a later reading follows
    const first = !data, kept = data && view.chosen >= 0 ? machines.name[view.chosen] : null, before = data && machines.id.join();
    data = fresh;
    machines = data.machines;
    places = new Map(machines.id.map((id, place) => [id, place]));
    if (before !== machines.id.join() || !view.plan) arrange(!view.plan);
    else regroup();
    if (kept) view.chosen = machines.name.indexOf(kept);
    if (view.chosen < 0) hideTip();
    for (const message of queued.slice()) take(message);
    colourAll();
    showFresh();
    showTable();
    find("empty").hidden = machines.id.length > 0;
    if (first) {
      box.removeAttribute("aria-busy");
      find("status").textContent = "";
      goToFirst();
    }
    return data.revision;
  }

  // Go to the machine in the address of the page.
  function goToFirst() {
    const name = box.dataset.mapFirst;
    if (!name) return;
    const place = machines.name.indexOf(name);
    if (place >= 0) goTo(place);
    else find("status").textContent = fill(texts.noMatch, { text: name });
  }

  // Read the whole map again soon, because machines are new or have other facts.
  function readAgainSoon() {
    againLater ||= setTimeout(() => {
      againLater = 0;
      readAll().catch((error) => console.warn("The map could not be read again:", error));
    }, 1000 + 1000 * Math.random());
  }

  const same = ([id, name, rack, domain, platform, cpu, ram]) => {
    const place = places.get(id);
    if (place === undefined) return false;
    const { racks, power_domains: domains, platforms, capacities } = data.texts, size = capacities[machines.capacity[place]];
    return machines.name[place] === name && racks[machines.rack[place]] === rack && domains[machines.power_domain[place]] === domain &&
      platforms[machines.platform[place]] === platform && size[0] === cpu && size[1] === ram;
  };

  // Apply a message of the live region: the state and the sums of the machines that have changed.
  function take(message) {
    // Messages that come while the map is being read are applied to what is read, too.
    if (underWay && queued.length < MOST_QUEUED && queued.at(-1) !== message) queued.push(message);
    if (!data) return;
    if (message.revision <= data.revision) return;
    if (message.facts && !message.facts.every(same)) readAgainSoon();
    data.revision = message.revision;
    const { id: ids = [], ...columns } = message.machines;
    ids.forEach((id, row) => {
      const place = places.get(id);
      if (place === undefined) return;
      for (const name in columns) if (machines[name]) machines[name][place] = columns[name][row];
    });
    colourAll();
    showFresh();
    showTable();
    if (view.chosen >= 0 && !tip.hidden && ids.includes(machines.id[view.chosen])) showTip(view.chosen);
  }

  // Usage and reservations have no messages. They are read again while they are shown.
  async function readMeasured() {
    if (document.hidden || !data || ended) return;
    try {
      const { machines: found } = await read("measured"), known = new Map(found.id.map((id, row) => [id, row]));
      for (const name in found) {
        if (name !== "id") machines[name] = machines.id.map((id, place) => (known.has(id) ? found[name][known.get(id)] : machines[name][place]));
      }
      if (isMeasured()) colourAll();
      if (!tip.hidden) showTip(view.chosen);
    } catch (error) {
      console.warn("The usage of the machines could not be read:", error);
    }
  }

  function clockIn(timeZone) {
    try {
      return new Intl.DateTimeFormat(document.documentElement.lang || "en", { timeStyle: "medium", timeZone });
    } catch {
      return clockIn(undefined); // this browser does not have the zone
    }
  }

  const isMeasured = () => ["usage", "reservation"].includes(chosenColour.value);

  function showFresh() {
    find("time").textContent = clock.format(new Date());
    find("revision").textContent = data.revision;
  }

  // ---- groups -------------------------------------------------------------------------------------------------
  function groupsOf() {
    const known = { rack: data.texts.racks, power_domain: data.texts.power_domains, platform: data.texts.platforms };
    const titles = known[chosenGroup.value];
    if (titles) return { keys: machines[chosenGroup.value], titles: titles.map((title) => title || texts.noGroup) };
    return { keys: machines.id.map(() => 0), titles: [data.site || texts.noGroup] };
  }

  function arrange(fit) {
    const { keys, titles } = groupsOf();
    view.resize();
    view.plan = mapCanvas.layout(keys, machines.name, titles, canvas.width / canvas.height);
    if (fit || view.scale < view.fitScale) view.fit();
    view.move(0, 0);
    touches();
    buildTable();
  }

  // Take over changed names and facts of the same machines, if the groups stay as they are.
  function regroup() {
    const { keys, titles } = groupsOf();
    const kept = view.plan.groups.every((group) => group.machines.every((place) => titles[keys[place]] === group.title));
    if (!kept) arrange(false);
  }

  const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

  function buildTable() {
    find("groups").replaceChildren(...view.plan.groups.map((group) => {
      const row = document.createElement("tr"), head = document.createElement("th"), button = document.createElement("button");
      head.scope = "row";
      button.type = "button";
      button.textContent = group.title;
      button.addEventListener("click", () => {
        view.show(group.x, group.y, group.w, group.h);
        choose(group.machines[0]);
        canvas.focus();
      });
      head.append(button);
      row.append(head, ...texts.columns.map((label) => {
        const cell = document.createElement("td");
        cell.className = "num";
        cell.dataset.label = label;
        return cell;
      }));
      group.row = row;
      return row;
    }));
    tableAt = 0;
    showTable();
  }

  // Write the counts into the table, at most every TABLE_MS.
  function showTable() {
    clearTimeout(tableLater);
    const wait = tableAt + TABLE_MS - performance.now();
    if (tableAt && wait > 0) {
      tableLater = setTimeout(showTable, wait);
      return;
    }
    tableAt = performance.now();
    for (const group of view.plan.groups) {
      const counts = { up: 0, draining: 0, down: 0 }, sums = { cpu: [0, 0], ram: [0, 0] };
      let tasks = 0, jobTasks = 0;
      for (const place of group.machines) {
        counts[machines.state[place]]++;
        tasks += machines.tasks[place];
        jobTasks += machines.job_tasks?.[place] ?? 0;
        for (const resource of ["cpu", "ram"]) {
          sums[resource][0] += column("limit", resource)[place];
          sums[resource][1] += capacity(place, resource);
        }
      }
      const values = [group.machines.length, counts.up, counts.draining, counts.down, tasks].map((value) => number.format(value));
      values.push(share(...sums.cpu), share(...sums.ram), number.format(jobTasks));
      values.slice(0, group.row.cells.length - 1).forEach((text, at) => {
        const cell = group.row.cells[at + 1];
        if (cell.textContent !== text) cell.textContent = text;
      });
    }
  }

  // ---- one machine --------------------------------------------------------------------------------------------
  const link = (place) => box.dataset.mapMachine.replace("~", encodeURIComponent(machines.name[place]));

  function facts(place) {
    const of = (what, resource) => {
      const value = column(what, resource)[place];
      return value === null || value === undefined ? texts.unknown : fill(texts.of, { part: number.format(value / (resource === "cpu" ? 1000 : 1024)), whole: amount(resource, capacity(place, resource)) });
    };
    const band = machines.priority[place] < 0 ? null : data.bands[bandOf(machines.priority[place])]?.name;
    const rows = [[texts.state, texts.states[machines.state[place]] ?? machines.state[place]]];
    for (const [name, title] of [["rack", texts.rack], ["power_domain", texts.powerDomain], ["platform", texts.platform]]) {
      const text = { rack: data.texts.racks, power_domain: data.texts.power_domains, platform: data.texts.platforms }[name][machines[name][place]];
      if (text) rows.push([title, text]);
    }
    rows.push([texts.tasks, data.own ? fill(texts.ownTasks, { n: machines.tasks[place], own: machines.own_tasks[place] }) : String(machines.tasks[place])]);
    for (const resource of ["cpu", "ram"]) rows.push([texts.limits[resource], of("limit", resource)]);
    for (const resource of ["cpu", "ram"]) rows.push([texts[data.own ? "ownReservations" : "reservations"][resource], of("reservation", resource)]);
    for (const resource of ["cpu", "ram"]) rows.push([texts[data.own ? "ownUsages" : "usages"][resource], of("usage", resource)]);
    if (band) rows.push([data.own ? texts.ownBand : texts.band, band]);
    if (machines.job_tasks) rows.push([fill(texts.jobTasks, { job: data.job }), String(machines.job_tasks[place])]);
    return rows;
  }

  function showTip(place) {
    const title = document.createElement("strong"), list = document.createElement("dl");
    title.textContent = machines.name[place];
    for (const [term, text] of facts(place)) {
      const pair = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = term;
      dd.textContent = text;
      pair.append(dt, dd);
      list.append(pair);
    }
    tip.replaceChildren(title, list);
    tip.hidden = false;
    const scale = view.scale / view.ratio, x = (view.plan.x[place] * view.scale + view.left) / view.ratio, y = (view.plan.y[place] * view.scale + view.top) / view.ratio;
    const wide = canvas.clientWidth, tall = canvas.clientHeight, right = x + scale + 8;
    const within = (value, size, whole) => `${Math.round(Math.min(Math.max(4, value), Math.max(4, whole - size - 4)))}px`;
    // Beside the machine if there is space, otherwise under it or above it.
    const beside = right + tip.offsetWidth <= wide ? right : x - tip.offsetWidth - 8, fits = beside >= 0, under = y + scale + 8;
    tip.style.left = within(fits ? beside : x, tip.offsetWidth, wide);
    tip.style.top = within(fits ? y : under + tip.offsetHeight <= tall ? under : y - tip.offsetHeight - 8, tip.offsetHeight, tall);
  }

  function hideTip() {
    tip.hidden = true;
  }

  // Choose a machine. `speak`: also announce it to screen readers.
  function choose(place, speak = true) {
    view.chosen = place;
    if (place < 0) hideTip();
    else {
      showTip(place);
      if (speak) spoken.textContent = `${machines.name[place]}: ${facts(place).map((pair) => pair.join(" ")).join(", ")}`;
    }
    draw();
  }

  function go(place, apart) {
    if (place < 0) return;
    if (apart) window.open(link(place), "_blank", "noopener");
    else location.assign(link(place));
  }

  // ---- mouse, touches and keys ----------------------------------------------------------------------------------
  const pointers = new Map();
  let moved = 0, pinch = 0;
  const point = (event) => {
    const rect = canvas.getBoundingClientRect();
    return [(event.clientX - rect.left) * view.ratio, (event.clientY - rect.top) * view.ratio];
  };
  // While the whole map is shown, a finger scrolls the page.
  const touches = () => {
    canvas.classList.toggle("map-whole", view.isWhole);
  };

  function zoom(factor, x, y) {
    view.zoom(factor, x, y);
    hideTip();
    touches();
    draw();
  }

  canvas.addEventListener("wheel", (event) => {
    if (!data || (event.deltaY > 0 && view.isWhole && !event.ctrlKey)) return;
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? event.deltaY * 16 : event.deltaY;
    zoom(Math.exp(-Math.max(-240, Math.min(240, pixels)) * (event.ctrlKey ? 0.01 : 0.002)), ...point(event));
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    if (!data || event.button > 0) return;
    pointers.set(event.pointerId, point(event));
    canvas.setPointerCapture(event.pointerId);
    moved = pinch = 0;
  });

  canvas.addEventListener("pointermove", (event) => {
    if (!data) return;
    const [x, y] = point(event), before = pointers.get(event.pointerId);
    if (!before) {
      const place = view.at(x, y);
      canvas.classList.toggle("map-over", place >= 0);
      if (place !== view.chosen) choose(place, false);
      return;
    }
    pointers.set(event.pointerId, [x, y]);
    if (pointers.size === 2) {
      const [[ax, ay], [bx, by]] = [...pointers.values()], apart = Math.hypot(ax - bx, ay - by);
      if (pinch) zoom(apart / pinch, (ax + bx) / 2, (ay + by) / 2);
      pinch = apart;
      moved = Infinity;
    } else if (!view.isWhole || event.pointerType === "mouse") {
      moved += Math.hypot(x - before[0], y - before[1]);
      if (moved < 4 * view.ratio) return;
      view.move(x - before[0], y - before[1]);
      hideTip();
      draw();
    }
  });

  canvas.addEventListener("pointerup", (event) => {
    const pressed = pointers.delete(event.pointerId);
    if (!data || !pressed || moved > 4 * view.ratio) return;
    const place = view.at(...point(event));
    // A finger has no hover: the first tap shows the facts, the second one opens the page.
    if (event.pointerType === "mouse" || (place >= 0 && place === view.chosen && !tip.hidden)) go(place, event.ctrlKey || event.metaKey);
    else choose(place);
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", (event) => {
    // After a touch, this event follows at once.
    if (event.pointerType === "mouse" && document.activeElement !== canvas) choose(-1);
  });
  canvas.addEventListener("focus", () => {
    if (data && view.chosen < 0 && canvas.matches(":focus-visible") && view.plan.order.length) choose(view.plan.order[0]);
  });
  canvas.addEventListener("blur", () => choose(-1));

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (!data || event.altKey || ((event.ctrlKey || event.metaKey) && event.key !== "Enter")) return;
    const { order, groups } = view.plan, now = view.chosen >= 0 ? view.chosen : order[0];
    const center = now === undefined ? [] : [view.plan.x[now] * view.scale + view.left, view.plan.y[now] * view.scale + view.top];
    let next = null;
    if (STEPS[event.key]) next = view.chosen < 0 ? now : view.neighbour(now, ...STEPS[event.key]);
    else if (event.key === "Home") next = order[0];
    else if (event.key === "End") next = order.at(-1);
    else if (event.key === "PageDown" || event.key === "PageUp") {
      const at = groups.findIndex((group) => group.machines.includes(now)) + (event.key === "PageDown" ? 1 : -1);
      next = groups[Math.min(Math.max(at, 0), groups.length - 1)]?.machines[0];
    } else if (event.key === "+" || event.key === "=") zoom(STEP, ...center);
    else if (event.key === "-") zoom(1 / STEP, ...center);
    else if (event.key === "0") whole();
    else if (event.key === "Escape" && view.chosen >= 0) hideTip();
    else if (event.key === "Enter") go(view.chosen, event.ctrlKey || event.metaKey);
    else return;
    event.preventDefault();
    if (next !== null && next !== undefined) {
      view.reveal(next);
      touches();
      choose(next);
    } else if (view.chosen >= 0 && event.key !== "Escape") showTip(view.chosen);
  });

  function whole() {
    view.fit();
    hideTip();
    touches();
    draw();
  }

  // ---- controls -------------------------------------------------------------------------------------------------
  let searched = "", match = -1;
  find("search").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!data) return;
    const text = find("query").value.trim().toLowerCase();
    const all = text ? view.plan.order.filter((place) => machines.name[place].toLowerCase().includes(text)) : [];
    const exact = (place) => machines.name[place].toLowerCase() === text;
    all.sort((a, b) => exact(b) - exact(a) || mapCanvas.compare(machines.name[a], machines.name[b]));
    match = text === searched ? (match + 1) % Math.max(all.length, 1) : 0;
    searched = text;
    if (!all.length) {
      find("status").textContent = fill(texts.noMatch, { text });
      return;
    }
    find("status").textContent = fill(texts.match, { n: match + 1, all: all.length, name: machines.name[all[match]] });
    goTo(all[match]);
  });

  function goTo(place) {
    view.reveal(place);
    touches();
    canvas.focus({ preventScroll: false });
    choose(place);
  }

  for (const field of [chosenGroup, chosenColour, chosenResource]) {
    field.addEventListener("change", () => {
      const address = new URL(location.href);
      address.searchParams.set("group", chosenGroup.value);
      address.searchParams.set("colour", chosenColour.value);
      address.searchParams.set("resource", chosenResource.value);
      history.replaceState(null, "", address);
      if (!data) return;
      if (field === chosenGroup) arrange(true);
      if (isMeasured()) readMeasured();
      colourAll();
    });
  }
  find("in").addEventListener("click", () => data && zoom(STEP));
  find("out").addEventListener("click", () => data && zoom(1 / STEP));
  find("whole").addEventListener("click", () => data && whole());

  // ---- start ----------------------------------------------------------------------------------------------------
  readColours();
  new MutationObserver(() => {
    readColours();
    if (data) colourAll();
  }).observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
  new ResizeObserver(() => {
    if (!data) return;
    const fits = view.isWhole;
    if (view.resize()) arrange(fits);
    if (!tip.hidden) showTip(view.chosen);
    draw();
  }).observe(canvas);
  box.readAgain = readAll;
  box.addEventListener("live:machines", (event) => take(event.detail));
  box.addEventListener("live:status", (event) => {
    live = event.detail === "on";
    ended ||= event.detail === "ended";
  });
  readAll().catch((error) => {
    console.warn("The map could not be read:", error);
    find("status").textContent ||= texts.failed;
  });
  // Without a connection for changes, the map is read again and again.
  setInterval(() => {
    if ((!live || !data) && !ended && !document.hidden) readAll().catch((error) => console.warn("The map could not be read again:", error));
  }, POLL_MS);
  setInterval(() => {
    if (isMeasured() || !tip.hidden) readMeasured();
  }, MEASURED_MS);
})();
