// The one place where text from the server becomes elements. The Content-Security-Policy already stops inline scripts;
// here anything that could run one is removed before the elements enter the page.
"use strict";

const safe = (() => {
  const TAGS = new Set(`a abbr article aside b body br button caption code col colgroup datalist dd details dfn div dl dt em
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html i img input ins del kbd label legend li main
    mark meter nav noscript ol optgroup option output p pre progress s samp section select small span strong sub summary sup
    table tbody td template textarea tfoot th thead time title tr u ul var wbr
    svg g line path polyline polygon rect circle ellipse text tspan defs clippath lineargradient stop`.split(/\s+/));
  const ADDRESSES = new Set(["href", "src", "action", "formaction", "xlink:href"]), PROTOCOLS = new Set(["https:", "http:", "mailto:"]);

  // Trusted Types: browsers that know them let no other script of a page turn text into elements.
  const parser = window.trustedTypes?.createPolicy("borg", { createHTML: (html) => html }) ?? { createHTML: (html) => html };

  // By the prototype: a form's fields hide its own properties of the same names.
  const own = Element.prototype, tagOf = (element) => Reflect.get(own, "localName", element).toLowerCase();

  function isSafe(name, value) {
    if (name.startsWith("on") || name.startsWith("hx-on") || name.startsWith("data-hx-on")) return false;
    if (name === "style" || name === "srcdoc") return false;
    if (!ADDRESSES.has(name)) return true;
    try {
      return PROTOCOLS.has(new URL(value, location.href).protocol);
    } catch {
      return false;
    }
  }

  function clean(root) {
    for (const element of root.querySelectorAll("*")) {
      const tag = tagOf(element);
      if (!TAGS.has(tag)) {
        own.remove.call(element);
        continue;
      }
      for (const name of own.getAttributeNames.call(element)) {
        if (!isSafe(name, own.getAttribute.call(element, name))) own.removeAttribute.call(element, name);
      }
      if (tag === "template") clean(element.content);
    }
  }

  // A whole page, as an inert document.
  function page(html) {
    const found = new DOMParser().parseFromString(parser.createHTML(html), "text/html");
    clean(found);
    return found;
  }

  // The first element of a piece of a page, rows of tables included; null where nothing is left of it.
  function element(html) {
    return page(`<template>${html}</template>`).querySelector("template")?.content.firstElementChild ?? null;
  }

  // HTMX makes elements of whole answers by itself. Where Trusted Types are known, what it gets is cleaned as well.
  window.trustedTypes?.createPolicy("default", { createHTML: (html) => page(html).documentElement.outerHTML });

  return { page, element };
})();
