"""`planner sweep`: one search at every point of a grid, resumable, on one machine or a cluster."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from datetime import date
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from planner.cli import option_types as types
from planner.cli.comparing import build_settings, comparing_request, money_options, offers_for
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import (
    condition_options,
    output_format,
    time_limit_option,
    training_options,
)
from planner.cli.output import show
from planner.cli.progress import compile_if_first_run, watched
from planner.cli.table_options import by_spelling, option_of, option_value
from planner.job.errors import UsageError
from planner.job.written import write_csv

if TYPE_CHECKING:
    from planner.compare.offers import Offer
    from planner.compare.sweep.grid import Grid, Pricing, Value
    from planner.compare.sweep.journal import Journal
    from planner.compare.sweep.run import Count
    from planner.job.request import Request

MOST_SEARCHES = 10_000_000
# Axes that every sweep has.
_MODEL, _CLUSTER = "model", "cluster"
_TOKENS = "tokens"

_EPILOG = """\b
The file: options of planner compare without their dashes, such as
tokens = "1T" and framework = "torchtitan", and clusters = "OFFERS.toml";
then a table [grid] of lists, of which every combination is searched:

\b
  [grid]
  model = ["8b", "70b"]
  gpus = ["64..512xH100", "64xB200"]
  gbs-tokens = ["2M", "4M"]
  seq = [4096, 8192]
  price-kind = ["on_demand", "spot"]

\b
The same command goes on where it was stopped, and tries again what failed.
Exit status 3 if some failed; --report says why.

