"""What is fuzzed: command lines, files of each kind, plan files, scripts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.command_line import BASES, command_lines
from tests.fuzz.material import TEXTS, write_all
from tests.fuzz.mutations import broken_documents, broken_texts, broken_values
from tests.fuzz.outcome import demand_kept_promises, run
from tests.fuzz.scripts import scripts

_PLANS = {
    "one cluster": BASES["search"],
    "several clusters": (*BASES["search"], "--gpus", "1xH100"),
}
_READERS = (
    ("explain", "plans.json", "1", "-q"),
    ("launch", "plans.json", "1", "-o", "out", "--force", "-q"),
    ("check", "plans.json", "--time-limit", "0.1", "-q"),
)


@cache
def plan_file(kind: str) -> str:
    """The plan file of a search."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(("search", *_PLANS[kind], "--json"), Path(folder))
    assert found.status == 0, found.describe()
    return found.stdout


def search_all() -> None:
    """Run every search of a plan file, outside strategies: they must not touch `random`."""
    for kind in _PLANS:
        plan_file(kind)


def _try(arguments: tuple[str, ...], files: dict[str, bytes], *given: str) -> None:
    """The promises of one command beside good files and some broken ones."""
    with tempfile.TemporaryDirectory() as outer:
        # Texts such as `..` lead out of the folder, not out of the temporary one.
        folder = Path(outer) / "a" / "b"
        folder.mkdir(parents=True)
        write_all(folder, plan_file("one cluster"))
        for name, content in files.items():
            (folder / name).write_bytes(content)
        demand_kept_promises(run(arguments, folder), *given)
        assert not list(Path(outer).rglob("pwned")), f"{arguments} was executed"


def command_line(drawn: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """A command with options of any value."""
    arguments, given = drawn
    _try(arguments, {}, *given)


def broken_file(drawn: tuple[str, bytes]) -> None:
    """A command that reads a broken file."""
    name, content = drawn
    _try(TEXTS[name][1], {name: content})


def broken_plan(drawn: tuple[tuple[str, ...], bytes]) -> None:
    """A command that reads a broken plan file."""
    arguments, content = drawn
    _try(arguments, {"plans.json": content})


def hostile_script(script: str) -> None:
    """`planner check` of a script of the grammar."""
    _try(TEXTS["run.sh"][1], {"run.sh": script.encode()})


@st.composite
def broken_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """(its name, content) of a file that a command reads."""
    name = draw(st.sampled_from(sorted(TEXTS)))
    text = TEXTS[name][0]
    ways = [broken_texts(text), broken_values(text)]
    if name.endswith(".json"):
        ways.append(broken_documents(json.loads(text)))
    return name, draw(st.one_of(ways))


@st.composite
def broken_plans(draw: st.DrawFn) -> tuple[tuple[str, ...], bytes]:
    """(arguments that read it, content) of a plan file."""
    text = plan_file(draw(st.sampled_from(sorted(_PLANS))))
    whole: dict[str, Any] = json.loads(text)
    content = draw(st.one_of(broken_documents(whole), broken_documents(whole), broken_texts(text)))
    return draw(st.sampled_from(_READERS)), content


# Property, what it is given, and its examples in the default run.
PROPERTIES: tuple[tuple[Callable[[Any], None], st.SearchStrategy[Any], int], ...] = (
    (command_line, command_lines(), 560),
    (broken_file, broken_files(), 160),
    (broken_plan, broken_plans(), 200),
    (hostile_script, scripts(), 80),
)
