"use strict";
const form = document.getElementById("ask");
const state = document.getElementById("state");
const answer = document.getElementById("answer");
let busy = false;
let again = false;

function inputs() {
  return Object.fromEntries([...new FormData(form)].map(([name, text]) => [name, text.trim()]));
}

// One search at a time: what changes meanwhile is searched when it ends.
async function ask() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  again = false;
  answer.setAttribute("aria-busy", "true");
  state.className = "";
  state.textContent = "searching …";
  const watch = setInterval(progress, 700);
  try {
    const response = await fetch("/search", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(inputs()),
    });
    take(await response.json());
  } catch (error) {
    refuse("the planner does not answer: is `planner serve` still running?");
  }
  clearInterval(watch);
  answer.removeAttribute("aria-busy");
  busy = false;
  if (again) ask();
}

function take(found) {
  mark(found.error ? found.field : "");
  if (found.error) return refuse(found.error);
  answer.classList.remove("stale");
  answer.inert = false;
  state.textContent = found.state;
  answer.innerHTML = found.html;
  document.getElementById("saved").hidden = !found.has_plans;
  mount(found.data);
}

// What stands below an error is of the last fields that were right: dimmed, and without links.
function refuse(text) {
  state.className = "refused";
  state.textContent = text;
  answer.classList.add("stale");
  answer.inert = true;
  document.getElementById("saved").hidden = true;
}

function mark(name) {
  for (const field of form.elements) {
    if (!field.name) continue;
    const wrong = field.name === name;
    field.toggleAttribute("aria-invalid", wrong);
    if (wrong) field.setAttribute("aria-invalid", "true");
    if (wrong) field.setAttribute("aria-describedby", "state");
    else field.removeAttribute("aria-describedby");
  }
}

window.fetchPlan = async (number) => {
  const main = document.querySelector("main");
  main.setAttribute("aria-busy", "true");
  const found = await (await fetch(`/plans/${number}`)).json();
  main.removeAttribute("aria-busy");
  if (found.error) return refuse(found.error);
  if (main.isConnected && !main.querySelector(`section[data-plan="${number}"]`)) add(found);
};

async function progress() {
  const response = await fetch("/progress");
  const found = await response.json();
  if (busy && found.state) state.textContent = found.state;
}

let soon = 0;
form.addEventListener("input", () => {
  clearTimeout(soon);
  soon = setTimeout(ask, 600);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(soon);
  ask();
});
ask();
