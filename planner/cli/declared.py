"""Builds click commands from `commands.toml` and `options.toml`.

Options are in groups: `--help` shows the most important ones, `--help-all` shows all.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import click

from constraints.axes import AXES, Axis
from hardware.files import shipped_toml
from hardware.ranges import FIGURE_RANGES, FIGURES_ABOVE_LEAST
from planner.cli import option_types as types

# Names of options by group title, in the order of the help. Options in no group are listed under
# "Other".
_ROWS = shipped_toml("planner.cli", "options.toml")
GROUPS: Mapping[str, Any] = {
    title: [name for one in names for name in (AXES if one == "axes" else (one,))]
    for title, names in _ROWS["help"].items()
}
OTHER = "Other"
# Options that `--help` shows; `--help-all` shows the rest.
FIRST = frozenset(_ROWS["first"]["names"])


class GroupedCommand(click.Command):
    """A command whose options are shown in groups. `first`: names of options that `--help` shows in
    addition to those in `FIRST`."""

    def __init__(self, *args: Any, first: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.first = FIRST | set(first)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show all options.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the most important options by group, or all of them for `--help-all`."""
        whole = bool(ctx.meta.get(_ALL))
        for title, options in grouped(self, ctx).items():
            shown = [option for option in options if whole or option.name in self.first]
            if rows := [row for option in shown if (row := help_row(option, ctx))]:
                with formatter.section(title):
                    formatter.write_dl(rows)


# `[1<=x<=1048576]`, or after a default `; 1<=x<=1048576`.
_RANGE = re.compile(
    r"\s*\[[-+e\d.]*(<=?x|x>=?)(<=?)?[-+e\d.]*\]|; [-+e\d.]*(<=?x|x>=?)(<=?)?[-+e\d.]*"
)


def help_row(option: click.Option, ctx: click.Context) -> tuple[str, str] | None:
    """An option and its help text; None for an option that help does not show. The range of its
    numbers is left out, because the error message for a wrong number gives it."""
    record = option.get_help_record(ctx)
    if record is None:
        return None
    names, words = record
    return names.replace(" RANGE", ""), _RANGE.sub("", words).rstrip()


_ALL = "planner.help_all"


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    ctx.meta[_ALL] = True
    click.echo(ctx.get_help(), color=ctx.color)
    ctx.exit()


def grouped(command: click.Command, ctx: click.Context) -> Mapping[str, list[click.Option]]:
    """The options of a command by group title, in the order of `GROUPS`, without `--help`."""
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    named = {option.name: option for option in options if "--help" not in option.opts}
    found = {
        title: [named.pop(name) for name in names if name in named]
        for title, names in GROUPS.items()
    }
    return {
        title: members
        for title, members in {**found, OTHER: list(named.values())}.items()
        if members
    }


Row = Mapping[str, Any]


@cache
def commands() -> Mapping[str, Row]:
    """Every command by name, in the order of `planner --help`."""
    return shipped_toml("planner.cli", "commands.toml")


@cache
def option_rows() -> Mapping[str, Mapping[str, Any]]:
    """The tables of `options.toml`, plus two options for every axis: its value in one
    configuration, and its limits in a search."""
    rows: Mapping[str, Mapping[str, Any]] = shipped_toml("planner.cli", "options.toml")
    given = {axis.spelled: {"given": axis} for axis in AXES.values()}
    limits = {axis.spelled: {"limited": axis} for axis in AXES.values() if axis.limited}
    return {**rows, "configuration": {**given, **rows["configuration"]}, "degrees": limits}


@cache
def command(name: str) -> click.Command:
    """A click command. The module behind it is imported when the command runs."""
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
    module, _, does = commands()[name].get("does", f"{name}.run").partition(".")
    getattr(importlib.import_module(f"planner.cli.{module}"), does)(**options)


def options_of(group: str) -> list[click.Parameter]:
    return [parameter(spelled, **row) for spelled, row in option_rows()[group].items()]


def names_of(group: str) -> set[str]:
    """The parameter names of a group's options."""
    return {str(one.name) for one in options_of(group)}


def parameter(spelled: str, **row: Any) -> click.Parameter:
    """The click option or argument that a row of the tables declares."""
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
        more["type"] = types.option_type(takes)
    if choices:
        more["type"] = click.Choice(choices)
    if complete:
        more["shell_complete"] = getattr(types, complete)
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
