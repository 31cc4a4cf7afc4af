"use strict";
let charts = {};
let pick = null;
let views = {};
let choice = null;
let known = [];
let selected = 0;
let beside = {};
let other = null;

// Brings a page, or an answer that has just come, to life.
function mount(data) {
  for (const view of Object.values(views)) if (view) view.finalize();
  charts = data.charts;
  pick = data.pick;
  beside = data.beside || {};
  other = document.getElementById("other");
  if (other) other.addEventListener("change", compare);
  views = {};
  choice = document.getElementById("plan");
  known = choice ? [...choice.options].map((option) => Number(option.value)) : [];
  selected = choice ? Number(choice.querySelector("[selected]").value) : 0;
  if (choice) {
    choice.addEventListener("change", () => select(choice.value));
    const asked = Number((location.hash.match(/^#plan-(\d+)$/) || [])[1]);
    if (known.includes(asked)) selected = asked;
  }
  enliven(document);
  show();
}

// A link to a plan selects it, and so does a fragment that is typed.
addEventListener("hashchange", () => {
  const asked = Number((location.hash.match(/^#plan-(\d+)$/) || [])[1]);
  if (!known.includes(asked)) return;
  select(asked);
  const first = document.querySelector(`section[data-plan="${asked}"]`);
  if (first) first.scrollIntoView();
});

// Rows of the table of plans select their plan; those within the error bar of the one to take are
// folded behind one row.
function choosable(table) {
  const rows = [...table.tBodies[0].rows].filter((row) => numbered(row));
  for (const row of rows) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "pick";
    button.textContent = row.cells[0].textContent;
    button.setAttribute("aria-label", "Show plan " + numbered(row));
    row.cells[0].replaceChildren(button);
    row.addEventListener("click", () => select(numbered(row)));
  }
  const near = rows.filter((row) => row.cells[0].textContent.startsWith("≈"));
  if (near.length > 1) fold(table, near);
}

// Two plans side by side: settings that differ, seconds and GiB of each and what one has more.
function compare() {
  const place = document.getElementById("beside");
  if (!place) return;
  const number = other ? Number(other.value) : 0;
  const [one, another] = [beside[selected], beside[number]];
  place.hidden = !(one && another && number !== selected);
  if (place.hidden) return;
  const title = document.createElement("h2");
  title.textContent = `Plan ${selected} beside plan ${number}`;
  const answer = document.createElement("p");
  answer.textContent = verdict(one, another, number);
  const differ = Object.keys(one.settings).filter((key) => one.settings[key] !== another.settings[key]);
  place.replaceChildren(
    title,
    answer,
    rows("setting", differ, (key) => [one.settings[key], another.settings[key]], number),
    rows("seconds of a step", terms(one.time, another.time), pair(one.time, another.time), number, true),
    rows("GiB of the fullest stage", terms(one.memory, another.memory), pair(one.memory, another.memory), number, true),
  );
}

// Which plan is faster and which is lighter, and the term of the time that differs most.
function verdict(one, another, number) {
  const more = (another.step_s / one.step_s - 1) * 100;
  const step = Math.abs(more) < 0.05 ? "as long as" : `${figure(Math.abs(more))} % ${more > 0 ? "longer" : "shorter"} than`;
  const gib = another.gib - one.gib;
  const memory = Math.abs(gib) < 0.05 ? "as much memory" : `${figure(Math.abs(gib))} GiB ${gib > 0 ? "more" : "less"}`;
  const gap = (key) => (another.time[key] || 0) - (one.time[key] || 0);
  const most = terms(one.time, another.time).sort((a, b) => Math.abs(gap(b)) - Math.abs(gap(a)))[0];
  const why = most && Math.abs(gap(most)) > 0 ? ` The largest difference is ${most}: ${figure(Math.abs(gap(most)))} s ${gap(most) > 0 ? "more" : "less"}.` : "";
  return `A step of plan ${number} takes ${figure(another.step_s)} s, ${step} plan ${selected}. Its fullest GPU holds ${figure(another.gib)} GiB, ${memory}.${why}`;
}

const terms = (one, another) => [...new Set([...Object.keys(one), ...Object.keys(another)])];
const pair = (one, another) => (key) => [one[key] || 0, another[key] || 0];
const figure = (value) => Number(value.toPrecision(3)).toString();

function rows(title, keys, values, number, sums) {
  const table = document.createElement("table");
  const heads = [title, `plan ${selected}`, `plan ${number}`, ...(sums ? ["more"] : [])];
  const head = table.createTHead().insertRow();
  for (const text of heads) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = text;
    cell.className = text === title ? "text" : "";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const key of keys) {
    const [one, another] = values(key);
    const more = sums ? [another - one] : [];
    const row = body.insertRow();
    for (const value of [key, one, another, ...more]) {
      const cell = row.insertCell();
      cell.textContent = typeof value === "number" ? figure(value) : value;
      cell.className = value === key ? "text" : "";
    }
  }
  const around = document.createElement("div");
  around.className = "scroll";
  around.tabIndex = 0;
  around.setAttribute("role", "region");
  around.setAttribute("aria-label", title);
  around.append(table);
  return around;
}

function numbered(row) {
  const digits = row.cells[0].textContent.match(/^[→≈]?(\d+)$/);
  return digits ? Number(digits[1]) : 0;
}

function fold(table, near) {
  const row = document.createElement("tr");
  row.className = "fold";
  const cell = row.insertCell();
  cell.colSpan = near[0].cells.length;
  cell.className = "text";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "pick";
  const turn = (open) => {
    button.setAttribute("aria-expanded", String(open));
    button.textContent = `${open ? "▾" : "▸"} ${near.length} plans within the error bar of the one to take`;
    for (const one of near) one.hidden = !open;
  };
  button.addEventListener("click", () => turn(button.getAttribute("aria-expanded") === "false"));
  cell.append(button);
  near[0].before(row);
  turn(false);
}

// A table that is sorted shows every row.
function unfold(body) {
  for (const row of body.querySelectorAll("tr.fold")) row.remove();
  for (const row of body.rows) row.hidden = false;
}

function enliven(part) {
  for (const table of part.querySelectorAll("table"))
    if (table.tHead.textContent.trim().startsWith("plan") && known.length) choosable(table);
  for (const fold of part.querySelectorAll("details")) fold.addEventListener("toggle", show);
  for (const button of part.querySelectorAll("th button"))
    button.addEventListener("click", () => sort(button));
  for (const button of part.querySelectorAll(".copy"))
    button.addEventListener("click", () => copy(button));
}

// A chart is drawn when it is first seen: a hidden place has no width.
async function draw(place) {
  const name = place.dataset.chart;
  if (name in views || !place.clientWidth) return;
  const mine = views;
  mine[name] = null;
  const chart = charts[name];
  const narrow = place.clientWidth < 560;
  if (narrow) {
    chart.config.legend.columns = Math.min(2, chart.config.legend.columns);
    chart.config.axis.labelLimit = 110;
  }
  const result = await vegaEmbed(place, chart, {
    renderer: "svg",
    actions: !narrow && {
      export: { svg: true, png: true }, source: false, compiled: false, editor: false,
    },
    downloadFileName: name,
  });
  if (mine !== views) return result.view.finalize();
  // Names too long for two columns of a legend get one.
  if (narrow && chart.config.legend.columns > 1 && isCut(place)) {
    chart.config.legend.columns = 1;
    delete mine[name];
    result.view.finalize();
    return draw(place);
  }
  const menu = place.querySelector("summary");
  if (menu) menu.setAttribute("aria-label", "Save this figure");
  views[name] = result.view;
  result.view.addEventListener("click", (event, item) => {
    if (item && item.datum) clicked(place, item.datum);
  });
  tell(result.view);
}

function isCut(place) {
  const end = place.getBoundingClientRect().right;
  const labels = [...place.querySelectorAll(".role-legend-label text")];
  return labels.some((label) => label.getBoundingClientRect().right > end);
}

// What was clicked: a plan is selected, another dot of the front is marked, all says its text.
function clicked(place, datum) {
  const said = place.closest("figure").querySelector(".said");
  said.hidden = !datum.text;
  said.textContent = datum.text || "";
  if (datum.number) select(datum.number);
  if (place.dataset.chart === "front") offer(datum);
}

// Why a dot is no plan, and the command that costs it.
function offer(datum) {
  const picked = document.querySelector(".picked");
  const command = datum.command || (pick && "grad_acc" in datum ? costing(datum) : "");
  picked.hidden = !command;
  views.front.signal("picked", command ? datum : 0).run();
  picked.querySelector("p").textContent = datum.command
    ? "Not among the plans: it is less likely to fit than was asked."
    : pick && compared(datum);
  picked.querySelector("code").textContent = command;
  picked.querySelector("button").textContent = "Copy";
}

function compared(datum) {
  const better = pick.plans.find(([, gib, speed]) => speed >= datum.speed && gib <= datum.gib);
  const near = better
    ? `plan ${better[0]} is no slower and no heavier.`
    : "with its layers split as is best for it, it may be one of the plans.";
  return datum.gib > pick.limit_gib
    ? `Not a plan: it needs more than the ${pick.limit_gib.toFixed(1)} GiB that may be used.`
    : `Not a plan as it is: ${near}`;
}

function costing(datum) {
  const words = pick.options
    .filter(([name, , unsaid]) => datum[name] !== unsaid)
    .map(([name, option]) => `--${option} ${datum[name]}`);
  if (datum.recompute !== "none") words.push(`--recompute ${datum.recompute}`);
  return [pick.command, ...words].join(" ");
}

function tell(view) {
  if (view && "selected" in view.getState().signals) view.signal("selected", selected).run();
}

function show() {
  for (const section of document.querySelectorAll("section[data-plan]"))
    section.hidden = Number(section.dataset.plan) !== selected;
  if (choice) choice.value = String(selected);
  for (const row of document.querySelectorAll("tr:has(.pick)"))
    row.classList.toggle("chosen", numbered(row) === selected);
  compare();
  for (const view of Object.values(views)) tell(view);
  for (const place of document.querySelectorAll(".chart")) draw(place);
}

function select(number) {
  if (!known.includes(Number(number))) return;
  selected = Number(number);
  history.replaceState(null, "", "#plan-" + selected);
  show();
  // A live page fetches a plan when it is first asked for.
  if (window.fetchPlan && !document.querySelector(`section[data-plan="${selected}"]`))
    fetchPlan(selected);
}

// Puts the sections of one plan behind the others.
function add(found) {
  const part = document.createElement("template");
  part.innerHTML = found.html;
  const sections = [...part.content.querySelectorAll("section")];
  Object.assign(charts, found.data.charts);
  document.querySelector("main").append(...sections);
  for (const section of sections) enliven(section);
  show();
}

// The first number of a cell with its power of ten, else its text.
const powers = { k: 1e3, M: 1e6, B: 1e9, T: 1e12 };

function key(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const number = text.replaceAll(",", "").match(/^[^\w+-]*([+-]?\d[\d.]*(?:e[+-]?\d+)?)(?: ([kMBT])\b)?/);
  return number ? Number(number[1]) * (powers[number[2]] || 1) : text.toLowerCase();
}

function before(one, other) {
  if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
  return typeof one === "number" ? -1 : 1;
}

function sort(button) {
  const head = button.closest("th");
  const body = head.closest("table").tBodies[0];
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  unfold(body);
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const rows = [...body.rows];
  rows.sort((a, b) => sign * before(key(a.cells[head.cellIndex]), key(b.cells[head.cellIndex])));
  body.append(...rows);
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  getSelection().selectAllChildren(code);
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    document.execCommand("copy");
  }
  button.textContent = "Copied";
}
