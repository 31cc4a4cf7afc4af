"""Published recipes against what the planner finds for the same jobs."""
