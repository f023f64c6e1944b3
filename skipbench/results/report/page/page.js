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

let enlarged = null;

function showPicture(button) {
  enlarged = button;
  const images = all("img", button).map((image) => image.cloneNode());
  const stack = picture.querySelector(".stack");
  stack.replaceChildren(...images);
  stack.style.setProperty("--ratio", images[0].width / images[0].height);
  picture.querySelector("figcaption").textContent = images[0].alt;
  if (!picture.open) picture.showModal();
}

function step(by) {
  const buttons = all("button.enlarge").filter((button) => button.checkVisibility());
  const next = buttons.indexOf(enlarged) + by;
  showPicture(buttons[(next + buttons.length) % buttons.length]);
}

all("button.enlarge").forEach((one) => one.addEventListener("click", () => showPicture(one)));
picture.addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by) step(by);
});

[provenance, picture].forEach((dialog) => {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });
});

// -- pictures: by class, by score, by the difference of two models

// What the rows are sorted by, the highest first; null without a score.
function rankOf(scores, order, first, second) {
  const [a, b] = [scores[first] ?? null, scores[second] ?? null];
  if (order !== "difference") return a;
  return a === null || b === null ? null : a - b;
}

function arrange(gallery) {
  const value = (name) => gallery.querySelector(`select.${name}`)?.value ?? "";
  const [order, wanted] = [value("order"), value("by-class")];
  const rows = all(".row-of-pictures", gallery);
  rows.forEach((row) => {
    row.hidden = wanted !== "" && !JSON.parse(row.dataset.classes).includes(wanted);
    const scores = JSON.parse(row.dataset.scores);
    const rank = order ? rankOf(scores, order, value("first"), value("second")) : null;
    const sign = order === "difference" && rank > 0 ? "+" : "";
    row.rank = rank;
    const shown = sign + (rank ?? 0).toFixed(1).replace("-0.0", "0.0").replace("-", "−");
    row.querySelector(".rank").textContent = rank === null ? "" : shown;
  });
  const sign = order === "lowest" ? 1 : -1;
  rows.sort((a, b) => {
    if (!order) return a.dataset.place - b.dataset.place;
    if (a.rank === null || b.rank === null) return (a.rank === null) - (b.rank === null);
    return sign * (a.rank - b.rank);
  });
  gallery.querySelector(".rows").append(...rows);
  all("label:has(.first), label:has(.second)", gallery).forEach((label) => {
    label.hidden = !order || (order !== "difference" && label.querySelector(".second") !== null);
  });
  const shown = rows.filter((row) => !row.hidden).length;
  gallery.querySelector("output").textContent = `${shown} of ${rows.length} images`;
}

// -- pictures: prediction, ground truth, their difference, or the image alone

const OVERLAYS = { p: "prediction", g: "truth", d: "difference", i: "image" };
const OVERLAY_NAMES = { truth: "ground truth", difference: "difference from ground truth" };

function showOverlay(gallery, overlay) {
  all("img[data-truth]", gallery).forEach((image) => {
    image.own ??= { src: image.src, alt: image.alt };
    const shared = all(".shared img", image.closest(".row-of-pictures"));
    const other = shared[image.dataset[overlay === "image" ? "image" : "truth"]] ?? image.own;
    const replaced = overlay === "truth" || overlay === "image";
    image.src = replaced ? other.src : image.own.src;
    const name = OVERLAY_NAMES[overlay] ?? overlay;
    image.alt = overlay === "prediction" ? image.own.alt : `${image.own.alt} (${name})`;
    image.parentElement.querySelector(".against")?.remove();
    if (overlay === "difference") {
      const against = new Image();
      [against.className, against.src, against.alt] = ["against", other.src, ""];
      [against.width, against.height] = [image.width, image.height];
      image.after(against);
    }
  });
  gallery.querySelector("select.overlay").value = overlay;
  if (picture.open && gallery.contains(enlarged)) showPicture(enlarged);
}

const galleries = all(".gallery");

galleries.forEach((gallery) => {
  all(".row-of-pictures", gallery).forEach((row, i) => (row.dataset.place = i));
  const controls = gallery.querySelector(".controls");
  controls.hidden = !controls.querySelector("select");
  controls.addEventListener("change", (event) => {
    if (event.target.matches(".overlay")) showOverlay(gallery, event.target.value);
    else arrange(gallery);
  });
});
all(".keys").forEach((one) => (one.hidden = !document.querySelector("select.overlay")));

// Only for the gallery in use: single letters may be somebody's shortcuts elsewhere.
document.addEventListener("keydown", (event) => {
  const overlay = OVERLAYS[event.key];
  const typing = event.target.matches("select, input, textarea");
  if (!overlay || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const used = picture.open
    ? (gallery) => gallery.contains(enlarged)
    : (gallery) => gallery.matches(":hover, :focus-within");
  galleries
    .filter((gallery) => used(gallery) && gallery.querySelector("select.overlay"))
    .forEach((gallery) => showOverlay(gallery, overlay));
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
