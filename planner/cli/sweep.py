"""`planner sweep`: a search at every point of a grid. It can be resumed, and several machines can
share it."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import click

from hardware.files import read_text, toml_content
from planner.cli.comparing import build_settings, comparing_request, offers_for
from planner.cli.declared import command, names_of
from planner.cli.errors import ExitStatus
from planner.cli.options import by_spelling, option_of, option_value, output_format
from planner.cli.output import compile_if_first_run, show, watched
from planner.compare.comparison import check_tokens
from planner.compare.offers import Offer, demand_distinct
from planner.compare.sweep.journal import (
    Journal,
    columns,
    opened,
    read_only,
    refuse_results,
    rows,
    write,
)
from planner.compare.sweep.run import SearchCounts, count, header, started
from planner.compare.sweep.run import run as search_grid
from planner.compare.sweep.work import Common, Grid, Pricing, Value, check_grid, merged
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.job.written import write_csv
from planner.job.written_folder import refuse_folder
from planner.launch.plans import LAUNCH_NOTES
from planner.report.sweep import sweep_document, sweep_report

MOST_SEARCHES = 10_000_000
# Axes that every sweep has.
_MODEL, _CLUSTER = "model", "cluster"
_TOKENS = "tokens"


def run(**options: Any) -> None:
    style = output_format(options["as_json"], options["as_csv"])
    path = Path(options["file"])
    folder = Path(options["output"]) if options["output"] else path.with_suffix(".sweep")
    if options["runs_on"] == "local" and options["address"]:
        raise UsageError(f"--address {options['address']}: give --engine ray or dask with it")
    refuse_folder(folder, force=True)
    grid = _grid(path)
    if options["report"]:
        told = _print(grid, read_only(folder, path), style)
    else:
        refuse_results(folder)
        with opened(folder, anew=options["force"]) as journal:
            _run(grid, journal, folder, options)
            told = _print(grid, journal, style)
    if told.failed or (told.left and not options["report"]):
        click.get_current_context().exit(ExitStatus.CANNOT_TELL)


def _run(grid: Grid, journal: Journal, folder: Path, options: dict[str, Any]) -> None:
    """Search the points that are not yet done; write the tables, even after Ctrl-C."""
    journal.begin(head := header(date.today()))
    # The prices' ages refer to the day when the sweep began.
    grid = grid.on(date.fromisoformat(str(journal.header["today"])))
    if options["runs_on"] == "local":
        compile_if_first_run(options["quiet"])
    common = Common(grid.pricings, LAUNCH_NOTES, head["planner"], head["sources"])
    processes = options["processes"] or os.cpu_count() or 1
    kept = f"what is done is kept in {folder}; the same command goes on from there"
    try:
        with (
            watched(options["quiet"], kept) as progress,
            started(
                options["runs_on"], common, address=options["address"], processes=processes
            ) as engine,
        ):
            search_grid(grid, journal, engine, progress, options["time_limit"])
    except KeyboardInterrupt:
        write(grid, journal, folder)
        raise
    write(grid, journal, folder)


def _print(grid: Grid, journal: Journal, style: str) -> SearchCounts:
    """Print the rows or the progress. Returns the counts."""
    counted = count(grid, journal)
    if style == "csv":
        write_csv(sys.stdout, columns(grid), rows(grid, journal))
    else:
        told = grid, journal, counted
        show(style == "json", lambda: sweep_document(*told), lambda: sweep_report(*told))
    return counted


class _File:
    """The tables of a sweep file. Errors name the line."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, read_text(path)
        self.fixed = toml_content(self.text, str(path))
        self.grid = self.fixed.pop("grid", {})
        if not isinstance(self.grid, dict):
            self.refuse("grid", "write a table [grid] of lists")
        for key, values in self.grid.items():
            if not isinstance(values, list) or not values:
                self.refuse(key, f"{key}: a list with at least one value, as {key} = [...]")
        given: set[str] = set()
        for key in (*self.fixed, *self.grid):
            name = key.replace("_", "-")
            if name in given:
                self.refuse(key, f"{key} is given twice; leave one of them out")
            given.add(name)
        if {"gbs", "gbs-tokens"} <= given:
            self.refuse("gbs", "gbs and gbs-tokens both say the batch; leave one of them out")

    def refuse(self, key: str, text: str) -> NoReturn:
        """Raise a UsageError that names the last line in which the field occurs, because [grid]
        comes last."""
        spelled = re.compile(rf"^\s*\[?[\"']?{re.escape(key)}[\"']?\s*[\]=]")
        lines = [
            number
            for number, line in enumerate(self.text.splitlines(), start=1)
            if spelled.match(line)
        ]
        raise UsageError(f"{self.path}, line {lines[-1] if lines else 1}: {text}")


