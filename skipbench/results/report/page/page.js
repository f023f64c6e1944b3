"use strict";

// Everything here adds to a page that can be read without it: links lead to the records, tables
// have an order, details open by themselves.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// -- light and dark

const theme = document.getElementById("theme");
const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function setTheme(name) {
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
  theme.textContent = isDark() ? "light" : "dark";
}

// A page on disk may not be allowed to remember anything.
function remembered(name) {
  try {
    if (name) localStorage.setItem("skipbench-theme", name);
    return localStorage.getItem("skipbench-theme");
  } catch {
    return null;
  }
}

setTheme(remembered());
theme.addEventListener("click", () => {
  const name = isDark() ? "light" : "dark";
  remembered(name);
  setTheme(name);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());

// -- tables

const MISSING = new Set(["", "–", "unknown"]);

function key(row, column) {
  const cell = row.cells[column];
  if ("value" in cell.dataset) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  if (MISSING.has(text)) return null;
  const number = Number(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
}

function inOrder(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sort(header) {
  const table = header.closest("table");
  const now = header.getAttribute("aria-sort");
  const other = { ascending: "descending", descending: "ascending" };
  const order = now ? other[now] : header.dataset.first;
  all("[aria-sort]", table).forEach((one) => one.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const column = header.cellIndex;
  const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
  rows.sort(([a], [b]) =>
    a === null || b === null ? (a === null) - (b === null) : sign * inOrder(a, b),
  );
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

all("button.sort").forEach((button) =>
  button.addEventListener("click", () => sort(button.closest("th"))),
);

// -- copy

// Pages on disk may have no clipboard: then the old way, with a selection.
function copySelected(source) {
  source.hidden = false;
  source.focus();
  source.select();
  const done = document.execCommand("copy");
  source.hidden = done;
  return done;
}

async function copy(button) {
  const source = document.getElementById(button.dataset.source);
  const name = button.textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(source.value);
  } catch {
    done = copySelected(source);
  }
  button.textContent = done ? "copied" : "select and copy below";
  if (done) button.focus();
  setTimeout(() => (button.textContent = name), 1500);
}

all("button.copy").forEach((button) => button.addEventListener("click", () => copy(button)));

// -- dialogs

const provenance = document.getElementById("provenance");
const picture = document.getElementById("picture");

function showRecord(anchor) {
  const record = document.getElementById(anchor);
  const copied = record.cloneNode(true);
  copied.removeAttribute("id");
  provenance.querySelector(".inside").replaceChildren(copied);
  if (!provenance.open) provenance.showModal();
  provenance.scrollTop = 0;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.score");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  showRecord(link.getAttribute("href").slice(1));
});

const buttons = all("button.enlarge");
let shown = 0;

function showPicture(index) {
  shown = (index + buttons.length) % buttons.length;
  const small = buttons[shown].querySelector("img");
  const image = picture.querySelector("img");
  [image.src, image.alt] = [small.src, small.alt];
  picture.querySelector("figcaption").textContent = small.alt;
  if (!picture.open) picture.showModal();
}

buttons.forEach((button, i) => button.addEventListener("click", () => showPicture(i)));
picture.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) showPicture(shown + step);
});

[provenance, picture].forEach((dialog) => {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
});

// -- print: everything open, wide tables made to fit, and all as it was afterwards

const SHEET = 860; // what fits across a sheet, in pixels of the screen's larger letters
let opened = [];
addEventListener("beforeprint", () => {
  opened = all("details:not([open])");
  opened.forEach((one) => (one.open = true));
  all(".scroll > table").forEach((one) => {
    if (one.scrollWidth > SHEET) one.style.zoom = SHEET / one.scrollWidth;
  });
});
addEventListener("afterprint", () => {
  opened.forEach((one) => (one.open = false));
  all(".scroll > table").forEach((one) => (one.style.zoom = ""));
});

all("[hidden].quiet").forEach((button) => (button.hidden = false));
