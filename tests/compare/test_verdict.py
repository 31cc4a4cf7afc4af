"""The verdict line of every command that recommends clusters: measured how far, priced when."""

from __future__ import annotations

import pytest

from tests.cli.conftest import lines_are_short, run_cli

_JOB = ("--model", "llama-3.2-1b", "--tokens", "100B")
COMMANDS = [
    ("compare", *_JOB, "--gbs-tokens", "1M", "--gpus", "16xMI300X"),
    ("buy", *_JOB, "--gpus", "16xMI300X"),
    ("scale", *_JOB, "--gbs-tokens", "1M", "--gpus", "MI300X", "--from", "16", "--to", "16",
     "--deadline", "90d"),
]  # fmt: skip


def _take(output: str) -> str:
    """The row `take`, with the lines that go on with it."""
    lines = output.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("take "))
    rest = lines[start + 1 :]
    more = next(index for index, line in enumerate(rest) if not line.startswith("  "))
    return " ".join(" ".join(lines[start : start + 1 + more]).split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_verdict_says_what_was_never_measured_and_how_old_its_price_is(
    command: tuple[str, ...],
) -> None:
    result = run_cli(*command, "-q")
    assert result.exit_code == 0, result.output
    take = _take(result.stdout)
    assert "16xMI300X" in take
    assert "never measured beyond 8 GPUs of this kind" in take
    assert "price" in take
    assert "old" in take or "date unknown" in take
    assert lines_are_short(result.stdout)


def test_what_was_measured_is_not_doubted() -> None:
    result = run_cli("compare", *_JOB, "--gbs-tokens", "1M", "--gpus", "8xH100", "-q")
    assert "measured" not in _take(result.stdout)
