"""`planner buy`: which GPUs, how many and at which price, for one or several training runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from planner.cli import option_types as types
from planner.cli.comparing import (
    begin_study,
    build_limits,
    build_settings,
    comparing_options,
    comparing_request,
    how,
    limits_options,
    offers_for,
    processes_option,
    show_study,
)
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import model_option
from planner.cli.output import plot_option
from planner.cli.progress import compile_if_first_run, watched
from planner.cli.table_options import by_spelling, option_of, option_value
from planner.job.errors import UsageError

if TYPE_CHECKING:
    from planner.compare.buying import TrainingRun
    from planner.job.request import Request

_MOST_JOBS = 32

_EPILOG = """\b
Jobs in a file (--jobs): a table [[job]] each, with model and tokens, and if
wanted name and any option of the training as planner search has it, without
its dashes: gbs-tokens = "4M", seq = 8192, precision = "fp8". What the file
does not say, the command line does.

\b
Example: planner buy --model 8b --tokens 1T --gpus 64..512xH100 --deadline 30d"""


@click.command("buy", cls=GroupedCommand, epilog=_EPILOG)
@click.option(
    "--jobs",
    "jobs_file",
    type=types.FILE,
    metavar="FILE.toml",
    help="Several training runs: see below.",
)
@click.option("--tokens", type=types.TRAINED_TOKENS, help="Tokens to train on: 15T.")
@click.option(
    "--gpus",
    multiple=True,
    metavar="64..512xH100",
    help="Sizes to choose from, doubled from the first to the last; may be given again; "
    "64..512xany: every GPU of the catalogue.",
)
@click.option(
    "--clusters",
    type=types.FILE,
    metavar="FILE.toml",
    help="Offers in a file, as planner compare reads them.",
)
@click.option(
    "--order",
    type=click.Choice(["side-by-side", "one-after-another", "mixed"]),
    default="side-by-side",
    help="Several jobs: each on a cluster at the same time, all on one in turn, or on several "
    "clusters, some in turn.",
)
@click.option(
    "--or-owned",
    is_flag=True,
    help="Each cluster at --price-kind or bought, whichever is cheaper for the run.",
)
@processes_option("--processes")
@plot_option("cost against time")
@limits_options
@model_option(required=False)
@comparing_options
def command(**options: Any) -> None:
    """Choose clusters for training runs: the cheapest, fastest or leanest that keeps deadline,
    budget and power.

    Every job is searched on every cluster; the choice among them is proven. Exit status 1 if
    nothing keeps the limits: the smallest deadline, budget or power that works is shown.
    """  # fmt: skip
    style, output = begin_study(options)
    limits, settings = build_limits(options), build_settings(options)
    runs, offers = tuple(_runs(options)), offers_for(options)
    compile_if_first_run(options["quiet"])

    from planner.compare.buying import buy
    from planner.report.buying import buying_report

    with watched(options["quiet"]) as progress:
        buying = buy(
            runs,
            offers,
            limits,
            settings,
            objective=options["minimise"],
            order=options["order"],
            or_owned=options["or_owned"],
            how=how(options, progress, len(offers) * len(runs)),
        )
    show_study(buying, options, style, output, buying_report)
    if buying.decision is None or buying.decision.best is None:
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _runs(options: dict[str, Any]) -> Iterator[TrainingRun]:
    """The training runs of the file, or the one of the command line."""
    from planner.compare.buying import TrainingRun

    if options["jobs_file"] is None:
        if options["model"] is None or options["tokens"] is None:
            raise UsageError("give --model 70b --tokens 15T, or several jobs by --jobs FILE.toml")
        yield TrainingRun(options["model"], comparing_request(options), options["tokens"])
        return
    path = Path(options["jobs_file"])
    names: set[str] = set()
    for number, table in enumerate(_tables(path), start=1):
        given = options | _fields(path, number, table)
        if given["model"] is None or given["tokens"] is None:
            _refuse(path, number, "give model = '70b' and tokens = '15T'")
        name = str(table.get("name", given["model"]))
        if name in names:
            _refuse(path, number, f"two jobs are called {name!r}; give each a name")
        names.add(name)
        yield TrainingRun(name, _request(given, path, number), given["tokens"])


def _request(given: dict[str, Any], path: Path, number: int) -> Request:
    """What a table of the file asks for; a name that nobody knows is said with its place."""
    try:
        request = comparing_request(given)
        request.find_model()
        request.find_framework()
    except UsageError as error:
        _refuse(path, number, str(error))
    return request


def _tables(path: Path) -> list[dict[str, Any]]:
    from planner.compare.offers import listed_tables

    tables = listed_tables(path, "job", "run, with model and tokens")
    if len(tables) > _MOST_JOBS:
        raise UsageError(f"{path}: {len(tables)} jobs; at most {_MOST_JOBS} at a time")
    return tables


def _fields(path: Path, number: int, table: dict[str, Any]) -> dict[str, Any]:
    """The values of a table, as the options of the same names take them."""
    known = by_spelling(one for one in command.params if one.name in _job_options())

    def refuse(_key: str, text: str) -> NoReturn:
        _refuse(path, number, text)

    return {
        str((option := option_of(key, known, refuse)).name): option_value(
            option, key, value, refuse
        )
        for key, value in table.items()
        if key != "name"
    }


def _job_options() -> set[str]:
    """Options that say what is trained."""
    from planner.job.request import Request

    return {"tokens", *Request.model_fields} - {"gpus", "cluster", "limits"}


def _refuse(path: Path, number: int, text: str) -> NoReturn:
    raise UsageError(f"{path}, [[job]] {number}: {text}")
