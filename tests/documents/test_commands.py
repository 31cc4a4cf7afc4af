"""Commands that pages show outside of refreshed blocks exist and have the options shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from planner.cli.program import COMMANDS, planner_command

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def _shown(text: str) -> Iterator[list[str]]:
    """The words of every `planner ...` in indented code, in fences and in backticks."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(r"^(?: {4})?(planner .*)$", joined, re.MULTILINE)
    found += re.findall(r"`(planner [^`]+)`", joined.replace("\n", " "))
    for line in found:
        command = re.split(r"  #| && | \|\| ", line)[0]
        if command.count('"') % 2 == 0 and command.count("'") % 2 == 0:
            yield shlex.split(command)


def _options(name: str) -> set[str]:
    context = click.Context(planner_command, info_name="planner")
    command = planner_command.get_command(context, name)
    assert command is not None
    return {
        text
        for option in command.get_params(click.Context(command))
        for text in (*option.opts, *option.secondary_opts)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_have_their_options(page: Path) -> None:
    for words in _shown(page.read_text(encoding="utf-8")):
        if len(words) < 2 or words[1] not in COMMANDS:
            # `planner COMMAND --help` and sentences that begin with the program's name.
            assert len(words) < 2 or not words[1].islower() or not words[1].isalpha(), words
            continue
        # Words in capitals stand for a value of the reader's: `--rollout-NAME`.
        given = {word.split("=")[0] for word in words if re.match(r"--[a-z][a-z-]*(=|$)", word)}
        assert given - {"--help", "--help-all"} <= _options(words[1]), words
