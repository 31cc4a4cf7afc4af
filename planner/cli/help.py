"""Options of a command by group: `--help` shows those that matter first, `--help-all` all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from constraints.axes import AXES
from hardware.files import shipped_toml

# Title -> names of options, in the order of the help. What no group has is under "Other".
_ROWS = shipped_toml("planner.cli", "options.toml")
GROUPS: Mapping[str, Any] = {
    title: [name for one in names for name in (AXES if one == "axes" else (one,))]
    for title, names in _ROWS["help"].items()
}
OTHER = "Other"
# What `--help` shows of a command with more options than anyone reads.
FIRST = frozenset(_ROWS["first"]["names"])


class GroupedCommand(click.Command):
    """A command with many options. `first`: names that `--help` shows beside those of `FIRST`."""

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
        """The options that matter first, by group; all of them after `--help-all`."""
        whole = bool(ctx.meta.get(_ALL))
        for title, options in grouped(self, ctx).items():
            shown = [option for option in options if whole or option.name in self.first]
            if rows := [row for option in shown if (row := help_row(option, ctx))]:
                with formatter.section(title):
                    formatter.write_dl(rows)


# `[1<=x<=1048576]`, or behind a default `; 1<=x<=1048576`.
_RANGE = re.compile(
    r"\s*\[[-+e\d.]*(<=?x|x>=?)(<=?)?[-+e\d.]*\]|; [-+e\d.]*(<=?x|x>=?)(<=?)?[-+e\d.]*"
)


def help_row(option: click.Option, ctx: click.Context) -> tuple[str, str] | None:
    """An option and its words, without ranges of numbers: an error tells them who needs them."""
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
    """The options of a command by title, in the order of `GROUPS`; `--help` itself left out."""
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
