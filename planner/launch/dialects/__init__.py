"""The dialects, one folder each. A dialect is the form in which a training framework, or a few that
belong together, states a run: its files, options and commands. `planner.launch.contract` says what
a folder contains; `planner.launch.registry` finds the folders."""
