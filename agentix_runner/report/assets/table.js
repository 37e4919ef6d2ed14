// A table that sorts by its headers and shows a page of its rows at a time.

const PAGE = 50;

// `columns` are {key, title, cell(row), value(row), right, narrow}; `sort` is a column's key, with "-" for descending.
// `changed({sort, page})` is told what the reader chose. The result has `show(rows)`.
function sortedTable({ caption, columns, sort, page, open, changed }) {
  const head = el("tr"), body = el("tbody"), pager = el("div", { class: "pager" });
  const table = el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, head), body);
  const view = { rows: [], sorted: [], sort: columns.some((c) => c.key === sort.replace("-", "")) ? sort : columns[0].key, page };

  function order() {
    const down = view.sort.startsWith("-"), column = columns.find((c) => c.key === view.sort.replace("-", ""));
    const keyed = view.rows.map((row, i) => [column.value(row), i, row]);
    const empty = (v) => v === null || v === undefined || v === "";
    keyed.sort(([a, i], [b, j]) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b) || i - j; // what has no value is last in both directions
      const way = typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
      return (down ? -way : way) || i - j;
    });
    view.sorted = keyed.map(([, , row]) => row);
  }
  function draw() {
    const pages = Math.max(1, Math.ceil(view.sorted.length / PAGE));
    view.page = Math.max(0, Math.min(view.page, pages - 1));
    const from = view.page * PAGE, shown = view.sorted.slice(from, from + PAGE);
    body.replaceChildren(...shown.map((row) => {
      const line = el("tr", { class: open ? "opens" : null }, columns.map((column) =>
        el("td", { class: [column.right && "right", !column.narrow && "wide", column.kind].filter(Boolean).join(" ") || null }, column.cell(row))));
      if (open) line.addEventListener("click", (event) => {
        if (!event.target.closest("button") && !getSelection().toString()) open(row);
      });
      return line;
    }));
    if (!shown.length) body.append(el("tr", {}, el("td", { colspan: columns.length, class: "empty" }, "None.")));
    const go = (to) => () => { view.page = to; draw(); changed({ sort: view.sort, page: view.page }); };
    const words = view.sorted.length ? `${number(from + 1)} to ${number(from + shown.length)} of ${number(view.sorted.length)}` : "0";
    pager.replaceChildren(
      el("button", { type: "button", onclick: go(view.page - 1), disabled: view.page === 0, "aria-label": "Previous page" }, "‹"),
      el("span", { role: "status" }, words),
      el("button", { type: "button", onclick: go(view.page + 1), disabled: view.page >= pages - 1, "aria-label": "Next page" }, "›"));
  }
  function drawHead() {
    head.replaceChildren(...columns.map((column) => {
      const active = view.sort.replace("-", "") === column.key, down = view.sort.startsWith("-");
      const button = el("button", { type: "button", "data-key": column.key, onclick: () => {
        view.sort = active ? (down ? column.key : "-" + column.key) : (column.right ? "-" : "") + column.key;
        view.page = 0;
        drawHead(); order(); draw();
        head.querySelector(`[data-key="${column.key}"]`).focus();
        changed({ sort: view.sort, page: 0 });
      } }, column.title, el("span", { class: "arrow", "aria-hidden": "true" }, active ? (down ? "▼" : "▲") : ""));
      return el("th", { scope: "col", "aria-sort": active ? (down ? "descending" : "ascending") : "none",
        class: [column.right && "right", !column.narrow && "wide"].filter(Boolean).join(" ") || null }, button);
    }));
  }
  drawHead();
  return {
    node: [el("div", { class: "scroll" }, table), pager],
    sorted: () => view.sorted,
    show(rows, toStart) {
      view.rows = rows;
      if (toStart) { view.page = 0; changed({ sort: view.sort, page: 0 }); }
      order();
      draw();
    },
  };
}

// Buttons of which any number may be on. `chosen` is a Set that they change.
function chips(name, choices, chosen, changed) {
  return el("div", { class: "chips", role: "group", "aria-label": name }, choices.map(([key, words, count, kind]) => {
    const button = el("button", { type: "button", class: `chip ${kind || ""}`, "data-chip": key, "aria-pressed": String(chosen.has(key)), onclick: () => {
      if (!chosen.delete(key)) chosen.add(key);
      button.setAttribute("aria-pressed", String(chosen.has(key)));
      changed();
    } }, words, el("b", {}, number(count)));
    return button;
  }));
}
