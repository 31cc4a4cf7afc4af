"""`planner buy`: which GPUs, how many and at which price, for one or several training runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from planner.cli import option_types as types
from planner.cli.comparing import (
    build_limits,
    build_settings,
    comparing_options,
    comparing_request,
    jobs_for,
    limits_for,
    limits_options,
    without,
)
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import output_format
from planner.cli.output import check_output, print_report
from planner.cli.pictures import check_plot, plot_option, write_plot
from planner.cli.progress import compile_if_first_run, watched
from planner.cli.table_options import by_spelling, option_of, option_value
from planner.job.errors import UsageError

if TYPE_CHECKING:
    from planner.compare.buying import Buying, TrainingRun
    from planner.compare.offers import Offer

_MOST_JOBS = 32

_EPILOG = """\b
Jobs in a file (--jobs): a table [[job]] each, with model and tokens, and if
wanted name and any option of the training as planner search has it, without
its dashes: gbs-tokens = "4M", seq = 8192, precision = "fp8". What the file
does not say, the command line does.

\b
Example: planner buy --model 8b --tokens 1T --gpus 64..512xH100 --deadline 30d"""


def _job_options_may_lie_in_a_file(function: Any) -> Any:
    """The shared options with a model that a file may give instead; --jobs names that file."""
    without(function, "jobs")
    for parameter in function.__dict__["__click_params__"]:
        if parameter.name == "model":
            parameter.required = False
    return function


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
    type=click.Choice(["side-by-side", "one-after-another"]),
    default="side-by-side",
    help="Several jobs: each on a cluster at the same time, or all on one in turn.",
)
@click.option(
    "--or-owned",
    is_flag=True,
    help="Each cluster at --price-kind or bought, whichever is cheaper for the run.",
)
@click.option(
    "--processes",
    "jobs",
    type=types.PROCESSES,
    metavar="N",
    help="Searches at a time. [default: by their number]",
)
@plot_option("cost against time")
@limits_options
@_job_options_may_lie_in_a_file
@comparing_options
def command(**options: Any) -> None:
    """Choose clusters for training runs: the cheapest, fastest or leanest that keeps deadline,
    budget and power.

    Every job is searched on every cluster; the choice among them is proven. Exit status 1 if
    nothing keeps the limits: the smallest deadline, budget or power that works is shown.
    """  # fmt: skip
    style = output_format(options["as_json"], options["as_csv"])
    output = check_output(options["output"], options["force"])
    check_plot(options["plot"], options["force"], output)
    limits, settings = build_limits(options), build_settings(options)
    runs, offers = tuple(_runs(options)), _offers(options)
    compile_if_first_run(options["quiet"])

    from planner.compare.buying import buy
    from planner.launch.registry import LAUNCH_NOTES

    with watched(options["quiet"]) as progress:
        buying = buy(
            runs,
            offers,
            limits,
            settings,
            objective=options["minimise"],
            order=options["order"],
            prepare=limits_for(options),
            processes=jobs_for(options, len(offers) * len(runs)),
            seed=options["seed"],
            time_limit_s=options["time_limit"],
            progress=progress,
            launch=LAUNCH_NOTES,
            or_owned=options["or_owned"],
        )
    if output is not None:
        from planner.job.written import write_text

        write_text(output, buying.model_dump_json(indent=1) + "\n")
    _draw(options["plot"], buying)
    _print(buying, style)
    if buying.decision is None or buying.decision.best is None:
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _draw(plot: Path | None, buying: Buying) -> None:
    if plot is None:
        return
    from planner.report.charts.curves import curves_chart
    from planner.report.figures.curves import buying_figure
    from planner.report.pages.studies import buying_page

    write_plot(plot, lambda: curves_chart(buying_figure(buying)), lambda: buying_page(buying))


def _print(buying: Buying, style: str) -> None:
    if style == "json":
        click.echo(buying.model_dump_json(indent=1))
    elif style == "csv":
        click.echo(buying.to_frame().to_csv(index=False), nl=False)
    else:
        from planner.report.buying import buying_report

        print_report(buying_report(buying))


def _offers(options: dict[str, Any]) -> tuple[Offer, ...]:
    from planner.compare.buying import each_size, offers_of
    from planner.compare.offers import read_offers

    offers = offers_of(options["gpus"])
    if options["clusters"] is not None:
        offers += each_size(read_offers(Path(options["clusters"])))
    if not offers:
        raise UsageError(
            "no cluster to choose from: give --gpus 64..512xH100, or --clusters FILE.toml"
        )
    return offers


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
        yield TrainingRun(name, comparing_request(given), given["tokens"])


def _tables(path: Path) -> list[dict[str, Any]]:
    from hardware.files import read_text, toml_content

    document = toml_content(read_text(path), str(path))
    tables = document.pop("job", None)
    listed = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if document or not listed or not tables:
        raise UsageError(f"{path}: write one table [[job]] for each run, with model and tokens")
    if len(tables) > _MOST_JOBS:
        raise UsageError(f"{path}: {len(tables)} jobs; at most {_MOST_JOBS} at a time")
    return list(tables)


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
