"""`planner serve`: the page of a search that follows its inputs, for one person on one machine."""
