"""Reading launch files: each format has a reader, from text to `Found`. The entry point is
`planner.launch.read.launch.read_launch`. Files are never executed or imported."""
