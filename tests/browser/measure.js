"use strict";
// Runs in the page before everything else. Reports to the frame around it what a reader would complain about.
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => errors.push(`refused: ${event.blockedURI} ${event.violatedDirective}`));
for (const level of ["error", "warn"]) console[level] = (...words) => errors.push(words.join(" "));

const isSeen = (element) => {
  const style = getComputedStyle(element);
  return style.visibility !== "hidden" && style.display !== "none";
};

// The boxes of all texts and buttons, with what they are.
function boxes() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    const isScrolled = parent.closest("pre, .scroll");
    if (!node.data.trim() || isScrolled || parent.closest("script, style, noscript") || !isSeen(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 0) found.push({ text: node.data.trim(), box });
  }
  for (const button of document.querySelectorAll(".modebar-btn")) {
    found.push({ text: `button ${button.dataset.title}`, box: button.getBoundingClientRect() });
  }
  return found;
}

function overlaps(all) {
  const pairs = [];
  all.forEach((one, place) => {
    for (const other of all.slice(place + 1)) {
      const width = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const height = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
      if (width > 2 && height > 3) pairs.push(`${one.text} | ${other.text}`);
    }
  });
  return pairs;
}

function emptyPlots() {
  const marks = ".scatterlayer .js-line, .scatterlayer .js-fill, .scatterlayer .point, .barlayer .point path";
  return [...document.querySelectorAll(".plot")].filter((plot) =>
    ![...plot.querySelectorAll(marks)].some((mark) => {
      const box = mark.getBoundingClientRect();
      return box.width > 1 || box.height > 1; // a constant is a line without height
    })
  ).map((plot) => plot.id);
}

function look() {
  const all = boxes();
  return {
    background: getComputedStyle(document.documentElement).backgroundColor,
    empty: emptyPlots(),
    errors,
    labels: document.querySelectorAll(".annotation-text").length,
    overlaps: overlaps(all),
    plots: document.querySelectorAll(".plot").length,
    requests: performance.getEntriesByType("resource").map((entry) => entry.name),
    tooWide: all.filter(({ box }) => box.right > innerWidth + 1 || box.left < -1).map(({ text }) => text),
    width: document.documentElement.scrollWidth,
  };
}

// What is shown where the mouse is, after a plot was zoomed.
async function hovered() {
  const plot = document.querySelector(".plot");
  const before = plot.layout.xaxis.range.slice();
  const middle = (before[0] + before[1]) / 2;
  await Plotly.relayout(plot, { "xaxis.range": [middle, before[1]] });
  Plotly.Fx.hover(plot, [{ curveNumber: plot.data.length - 1, pointNumber: plot.data.at(-1).x.length - 1 }]);
  return plot.querySelector(".hoverlayer").textContent;
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

addEventListener("load", async () => {
  for (let turn = 0; turn < 100 && !document.documentElement.dataset.drawn; turn++) await pause(50);
  await pause(200);
  const report = { frame: name, width: Number(name), inner: innerWidth, light: look() };
  document.getElementById("theme").click();
  await pause(500);
  report.dark = look();
  report.hover = report.light.plots ? await hovered() : "";
  report.alert = window.alerted === true;
  parent.postMessage(report, "*");
});
