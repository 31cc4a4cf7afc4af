// What scrolls is reached by keyboard, and the search has a name for those who listen.
for (const part of document.querySelectorAll(".formula, .md-typeset__scrollwrap, pre > code"))
  part.tabIndex = 0;
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
