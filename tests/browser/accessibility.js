({
  rules: () => {
      const found = [], all = (query) => [...document.querySelectorAll(query)];
      const shortened = (element) => element.outerHTML.slice(0, 110).replace(/\s+/g, " ");
      const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
      if (!document.documentElement.lang) found.push("the page has no language");
      if (!document.title.trim()) found.push("the page has no title");
      if (all("main").length !== 1) found.push(`the page has ${all("main").length} main regions`);
      if (all("h1").filter(shown).length !== 1) found.push("the page does not have one heading of level 1");
      let level = 0;
      for (const heading of all("main :is(h1, h2, h3, h4, h5, h6)").filter(shown)) {
          const own = Number(heading.localName[1]);
          if (level && own > level + 1) found.push(`a heading skips a level: ${shortened(heading)}`);
          level = own;
      }
      const ids = new Set();
      for (const element of all("[id]")) {
          if (ids.has(element.id)) found.push(`an id is used twice: ${element.id}`);
          ids.add(element.id);
      }
      for (const name of ["aria-labelledby", "aria-describedby", "aria-controls"])
          for (const element of all(`[${name}]`))
              for (const id of element.getAttribute(name).split(/\s+/))
                  if (!ids.has(id)) found.push(`${name} names a missing element ${id}: ${shortened(element)}`);
      for (const item of all("li")) if (!item.closest("ul, ol, menu")) found.push(`an item without a list: ${shortened(item)}`);
      for (const list of all("ul, ol"))
          for (const child of list.children)
              if (!["li", "script", "template"].includes(child.localName)) found.push(`not an item of a list: ${shortened(child)}`);
      for (const table of all("main table")) {
          const text = (one) => one.textContent.replace(/[▲▼↕]/g, "").trim().toLowerCase();
          const titles = [...table.querySelectorAll("thead tr:last-child > *")].map(text);
          for (const head of table.querySelectorAll("th")) if (!head.scope) found.push(`a heading without scope: ${shortened(head)}`);
          for (const row of table.querySelectorAll("tbody tr"))
              for (const [place, cell] of [...row.children].entries()) {
                  const label = cell.dataset.label;
                  if (label && label.toLowerCase() !== titles[place]) found.push(`"${label}" is in the column "${titles[place]}"`);
              }
      }
      for (const box of all("main *").filter(shown)) {
          const style = getComputedStyle(box);
          const scrolls = (box.scrollHeight > box.clientHeight + 1 && /auto|scroll/.test(style.overflowY))
              || (box.scrollWidth > box.clientWidth + 1 && /auto|scroll/.test(style.overflowX));
          if (scrolls && box.tabIndex < 0 && !box.querySelector("a, button, input, select, textarea, [tabindex='0']"))
              found.push(`the keyboard cannot scroll ${shortened(box)}`);
      }
      for (const control of all("main :is(button, select, input:not([type=hidden]), summary, .chips a, .pages a)").filter(shown)) {
          const box = control.getBoundingClientRect();
          const least = control.matches("[type=checkbox], .pages a") ? 16 : 22;
          if (box.width < least || box.height < least) found.push(`too small to hit, ${box.width} × ${box.height}: ${shortened(control)}`);
      }
      return found;
  },
  contrast: () => {
      const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const bytes = (colour) => {
          canvas.clearRect(0, 0, 1, 1);
          canvas.fillStyle = colour;
          canvas.fillRect(0, 0, 1, 1);
          return [...canvas.getImageData(0, 0, 1, 1).data];
      };
      const over = (front, back) => front.slice(0, 3).map((c, i) => c * front[3] / 255 + back[i] * (1 - front[3] / 255));
      const light = (rgb) => {
          const [r, g, b] = rgb.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (one, other) => {
          const [a, b] = [light(one), light(other)];
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      };
      const known = new Map(), seen = (colour) => known.get(colour) ?? (known.set(colour, bytes(colour)), known.get(colour));
      const ground = (element) => {
          const layers = [];
          for (let one = element; one; one = one.parentElement) {
              const colour = seen(getComputedStyle(one).backgroundColor);
              if (colour[3]) layers.push(colour);
              if (colour[3] === 255) break;
          }
          return layers.reduceRight((back, front) => over(front, back), [255, 255, 255]);
      };
      const opacity = (element) => {
          let found = 1;
          for (let one = element; one; one = one.parentElement) found *= Number(getComputedStyle(one).opacity);
          return found;
      };
      const found = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
          const element = node.parentElement, text = node.textContent.trim();
          if (!text || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
          if (element.closest("svg, script, style, noscript, progress, option, .implicit, [disabled], [aria-disabled=true]")) continue;
          const style = getComputedStyle(element), back = ground(element), front = [...seen(style.color)];
          front[3] *= opacity(element);
          const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
          const value = ratio(over(front, back), back);
          if (value < (large ? 3 : 4.5)) found.add(`contrast ${value.toFixed(2)}: "${text.slice(0, 40)}" in ${element.localName}.${element.className}`);
      }
      return [...found];
  },
})
