// What scrolls is reached by keyboard, and the search has a name for those who listen.
function reach() {
  for (const part of document.querySelectorAll(".formula, .md-typeset__scrollwrap, div.data, pre > code"))
    part.tabIndex = 0;
}
reach();
addEventListener("load", () => setTimeout(reach)); // the theme wraps tables last
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
