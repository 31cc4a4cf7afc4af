"""Screens of ten commands, kept as files: `python -m tests.cli.golden` writes them anew.

What changes from run to run (seconds of a search, folders) is masked. Everything else is as a user
sees it, at 80 and at 120 columns.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from planner.cli import planner_command

FOLDER = Path(__file__).parent / "screens"
EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTHS = (80, 120)
_SMALL = ("--model", "llama-3-8b", "--gpus", "16xH100", "--gbs", "64", "--quiet")
# Name of the screen -> the command; PLANS stands for a plan file that the search of _SMALL wrote.
COMMANDS: dict[str, tuple[str, ...]] = {
    "help": ("--help",),
    "search": ("search", *_SMALL),
    "search-error": ("search", "--model", "lama-3-8b", "--gpus", "16xH100", "--gbs", "64"),
    "evaluate": ("evaluate", *_SMALL, "--tp", "2", "--mbs", "1"),
    "explain": ("explain", "PLANS", "1", "--no-neighbours"),
    "explain-two": ("explain", "PLANS", "1", "2"),
    "fit": ("fit", "--model", "llama-3-8b", "--gpus", "1xRTX-4090", "--train", "qlora", "--gbs",
            "16", "--seq", "2048", "--framework", "hf-transformers", "--quiet"),
    "memory": ("memory", *_SMALL, "--tp", "2", "--mbs", "1"),
    "compare": ("compare", "--model", "llama-3-8b", "--gbs", "64", "--gpus", "16xH100", "--gpus",
                "16xA100", "--tokens", "1G", "--quiet"),
    "check": ("check", str(EXAMPLES / "05_check_a_script" / "run.sh"), "--gpus", "32xH100"),
}  # fmt: skip
_MASKS = ((re.compile(r"\S*/(?=plans\.json|05_check_a_script|examples/)"), ""),)


def screens(width: int) -> Iterator[tuple[str, str]]:
    """(name, what the command prints) of every command on a page of so many columns."""
    environment = {"COLUMNS": str(width), "NO_COLOR": "", "PLANNER_DEBUG": ""}
    runner = CliRunner(env=environment)
    with tempfile.TemporaryDirectory() as folder:
        plans = Path(folder) / "plans.json"
        runner.invoke(planner_command, ["search", *_SMALL, "--all", "-o", str(plans)])
        for name, command in COMMANDS.items():
            arguments = [str(plans) if part == "PLANS" else part for part in command]
            result = runner.invoke(planner_command, arguments, prog_name="planner")
            yield name, _masked(result.output)


def _masked(text: str) -> str:
    for pattern, words in _MASKS:
        text = pattern.sub(words, text)
    return text


def place(name: str, width: int) -> Path:
    """The file of a screen."""
    return FOLDER / f"{name}-{width}.txt"


def main() -> None:
    """Write every screen."""
    FOLDER.mkdir(exist_ok=True)
    for width in WIDTHS:
        for name, text in screens(width):
            place(name, width).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
