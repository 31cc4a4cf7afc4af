// Tables of data: a click on a title sorts by it, a second one the other way round; a line of text
// above a table leaves the rows that have it.
for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0], find = document.createElement("input");
  find.type = "search";
  find.className = "data";
  find.placeholder = "Rows that have this text";
  find.setAttribute("aria-label", find.placeholder);
  find.oninput = () => {
    for (const row of body.rows)
      row.hidden = !row.textContent.toLowerCase().includes(find.value.toLowerCase());
  };
  table.parentElement.before(find);
  [...table.tHead.rows[0].cells].forEach((title, column) => {
    const number = title.className === "number", button = document.createElement("button");
    button.append(...title.childNodes);
    title.append(button);
    button.onclick = () => {
      const down = title.ariaSort === "ascending", way = down ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
      title.ariaSort = down ? "descending" : "ascending";
      const rows = [...body.rows].map(row => [row.cells[column].textContent, row]);
      // Nothing known comes last, whichever way.
      rows.sort(([a], [b]) => !a - !b || way * (number ? a - b : a.localeCompare(b)));
      body.append(...rows.map(([, row]) => row));
    };
  });
}
