"""A room calls rooms below it and none above: seen while a search and a check run."""

from __future__ import annotations

import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from click.testing import CliRunner

from planner.cli import planner_command

ROOT = Path(__file__).parents[1]
SEARCH = "search --model gpt2 --gpus 2xA100 --gbs 8 --seq 1024 --top 2"
# With variations of the framework's profile, and changes that are tried.
CHECK = "check examples/05_check_a_script/pretrain_moe.sh --gpus 32xH100"
# Functions that a lower room is handed, and calls as what they are: functions.
HANDED_IN = {
    # What launch writers say of a search's plans (`planner.search.launchable`).
    "planner.launch.plans.job_launch_note",
    "planner.launch.plans.launch_note",
    # Who waits hears how far a search or a check is.
    "planner.cli.output.watch",
}
# Runs the parts of a loop that it is handed in threads.
LOOPS = "planner.predict.threads.in_threads"


@cache
def heights() -> Mapping[str, int]:
    """Rooms from the lowest up, by the contract of import-linter."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"][::-1]
    return {name.strip(): at for at, layer in enumerate(layers) for name in layer.split("|")}


@cache
def room(module: str) -> int:
    """How high the room of a module is; 0 for constraints, hardware and other packages, which none
    is below."""
    package, _, rest = module.partition(".")
    return heights().get(rest.split(".")[0], -1) if package == "planner" else -1


@contextmanager
def calls_upwards(found: set[tuple[str, str]]) -> Iterator[None]:
    """Adds (caller, function) of every call from a room into a higher one."""

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        caller = frame.f_back
        if event != "call" or caller is None:
            return
        here, there = (one.f_globals.get("__name__", "") for one in (caller, frame))
        # A module that is imported runs once, wherever the import stands.
        if 0 <= room(here) < room(there) and frame.f_code.co_name != "<module>":
            found.add((f"{here}.{caller.f_code.co_name}", f"{there}.{frame.f_code.co_name}"))

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)


def _upwards(command: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    with calls_upwards(found):
        done = CliRunner().invoke(planner_command, command.split())
    assert done.exit_code in (0, 1), done.output
    return {(one, other) for one, other in found if one != LOOPS and other not in HANDED_IN}


def test_a_search_calls_no_higher_room() -> None:
    assert _upwards(SEARCH) == set()


def test_a_check_calls_no_higher_room() -> None:
    assert _upwards(CHECK) == set()


def test_a_call_upwards_is_seen() -> None:
    """A function of a higher room that a lower one is handed."""
    from planner.job.frameworks.profile import frameworks_with

    def above(_profile: object) -> bool:
        return True

    higher: Callable[[object], bool] = type(above)(
        above.__code__, {"__name__": "planner.report.made_up", "__builtins__": {}}
    )
    found: set[tuple[str, str]] = set()
    with calls_upwards(found):
        frameworks_with(higher)
    assert ("planner.report.made_up.above") in {called for _, called in found}
    assert inspect.isfunction(higher)
