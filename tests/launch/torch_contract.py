"""What every writer owes, whatever the framework."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from planner.launch.contract import Launch, Writer
from planner.launch.plans import refusals_of


def absolute_paths(text: str) -> set[str]:
    """Absolute paths: a slash after blank, quote, equals or colon, and a name. URLs are none."""
    return set(re.findall(r"(?:(?<=[\s\"'=:(,\[])|^)/[A-Za-z0-9_.~-][^\s\"',;:)\]]*", text))


def assert_complete(writer: Writer, launch: Launch) -> None:
    """No refusal, and every part of the contract filled; nothing of this machine in the files."""
    assert list(refusals_of(launch)) == []
    files = writer.files(launch)
    assert files
    for text in files.values():
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert absolute_paths(text) == set()
        for item in (Path.cwd(), Path.home(), Path(tempfile.gettempdir())):
            assert f"{item}/" not in text
    command = writer.command(launch)
    for variable in re.findall(r"\$\{(\w+)\}", " ".join(command.argv)):
        assert variable in {entry.name for entry in command.variables}
    assert list(writer.choices(launch))
    assert writer.requirements(launch)


def reasons(launch: Launch) -> str:
    """All reasons of a refusal; each comes with what is near."""
    refusals = tuple(refusals_of(launch))
    assert all(refusal.reason and refusal.nearest for refusal in refusals)
    return "\n".join(refusal.reason for refusal in refusals)
