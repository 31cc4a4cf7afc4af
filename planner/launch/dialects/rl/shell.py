"""The start script of a reinforcement-learning launch: the user's variables, then one command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.launch.quoting import comment_text, shell_word
from planner.launch.rl import Asked


def script(title: str, asked: Asked, lines: Iterable[str]) -> str:
    """The text of a bash script: the user's variables, then `lines`. No part of a name is executed,
    and only the script's own variables are expanded."""
    head = [
        "#!/usr/bin/env bash",
        f"# {comment_text(title)}",
        "# Written by planner launch; README.md says what to expect.",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        "",
    ]
    return "\n".join((*head, *_variables(asked), "", *lines, ""))


def _variables(asked: Asked) -> Iterable[str]:
    for name, (default, meaning) in asked.items():
        yield f"# {comment_text(meaning)}"
        if default:
            yield f"{name}=${{{name}:-{default}}}"
        else:
            yield f': "${{{name}:?is not set}}"'


def command(argv: Sequence[str], arguments: Sequence[str]) -> str:
    """A command with one quoted argument per line."""
    first = " ".join(map(shell_word, argv))
    return " \\\n    ".join((first, *map(shell_word, arguments)))
