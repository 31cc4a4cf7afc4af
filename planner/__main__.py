"""`python -m planner` is the `planner` command."""

from planner.cli import main

main()
