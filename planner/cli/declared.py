"""Commands as `commands.toml` and their options as `options.toml` declare them, made for click."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import click

from constraints.axes import AXES, Axis
from hardware.files import shipped_toml
from hardware.ranges import FIGURE_RANGES, FIGURES_ABOVE_LEAST
from planner.cli import complete as completions
from planner.cli import option_types as types
from planner.cli.help import GroupedCommand

Row = Mapping[str, Any]


@cache
def commands() -> Mapping[str, Row]:
    """Every command by name, in the order of `planner --help`."""
    return shipped_toml("planner.cli", "commands.toml")


@cache
def option_rows() -> Mapping[str, Mapping[str, Any]]:
    """The tables of `options.toml`, and the options of every axis: a number that `configuration`
    gives it, and values to which `degrees` limits it."""
    rows: Mapping[str, Mapping[str, Any]] = shipped_toml("planner.cli", "options.toml")
    given = {axis.spelled: {"given": axis} for axis in AXES.values()}
    limits = {axis.spelled: {"limited": axis} for axis in AXES.values() if axis.limited}
    return {**rows, "configuration": {**given, **rows["configuration"]}, "degrees": limits}


@cache
def command(name: str) -> click.Command:
    """A command; what it does is imported when it is called."""
    row = commands()[name]
    listed = [parameter(spelled, **more) for spelled, more in row.get("options", {}).items()]
    shared = (one for group in row.get("groups", ()) for one in options_of(group))
    made = (
        partial(GroupedCommand, first=row.get("first", ())) if "grouped" in row else click.Command
    )
    return made(
        name, callback=partial(_run, name), params=[*listed, *shared],
        help=row["text"], epilog=row["epilog"],
    )  # fmt: skip


def _run(name: str, /, **options: Any) -> None:
    importlib.import_module(f"planner.cli.{name}").run(**options)


def options_of(group: str) -> list[click.Parameter]:
    """The options of a group of `options.toml`."""
    return [parameter(spelled, **row) for spelled, row in option_rows()[group].items()]


def names_of(group: str) -> set[str]:
    """What commands call the values of a group's options."""
    return {str(one.name) for one in options_of(group)}


def parameter(spelled: str, **row: Any) -> click.Parameter:
    """An option, or an argument, of a row."""
    return _parameter(spelled, **{**option_rows()["common"].get(spelled, {}), **row})


def _parameter(
    spelled: str,
    *,
    argument: bool = False,
    flags: Sequence[str] = (),
    name: str = "",
    takes: str = "",
    choices: Sequence[str] = (),
    complete: str = "",
    given: Axis | None = None,
    limited: Axis | None = None,
    figure: str = "",
    names_in: str = "",
    **more: Any,
) -> click.Parameter:
    if takes:
        more["type"] = getattr(types, takes)
    if choices:
        more["type"] = click.Choice(choices)
    if complete:
        more["shell_complete"] = getattr(completions, complete)
    if given:
        name = given.name
        more |= {"type": types.Whole(given.least, given.largest), "default": given.default}
        more["help"] = f"{given.sentence} {given.given_help}".strip()
    if limited:
        name = limited.name
        more |= {"type": types.degree_limit(name), "metavar": "VALUES"}
        more["help"] = limited.limit_help or limited.sentence
    if "help" in more:
        more["help"] = more["help"].replace("{axes}", ", ".join(AXES))
    if names_in:
        more["help"] = more["help"].format(names=", ".join(shipped_toml(*names_in.split())))
    if figure:
        from hardware.facts import load_economics

        above = figure in FIGURES_ABOVE_LEAST
        more["type"] = types.Number(*FIGURE_RANGES[figure], low_open=above)
        more["metavar"] = "NUMBER"
        more["help"] += f" [default: {load_economics().figures[figure].value:g}]"
    if argument:
        return click.Argument([spelled], **more)
    return click.Option([*(flags or [f"--{spelled}"]), *([name] if name else [])], **more)
