"""Version of the distribution, read by hatchling and `planner --version`."""

__version__ = "0.1.0"
