"""The verdict on a launch: whether it runs and fits, how fast it is, and what to change."""
