"""Reports. `planner.report.*` decide what is shown; `planner.report.draw` decides how it looks."""
