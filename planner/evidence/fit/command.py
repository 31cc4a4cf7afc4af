"""How the fitting commands end on wrong input: a sentence and exit status 2, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from planner.job.errors import UsageError


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    """The command with its arguments; exits with status 2 and the reason where they are wrong."""
    try:
        main(arguments)
    except UsageError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
