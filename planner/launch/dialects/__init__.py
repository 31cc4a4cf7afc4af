"""One folder a dialect, as `planner.launch.contract` says; `planner.launch.registry` finds them."""
