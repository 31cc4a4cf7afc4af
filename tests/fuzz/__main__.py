"""`python -m tests.fuzz --minutes N`: other inputs each time; prints those that break a promise, or
a law of proven answers (`tests/search/test_monotone.py`)."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import click
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.properties import PROPERTIES
from tests.search.test_monotone import ANY_JOB, laws

_ROUND = 100
_LAWS = laws(ANY_JOB)
_SHOWN = 3_000


class _Search:
    """Inputs tried so far, and the kinds of broken promises, each shown once."""

    def __init__(self) -> None:
        self.tried = 0
        self.broken: Counter[str] = Counter()

    def round(
        self, promise: Callable[..., None], inputs: st.SearchStrategy[tuple[Any, ...]], number: int
    ) -> None:
        """A hundred inputs of one property."""

        def attempt(drawn: tuple[Any, ...]) -> None:
            self.tried += 1
            try:
                promise(*drawn)
            except AssertionError as error:
                self._note(promise.__name__, drawn, str(error))

        quiet = settings(
            max_examples=_ROUND,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        quiet(seed(number)(given(inputs)(attempt)))()

    def _note(self, name: str, drawn: Any, text: str) -> None:
        said = re.search(r"^(Error: .*|\w+(?:Error|Exception)\b.*)$", text, re.MULTILINE)
        kind = re.sub(r"\d+|'[^']*'", "_", said[0] if said else text[-200:])[:160]
        self.broken[f"{name}: {kind}"] += 1
        if self.broken[f"{name}: {kind}"] == 1:
            click.echo(f"--- {name}({ascii(drawn)[:_SHOWN]})\n{text[:_SHOWN]}\n{text[-_SHOWN:]}")


def _every() -> Iterator[tuple[Callable[..., None], st.SearchStrategy[tuple[Any, ...]]]]:
    """Properties of the command line, and laws of proven answers, each with its arguments."""
    yield from ((promise, st.tuples(inputs)) for promise, inputs, _ in PROPERTIES)
    yield from ((law, st.tuples(*drawn)) for law, drawn, _ in _LAWS)


@click.command()
@click.option("--minutes", type=click.FloatRange(0), default=10.0, show_default=True)
@click.option(
    "--only",
    type=click.Choice([promise.__name__ for promise, *_ in (*PROPERTIES, *_LAWS)]),
    help="One property. The last three are laws of proven answers, each of which takes seconds.",
)
@click.option("--start", type=int, help="Seed of the first round. [default: by chance]")
def main(minutes: float, only: str | None, start: int | None) -> None:
    """Fuzz the command line for some minutes; exit status 1 if a promise was broken."""
    ends_at, search = time.monotonic() + 60.0 * minutes, _Search()
    number = random.randrange(2**31) if start is None else start
    while time.monotonic() < ends_at:
        for promise, inputs in _every():
            if only in (None, promise.__name__) and time.monotonic() < ends_at:
                number += 1
                search.round(promise, inputs, number)
    for kind, count in search.broken.most_common():
        click.echo(f"{count:6d}  {kind}")
    click.echo(f"{search.tried:,} inputs, {search.broken.total()} broke a promise")
    sys.exit(1 if search.broken else 0)


main()
