"""One folder a dialect; `planner.launch.registry` finds them, `planner.launch.contract` says how."""
