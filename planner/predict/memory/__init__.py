"""Views of the cost core's account of memory: memory over a step, the largest sizes that fit, and
changes that make a configuration fit."""
