"""Limits on reading a script or a program, because some never end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MOST_STEPS = 200_000
MOST_CHARACTERS = 8 * 2**20
DEEPEST = 100
# Nested function calls, and commands inside words.
DEEPEST_CALL = 20
MOST_SECONDS = 10.0
_STEPS_A_LOOK = 512


class LimitError(Exception):
    """Raised if reading would exceed a limit; the text says which one."""


@dataclass
class Limits:
    """Counters for the reading of one launch's scripts. They raise LimitError at their limits."""

    steps: int = 0
    characters: int = 0
    depth: int = 0
    calls: int = 0
    started: float = field(default_factory=time.monotonic)

    def step(self, characters: int = 0) -> None:
        """Count one more statement, or one more word and its characters."""
        self.steps += 1
        self.characters += characters
        if self.steps > MOST_STEPS:
            _stop(f"more than {MOST_STEPS:,} steps")
        if self.characters > MOST_CHARACTERS:
            _stop(f"its variables and words grow beyond {MOST_CHARACTERS:,} characters")
        if self.steps % _STEPS_A_LOOK == 0 and time.monotonic() - self.started > MOST_SECONDS:
            _stop(f"more than {MOST_SECONDS:g} s")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count one more level of nesting inside this context."""
        if self.depth >= DEEPEST:
            _stop(f"nested deeper than {DEEPEST} levels")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Count one more nested function, or command inside a word, inside this context. `what`:
        its name in the error."""
        if self.calls >= DEEPEST_CALL:
            _stop(f"{what} is more than {DEEPEST_CALL} calls deep")
        self.calls += 1
        depth, self.depth = self.depth, 0
        try:
            yield
        finally:
            self.calls, self.depth = self.calls - 1, depth

    def grown(self, value: Any) -> None:
        """Count the words of a list that was assigned to a variable."""
        for word in value if isinstance(value, list) else ():
            self.step(len(word.value))


def _stop(limit: str) -> None:
    raise LimitError(limit)
