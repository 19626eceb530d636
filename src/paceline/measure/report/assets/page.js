"use strict";
// Draws the plots in the palette of the theme, and again when the theme or the width changes.
const figures = JSON.parse(document.getElementById("figures").textContent);
const palettes = JSON.parse(document.getElementById("palettes").textContent);
const NARROW = 480; // pixels of a plot; below it curves are named by the legend above it
const button = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isTouch = matchMedia("(pointer: coarse)").matches;
let chosen = null;

function theme() {
  return chosen || (prefersDark.matches ? "dark" : "light");
}

// Replace "@role" by the colour of the role, wherever a figure has one.
function painted(value, palette) {
  if (typeof value === "string") {
    return value.startsWith("@") && palette[value.slice(1)] ? palette[value.slice(1)] : value;
  }
  if (Array.isArray(value)) return value.map((part) => painted(part, palette));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, painted(part, palette)]));
}

function layoutOf(figure, palette, width) {
  const layout = painted(figure.layout, palette);
  const isNarrow = width < NARROW;
  if (isNarrow) {
    layout.annotations = [];
    layout.margin.r = 14;
  }
  const axis = { color: palette["text-soft"], gridcolor: palette.grid, linecolor: palette.grid, tickcolor: palette.grid };
  return {
    ...layout,
    width,
    autosize: false,
    dragmode: isTouch ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif", size: 12, color: palette.text },
    hoverlabel: { bgcolor: palette.page, bordercolor: palette.grid, font: { color: palette.text, size: 12 }, namelength: 40 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: palette["text-soft"], activecolor: palette.text },
    xaxis: { ...axis, ...layout.xaxis, ...(isNarrow ? { nticks: 5 } : {}) },
    yaxis: { ...axis, ...layout.yaxis },
  };
}

function draw() {
  const name = theme();
  const palette = palettes[name];
  document.documentElement.dataset.theme = name;
  button.textContent = name === "dark" ? "Light" : "Dark";
  for (const swatch of document.querySelectorAll("[data-colour]")) {
    swatch.style.setProperty("--swatch", palette[swatch.dataset.colour.slice(1)]);
  }
  const config = {
    displaylogo: false,
    showSendToCloud: false, // nothing leaves this page
    plotlyServerURL: "",
    responsive: false,
    displayModeBar: isTouch ? true : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"],
  };
  return Promise.all(
    Object.entries(figures).map(([id, figure]) => {
      const place = document.getElementById(id);
      const width = place.clientWidth;
      place.closest("figure").classList.toggle("narrow", width < NARROW);
      return Plotly.react(place, painted(figure.data, palette), layoutOf(figure, palette, width), config);
    })
  );
}

button.hidden = false;
button.addEventListener("click", () => {
  chosen = theme() === "dark" ? "light" : "dark";
  draw();
});
prefersDark.addEventListener("change", draw);
let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return; // the keyboard or the address bar of a phone
  lastWidth = innerWidth;
  draw();
});
draw().then(() => {
  document.documentElement.dataset.drawn = "yes";
});
