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
  if (found.error) return refuse(found.error);
  state.textContent = found.state;
  answer.innerHTML = found.html;
  document.getElementById("saved").hidden = !found.has_plans;
  mount(found.data);
}

function refuse(text) {
  state.className = "refused";
  state.textContent = text;
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
