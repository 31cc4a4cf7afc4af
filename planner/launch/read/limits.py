"""What reading a launch may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from planner.job.errors import CannotTellError
from planner.launch.languages.limits import LimitError

MOST_BYTES = 2**20
# Keys of a configuration file, of which each unknown one is looked at.
MOST_SETTINGS = 2_000


@contextmanager
def within_limits() -> Iterator[None]:
    """Reading inside it. CannotTellError where it goes beyond its limits."""
    try:
        yield
    except LimitError as error:
        raise CannotTellError(
            f"the script is not read to its end: {error}; give the arguments of its training "
            "command in a file of their own, or set what it computes with --env NAME=VALUE"
        ) from None
