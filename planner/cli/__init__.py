"""The command line: one file a command; nothing heavy is imported before a command needs it."""

from planner.cli.main import cli, main

__all__ = ["cli", "main"]
