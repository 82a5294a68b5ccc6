// No page of the console draws with Chart.js, which unfold loads on each one (200 KB): plots are SVG.
