"""`planner buy`: which GPUs, how many and at which price, for one or several training runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from planner.cli.comparing import (
    begin_study,
    build_limits,
    build_settings,
    comparing_request,
    offers_for,
    searched,
    show_study,
)
from planner.cli.declared import command
from planner.cli.errors import ExitStatus
from planner.cli.options import by_spelling, option_of, option_value
from planner.compare.buying import TrainingRun, buy
from planner.compare.offers import listed_tables
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.report.studies import buying_report

_MOST_JOBS = 32
# Without --gpus and --clusters: all of the catalogue.
EVERY_GPU = ("any",)


def run(**options: Any) -> None:
    shown = begin_study(options)
    limits, settings = build_limits(options), build_settings(options)
    runs, offers = tuple(_runs(options)), offers_for(options, EVERY_GPU)
    buying = searched(
        options, len(offers) * len(runs), buy, runs, offers, limits, settings,
        objective=options["minimise"], order=options["order"], or_owned=options["or_owned"],
    )  # fmt: skip
    show_study(buying, options, shown, buying_report)
    if buying.decision is None or buying.decision.best is None:
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _runs(options: dict[str, Any]) -> Iterator[TrainingRun]:
    """The training runs of the file, or the one of the command line."""
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
    tables = listed_tables(path, "job", "run, with model and tokens")
    if len(tables) > _MOST_JOBS:
        raise UsageError(f"{path}: {len(tables)} jobs; at most {_MOST_JOBS} at a time")
    return tables


def _fields(path: Path, number: int, table: dict[str, Any]) -> dict[str, Any]:
    """The values of a table, as the options of the same names take them."""
    # Options that say what is trained.
    names = {"tokens", *Request.model_fields} - {"gpus", "cluster", "limits"}
    known = by_spelling(one for one in command("buy").params if one.name in names)

    def refuse(_key: str, text: str) -> NoReturn:
        _refuse(path, number, text)

    return {
        str((option := option_of(key, known, refuse)).name): option_value(
            option, key, value, refuse
        )
        for key, value in table.items()
        if key != "name"
    }


def _refuse(path: Path, number: int, text: str) -> NoReturn:
    raise UsageError(f"{path}, [[job]] {number}: {text}")
