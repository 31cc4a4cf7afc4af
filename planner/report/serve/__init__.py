"""`planner serve`: a page that searches again when its inputs change, for one person on one
machine."""
