"use strict";
// Runs in each page of the site before everything else, and reports what a reader would complain about.
const complaints = [];
addEventListener("error", (event) => complaints.push(`error: ${event.message || event.target.outerHTML}`), true);
addEventListener("unhandledrejection", (event) => complaints.push(`error: ${event.reason}`));
addEventListener("securitypolicyviolation", (event) => complaints.push(`fetched: ${event.blockedURI}`));
for (const level of ["error", "warn"]) console[level] = (...words) => complaints.push(`console: ${words.join(" ")}`);

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// The outermost elements that reach beyond the right edge and are not in a box that scrolls.
function tooWide() {
  const scrolls = (element) => {
    for (let box = element; box !== document.body; box = box.parentElement) {
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(box).overflowX)) return true;
    }
    return false;
  };
  return [...document.querySelectorAll("article *")]
    .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !scrolls(element))
    .map((element) => `too wide: ${element.tagName} ${element.textContent.trim().slice(0, 60)}`)
    .slice(0, 3);
}

addEventListener("load", async () => {
  await pause(100); // tables get the box in which they scroll after loading
  if (document.documentElement.scrollWidth > innerWidth) {
    complaints.push(`page of ${document.documentElement.scrollWidth} pixels`);
  }
  parent.postMessage({
    background: getComputedStyle(document.body).backgroundColor,
    complaints: [...complaints, ...tooWide()],
    inner: innerWidth,
    title: document.title,
  }, "*");
});
