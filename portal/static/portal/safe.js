// Turns text from the server into elements. This is the only such place. The Content-Security-Policy already blocks
// inline scripts. This code also removes everything that could run a script before the elements enter the page.
"use strict";

const safe = (() => {
  const TAGS = new Set(`a abbr article aside b body br button caption code col colgroup datalist dd details dfn div dl dt em
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html i img input ins del kbd label legend li main
    mark meter nav noscript ol optgroup option output p pre progress s samp section select small span strong sub summary sup
    table tbody td template textarea tfoot th thead time title tr u ul var wbr
    svg g line path polyline polygon rect circle ellipse text tspan defs clippath lineargradient stop`.split(/\s+/));
  const ADDRESSES = new Set(["href", "src", "action", "formaction", "xlink:href"]), PROTOCOLS = new Set(["https:", "http:", "mailto:"]);

  // In browsers that support Trusted Types, no other script of a page can turn text into elements.
  const parser = window.trustedTypes?.createPolicy("borg", { createHTML: (html) => html }) ?? { createHTML: (html) => html };

  // Use the prototype's methods, because fields of a form hide its properties of the same names.
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

  // Return a whole page as an inert document.
  function page(html) {
    const found = new DOMParser().parseFromString(parser.createHTML(html), "text/html");
    clean(found);
    return found;
  }

  // Return the first element of an HTML fragment, such as a table row, or null if nothing remains of it.
  function element(html) {
    return page(`<template>${html}</template>`).querySelector("template")?.content.firstElementChild ?? null;
  }

  // HTMX turns whole responses into elements itself. With Trusted Types, this policy cleans its input too.
  window.trustedTypes?.createPolicy("default", { createHTML: (html) => page(html).documentElement.outerHTML });

  return { page, element };
})();
