"use strict";
const number = (text) => { const found = parseFloat(text.replace(/,/g, "")); return Number.isNaN(found) ? null : found; };
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[place].textContent;
    const order = (a, b) => {
      const [x, y] = [number(key(a)), number(key(b))];
      if (x === null || y === null) return (x === null) - (y === null) || key(a).localeCompare(key(b)) * (down ? -1 : 1);
      return (x - y) * (down ? -1 : 1);
    };
    body.append(...[...body.rows].sort(order));
  }));
  const filter = table.previousElementSibling.querySelector("input");
  filter.addEventListener("input", () => {
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
  });
}
for (const shown of document.querySelectorAll("details.shown")) {
  const said = shown.querySelector(".said");
  const tell = (event) => { const text = event.target.dataset && event.target.dataset.said; if (text) said.textContent = text; };
  shown.addEventListener("mouseover", tell);
  shown.addEventListener("focusin", tell);
}
// Print what a reader could open.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
