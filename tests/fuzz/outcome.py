"""One run of the command line in this process, and what must be true of every run."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from planner.cli import planner_command
from planner.cli.errors import ExitStatus

# Of the processor: what takes longer is called a hang. The commands that are fuzzed take well
# under a second, so that no machine is slow enough to reach it.
MOST_SECONDS = 120.0
_WORD = re.compile(r"[A-Za-z0-9_.]{2,}|(?<![\w-])-\w\b")


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    arguments: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float
    trace: str

    def describe(self) -> str:
        """For the message of a test that fails."""
        return f"planner {' '.join(map(ascii, self.arguments))}\n-> {self.status}\n{self.stderr}"


def run(arguments: Sequence[str], folder: Path) -> Outcome:
    """`planner ARGUMENTS` in a folder."""
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "PLANNER_DEBUG": ""})
    started = time.process_time()
    with _inside(folder):
        result = runner.invoke(planner_command, list(arguments), prog_name="planner")
    trace = ""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        trace = "".join(traceback.format_exception(result.exception))
    return Outcome(
        tuple(arguments),
        result.exit_code,
        result.stdout,
        result.stderr,
        time.process_time() - started,
        trace,
    )


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def demand_kept_promises(outcome: Outcome, *given: str) -> None:
    """AssertionError unless the status is in the table, and the message says what was given.

    `given`: options and values of which a refusal names one.
    """
    told = outcome.describe()
    assert not outcome.trace, f"{told}\n{outcome.trace}"
    assert outcome.status in set(ExitStatus), told
    assert outcome.status != ExitStatus.CRASH, told
    assert "Traceback" not in outcome.stderr, told
    assert outcome.seconds < MOST_SECONDS, f"{outcome.seconds:.1f} s: {told}"
    assert len(outcome.stderr) < 20_000, told
    if outcome.status in (ExitStatus.WRONG_INPUT, ExitStatus.CANNOT_TELL):
        assert outcome.stderr.strip() or outcome.stdout.strip(), told
    if outcome.status == ExitStatus.WRONG_INPUT and given:
        assert _names_one(outcome.stderr, given), told


def _is_said(text: str, message: str) -> bool:
    """As it is, in quotes if it is empty, or the folder of a path."""
    return (text.partition("/")[0][:30] or "''") in message


def _names_one(message: str, given: Sequence[str]) -> bool:
    """Whether a message has a text that was given, or a word of it; words wrap and are quoted.

    Rules in conflict name what was asked, which may be of the base that was mutated.
    """
    flat = " ".join(message.split())
    if (
        "breaks rules" in flat
        or "you asked for" in flat
        or any(_is_said(" ".join(text.split()), flat) or repr(text) in message for text in given)
    ):
        return True
    said = set(_WORD.findall(message.lower()))
    shown = (*given, *map(ascii, given))  # What is no text is told escaped.
    meant = {word for text in shown for word in _WORD.findall(text.lower()[:400])}
    return not meant or any(a == b or (len(a) > 3 and a[:40] in b) for a in meant for b in said)
