"""Views of the cost core's account of memory: a step over time, what fits, what to change."""
