"""Reports. `planner.report.*` decide what is shown, `planner.report.draw` how it looks."""
