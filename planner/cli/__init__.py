"""The command line: one file for each command. Nothing heavy is imported before a command needs
it."""

from planner.cli.program import main, planner_command

__all__ = ["main", "planner_command"]
