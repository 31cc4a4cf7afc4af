"""The `planner` command. Subcommands are loaded when they are called."""

from __future__ import annotations

import difflib
import gc
import itertools
import os
import re
import sys
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from hardware.plain_text import demand_plain
from planner._version import __version__
from planner.cli.declared import command, commands
from planner.cli.errors import DEBUG_VARIABLE, CommandRefusal, ExitStatus, flush_output, refusing
from planner.job.unmodelled import refuse_unmodelled

# The line of each subcommand in `planner --help`.
COMMANDS = {name: str(row["line"]) for name, row in commands().items()}

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_ONE_DASH = re.compile(r"-[^\W\d_][\w-]+")

_STATUSES = "\n".join(f"  {status:3d}  {status.meaning}" for status in ExitStatus)
_EPILOG = f"""\b
Example:
  planner search --model 70b --gpus 64xH100 --gbs-tokens 4M -o plans.json
  planner explain plans.json 1

\b
Exit status of every command:
{_STATUSES}"""


class LazyGroup(click.Group):
    """A click group that imports a subcommand only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Command names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """A subcommand; None for an unknown name."""
        return command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, but suggests close matches for an unknown name."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
            nearest = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(
                f"unknown command {name!r}.{nearest} (commands: {', '.join(COMMANDS)})", ctx
            )
        found, meant, rest = super().resolve_command(ctx, args)
        if meant is not None:
            _demand_two_dashes(meant, rest)
        return found, meant, rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completions for command names, without importing any command."""
        names = [
            CompletionItem(name, help=line)
            for name, line in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names or super().shell_complete(ctx, incomplete)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **more: Any,
    ) -> click.Context:
        """As in click, but every error becomes a `CommandRefusal`."""
        with refusing():
            for before, text in itertools.pairwise(("", *args)):
                _demand_text(text, before)
                if text.startswith("--"):
                    option = text.partition("=")[0]
                    refuse_unmodelled(option, option)
            try:
                return super().make_context(info_name, list(args), parent, **more)
            except click.NoSuchOption as error:
                given = next(text for text in args if text.startswith(error.option_name))
                raise click.UsageError(
                    f"{given} is no option of planner itself (--help lists them); a command's "
                    f"options come after its name: planner search {given} ...",
                    error.ctx,
                ) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. Every error becomes a `CommandRefusal`."""
        with refusing():
            return super().invoke(ctx)


def _demand_two_dashes(command: click.Command, args: list[str]) -> None:
    """Refuse `-model`. Click would complain about `-m`, and would read `-output` as `-o utput`."""
    options = [name for param in command.params for name in param.opts]
    for text in itertools.takewhile(lambda text: text != "--", args):
        name = text.partition("=")[0]
        meant = [f"-{name}"] if f"-{name}" in options else options
        if _ONE_DASH.fullmatch(name) and (meant != options or name[:2] not in options):
            raise click.NoSuchOption(name, possibilities=meant)


# Options whose values are parts of a script and may have several lines.
_SCRIPT_TEXT = ("--env",)


def _demand_text(argument: str, before: str) -> None:
    """Refuse arguments that are not UTF-8 or contain zero bytes or control characters.
    `before`: the argument before this one."""
    if before not in _SCRIPT_TEXT and not argument.startswith(_SCRIPT_TEXT):
        try:
            demand_plain(
                argument, f"the value of {before}" if before[:1] == "-" else "the argument"
            )
        except ValueError as error:
            raise CommandRefusal(str(error), ExitStatus.WRONG_INPUT) from None
    if "\0" in argument or (
        not argument.isascii() and argument != argument.encode(errors="replace").decode()
    ):
        raise CommandRefusal(f"{argument!a}: arguments are text in UTF-8", ExitStatus.WRONG_INPUT)


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="planner", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show a traceback when something unexpected happens.")
@click.option("--no-color", is_flag=True, help="No colours on a terminal (also: NO_COLOR=1).")
@click.pass_context
def planner_command(ctx: click.Context, debug: bool, no_color: bool) -> None:
    """Find how to launch a large-language-model training run: degrees, memory, step time."""
    ctx.obj = {"debug": debug, "no_color": no_color}
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


def main() -> NoReturn:
    """Entry point of the installed script."""
    # Output is an error if stdout was closed beforehand; messages to a closed stderr are not.
    sys.stdout = sys.stdout or _closed(os.O_RDONLY)
    sys.stderr = sys.stderr or _closed(os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        _tolerate_encoding(stream)
    # Nearly all objects that imports create stay until the end, and the garbage collector would
    # take a tenth of a short command's time to look at them.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        planner_command(prog_name="planner")
    except SystemExit as end:
        raise SystemExit(flush_output() or end.code) from None
    except OSError:  # of stderr: no message can be shown
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        raise SystemExit(ExitStatus.FILE_TROUBLE) from None
    raise SystemExit(flush_output())


def _closed(flags: int) -> TextIO:
    """A stand-in for a closed stream. Writing to it fails if `flags` opens it for reading only."""
    return os.fdopen(os.open(os.devnull, flags), "w", encoding="utf-8")


def _tolerate_encoding(stream: TextIO) -> None:
    """Print `?` for ± and × on a terminal without UTF-8, instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
