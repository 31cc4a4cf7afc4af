"""Reader of Megatron's SHARP options: whether the switches reduce for a communicator that is used.

Rules: megatron-core 0.19, parallel_state.py (initialize_model_parallel).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.launch.options import MEGATRON
from planner.launch.read.found import Edit, Problem
from planner.launch.read.megatron_arguments import Arguments

_USE, _GROUP, _INSTANCES = (MEGATRON[ours].name for ours in ("sharp", "sharp-group", "groups"))
COLLNET = "NCCL_COLLNET_ENABLE"


@dataclass(frozen=True, slots=True)
class Sharp:
    """`on`: the switches reduce for the communicators over which gradients go."""

    on: bool = False
    problems: tuple[Problem, ...] = ()


def read_sharp(arguments: Arguments, environment: Mapping[str, str], command_place: str) -> Sharp:
    """`--use-sharp` and `--sharp-enabled-group`, with what is wrong with them."""
    on = arguments.has(_USE)
    group = arguments.text(_GROUP)
    instances = arguments.number(_INSTANCES) or 1
    problems = tuple(_problems(arguments, on, group, instances))
    if not on and environment.get(COLLNET) == "1":
        text = f"{COLLNET}=1: Megatron removes it before the first communicator is made; no SHARP"
        edits = (Edit(f"--{_USE}", ""),)
        note = Problem("sharp-collnet", text, "warning", (command_place,), edits=edits)
        problems = (*problems, note)
    reduces = "dp_replica" if instances > 1 else "dp"
    return Sharp(on and (group or "dp") == reduces, problems)


def _problems(
    arguments: Arguments, on: bool, group: str | None, instances: int
) -> Iterator[Problem]:

    def problem(text: str, option: str, value: str, **more: Any) -> Problem:
        edits = (Edit(f"--{option}", value),)
        return arguments.problem("sharp-group", text, _USE, _GROUP, edits=edits, **more)

    if group and not on:
        yield problem(f"--{_GROUP} needs --{_USE}", _USE, "")
    elif group == "dp_replica" and instances == 1:
        yield problem(f"--{_GROUP} dp_replica needs --{_INSTANCES} above 1", _GROUP, "dp")
    elif on and instances > 1 and group != "dp_replica":
        text = (
            f"--{_USE} for the group dp: with {instances} instances of the distributed optimizer "
            "gradients go over other groups, and the switches reduce nothing"
        )
        yield problem(text, _GROUP, "dp_replica", severity="warning")
