// Light or dark: the user's choice here or in the console (unfold uses the same key), else the system's setting.
"use strict";

(() => {
  const KEY = "adminTheme", root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return JSON.parse(localStorage.getItem(KEY));
    } catch {
      return null;
    }
  }

  function show() {
    const theme = chosen();
    root.classList.toggle("dark", theme === "dark" || (theme !== "light" && system.matches));
  }

  show(); // runs before the first paint, because the head loads this script without `defer`
  system.addEventListener("change", show);
  window.addEventListener("storage", show);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    localStorage.setItem(KEY, JSON.stringify(root.classList.contains("dark") ? "light" : "dark"));
    show();
  });
})();