\b
Example: planner sweep grid.toml --processes 8"""


@click.command("sweep", cls=GroupedCommand, epilog=_EPILOG)
@click.argument("file", type=types.FILE, metavar="FILE.toml")
@click.option(
    "-o", "--output", type=types.FILE, metavar="DIR",
    help="Folder of the results. [default: beside the file, FILE.sweep]",
)  # fmt: skip
@click.option("--report", is_flag=True, help="Search nothing; say what is done, failed and left.")
@click.option(
    "--engine", "runs_on", type=click.Choice(["local", "ray", "dask"]), default="local",
    help="Processes of this machine, or your Ray or Dask cluster.",
)  # fmt: skip
@click.option("--address", metavar="HOST:PORT", help="Of the cluster of --engine.")
@click.option(
    "--processes", type=types.PROCESSES, metavar="N",
    help="Searches at a time on this machine. [default: its processors]",
)  # fmt: skip
@time_limit_option(
    "After it no further search begins; those that run end, and the same command goes on."
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON, nothing else.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows.")
@click.option("--force", is_flag=True, help="Start anew; what is in the folder is lost.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def command(**options: Any) -> None:
    """Search a grid of models, clusters, batches, sequences and prices; results in Parquet."""
    from planner.compare.sweep.journal import opened, read_only

    style = output_format(options["as_json"], options["as_csv"])
    path = Path(options["file"])
    folder = Path(options["output"]) if options["output"] else path.with_suffix(".sweep")
    if options["runs_on"] == "local" and options["address"]:
        raise UsageError(f"--address {options['address']}: give --engine ray or dask with it")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give the name of a folder to -o")
    grid = _grid(path)
    if options["report"]:
        told = _print(grid, read_only(folder, path), style)
    else:
        with opened(folder, anew=options["force"]) as journal:
            _run(grid, journal, folder, options)
            told = _print(grid, journal, style)
    if told.failed or (told.left and not options["report"]):
        click.get_current_context().exit(ExitStatus.CANNOT_TELL)


def _run(grid: Grid, journal: Journal, folder: Path, options: dict[str, Any]) -> None:
    """Search what is not done; write the tables, also after Ctrl-C."""
    from planner.compare.sweep.engines import started
    from planner.compare.sweep.results import demand_arrow, write
    from planner.compare.sweep.run import header, run
    from planner.compare.sweep.work import Common
    from planner.launch.plans import LAUNCH_NOTES

    demand_arrow()
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
            run(grid, journal, engine, progress, options["time_limit"])
    except KeyboardInterrupt:
        write(grid, journal, folder)
        raise
    write(grid, journal, folder)


def _print(grid: Grid, journal: Journal, style: str) -> Count:
    """The rows, or how far the sweep is, which is returned."""
    from planner.compare.sweep.run import count

    counted = count(grid, journal)
    if style == "csv":
        from planner.compare.sweep.results import columns, rows

        write_csv(sys.stdout, columns(grid), rows(grid, journal))
    else:
        from planner.report.sweep import sweep_document, sweep_report

        told = grid, journal, counted
        show(style == "json", lambda: sweep_document(*told), lambda: sweep_report(*told))
    return counted


class _File:
    """The tables of a sweep file; what is wrong with them is told with the line."""

    def __init__(self, path: Path) -> None:
        from hardware.files import read_text, toml_content

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
        """UsageError with the last line where a field begins: the table [grid] is at the end."""
        spelled = re.compile(rf"^\s*\[?[\"']?{re.escape(key)}[\"']?\s*[\]=]")
        lines = [
            number
            for number, line in enumerate(self.text.splitlines(), start=1)
            if spelled.match(line)
        ]
        raise UsageError(f"{self.path}, line {lines[-1] if lines else 1}: {text}")


def _grid(path: Path) -> Grid:
    """The grid of a file. UsageError with file and line."""
    from planner.compare.sweep.grid import Grid, check

    file = _File(path)
    job, money = _parameters()
    known = job | money
    defaults = _defaults() | _fixed(file, known)
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
    check(grid)
    return grid


def _parameters() -> tuple[dict[str, click.Parameter], dict[str, click.Parameter]]:
    """Options of planner compare that say what is searched, and those that turn it into money."""
    from planner.cli.compare import command as compare

    def declared(decorate: Any) -> set[str]:
        return {str(one.name) for one in decorate(lambda: None).__dict__["__click_params__"]}

    money = declared(money_options) | {_TOKENS}
    job = declared(training_options) | declared(condition_options) | {"model", "recompute"}
    return (
        by_spelling(one for one in compare.params if one.name in job),
        by_spelling(one for one in compare.params if one.name in money),
    )


def _defaults() -> dict[str, Any]:
    """What planner compare takes where nobody says anything."""
    from planner.cli.compare import command as compare

    with compare.make_context("compare", [], resilient_parsing=True) as context:
        return dict(context.params)


def _fixed(file: _File, known: dict[str, click.Parameter]) -> dict[str, Any]:
    """Options outside [grid], by the names that commands give them."""
    found: dict[str, Any] = {}
    for key, value in file.fixed.items():
        if key not in ("gpus", "clusters"):
            option = option_of(key, known, file.refuse)
            found[str(option.name)] = _located(option_value(option, key, value, file.refuse))
    return found


def _located(value: Any) -> Any:
    """The name of a file as it is called everywhere: workers may run in another folder."""
    is_file = isinstance(value, str) and Path(value).is_file()
    return str(Path(value).resolve()) if is_file else value


def _values(
    file: _File, key: str, values: list[Any], known: dict[str, click.Parameter]
) -> tuple[Value, ...]:
    """The values of an axis, each different from the others."""
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
    """Hash of each file among some values: with another content it is another search."""
    from hardware.files import read_text

    return {
        f"content of {value}": hashlib.sha256(read_text(Path(value)).encode()).hexdigest()
        for value in values
        if isinstance(value, str) and Path(value).is_file()
    }


def _clusters(file: _File) -> tuple[Value, ...]:
    """The clusters of `gpus` and of the file that `clusters` names."""
    from planner.compare.offers import demand_distinct

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
    """Every combination of prices and tokens."""
    from planner.compare.comparison import check_tokens
    from planner.compare.sweep.grid import Pricing, merged

    found = []
    for values in product(*prices.values()):
        options = defaults | {"quiet": True} | merged(values)
        if options[_TOKENS] is None:
            file.refuse(_TOKENS, 'give tokens = "1T", or a list in [grid]')
        check_tokens(options[_TOKENS])
        labels = tuple(label for label, _ in values)
        found.append(Pricing(labels, options[_TOKENS], build_settings(options)))
    return tuple(found)