def _grid(path: Path) -> Grid:
    """The grid that a file describes. Raises UsageError with file and line."""
    file = _File(path)
    job, money = _parameters()
    known = job | money
    # The defaults of planner compare.
    with command("compare").make_context("compare", [], resilient_parsing=True) as context:
        defaults = dict(context.params) | _fixed(file, known)
    axes: dict[str, tuple[Value, ...]] = {}
    prices: dict[str, tuple[Value, ...]] = {}
    for key, values in file.grid.items():
        if key == "gpus":
            axes[_CLUSTER] = ()  # its place among the axes
        elif key.replace("_", "-") in money:
            prices[key] = _values(file, key, values, known)
        else:
            axes[key] = _values(file, key, values, known)
    if _MODEL not in axes:
        if defaults["model"] is None:
            file.refuse("model", 'give model = "70b", or a list of models in [grid]')
        axes = {_MODEL: ((defaults["model"], {"model": defaults["model"]}),)} | axes
    axes[_CLUSTER] = _clusters(file)

    def build(chosen: Mapping[str, Any]) -> tuple[Request, Offer]:
        return comparing_request({**defaults, **chosen}), chosen["offer"]

    pricings = _pricings(file, defaults, prices)
    fixed = {key: value for key, value in file.fixed.items() if key not in ("gpus", "clusters")}
    text = repr((sorted(fixed.items()), _hashes(fixed.values()), [one.text for one in pricings]))
    grid = Grid(axes, tuple(prices), pricings, build, text)
    if len(grid) > MOST_SEARCHES:
        raise UsageError(f"{path}: {len(grid):,} searches; at most {MOST_SEARCHES:,} at a time")
    check_grid(grid)
    return grid


def _parameters() -> tuple[dict[str, click.Parameter], ...]:
    """Options of planner compare that change the search, and those that only change the money."""
    money = names_of("money") | {_TOKENS}
    job = names_of("training") | names_of("conditions") | {"model", "recompute"}
    every = command("compare").params
    return tuple(by_spelling(one for one in every if one.name in some) for some in (job, money))


def _fixed(file: _File, known: dict[str, click.Parameter]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in file.fixed.items():
        if key not in ("gpus", "clusters"):
            option = option_of(key, known, file.refuse)
            found[str(option.name)] = _located(option_value(option, key, value, file.refuse))
    return found


def _located(value: Any) -> Any:
    """The absolute path if the value names a file, as workers may run in another folder."""
    is_file = isinstance(value, str) and Path(value).is_file()
    return str(Path(value).resolve()) if is_file else value


def _values(
    file: _File, key: str, values: list[Any], known: dict[str, click.Parameter]
) -> tuple[Value, ...]:
    """The values of an axis. Raises UsageError if one is repeated."""
    option = option_of(key, known, file.refuse)
    found: dict[Any, Value] = {}
    for value in values:
        converted = _located(option_value(option, key, value, file.refuse))
        if converted in found:
            file.refuse(key, f"{key}: {value} is given twice")
        label = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        found[converted] = label, {str(option.name): converted, **_hashes([label])}
    return tuple(found.values())


def _hashes(values: Any) -> dict[str, str]:
    """Hashes of the files among the values, so that a changed file starts another search."""
    return {
        f"content of {value}": hashlib.sha256(read_text(Path(value)).encode()).hexdigest()
        for value in values
        if isinstance(value, str) and Path(value).is_file()
    }


def _clusters(file: _File) -> tuple[Value, ...]:
    texts = file.grid.get("gpus", file.fixed.get("gpus", []))
    name = file.fixed.get("clusters")
    offers = offers_for(
        {
            "gpus": map(str, texts if isinstance(texts, list) else [texts]),
            "clusters": name and file.path.resolve().parent / str(name),
        }
    )
    demand_distinct(offers)
    return tuple((offer.label, {"offer": offer} | _hashes([offer.cluster])) for offer in offers)


def _pricings(
    file: _File, defaults: dict[str, Any], prices: dict[str, tuple[Value, ...]]
) -> tuple[Pricing, ...]:
    found = []
    for values in product(*prices.values()):
        options = defaults | {"quiet": True} | merged(values)
        if options[_TOKENS] is None:
            file.refuse(_TOKENS, 'give tokens = "1T", or a list in [grid]')
        check_tokens(options[_TOKENS])
        labels = tuple(label for label, _ in values)
        found.append(Pricing(labels, options[_TOKENS], build_settings(options)))
    return tuple(found)
