"""`planner compare`, `scale`, `buy` and `budget`: clusters compared in days, money and energy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from planner.cli.comparing import (
    begin_study,
    build_limits,
    build_settings,
    comparing_request,
    how,
    offers_for,
    searched,
    show_study,
)
from planner.cli.declared import command
from planner.cli.epochs import given_tokens
from planner.cli.errors import ExitStatus
from planner.cli.options import build_request, by_spelling, option_of, option_value
from planner.cli.output import check_output, compile_if_first_run, print_report, watched
from planner.cli.rl_options import asks_for_rl
from planner.compare.budget import Ask, budget, shape_toml
from planner.compare.buying import BuyRow, TrainingRun, buy
from planner.compare.comparison import BATCHES, compare_clusters, scale
from planner.compare.offers import listed_tables
from planner.compare.results import Comparison, ComparisonRow
from planner.compare.settings import Settings
from planner.job.errors import UsageError, unknown_name
from planner.job.pool import counts_between
from planner.job.request import Request
from planner.job.written import csv_text, write_text
from planner.report.comparison import comparison_report, failure_text, trace, trace_report
from planner.report.studies import budget_report, buying_report, scaling_report


def run_compare(**options: Any) -> None:
    if asks_for_rl(options):
        from planner.cli.rl_clusters import run_clusters

        run_clusters(options)
        return
    shown = begin_study(options)
    offers = offers_for(options)
    settings, limits = build_settings(options), build_limits(options)
    request, tokens = given_tokens(options, comparing_request(options))
    labels, explained = [offer.label for offer in offers], options["explain"]
    # Refuse a misspelt name before the searches, not after them.
    if explained is not None and explained not in labels:
        raise unknown_name("cluster", explained, labels, "--explain takes: " + ", ".join(labels))
    comparison = searched(
        options, len(offers), compare_clusters, request, offers, tokens, settings,
        sort=options["sort"], fallback_precision=options["precision_fallback"], limits=limits,
        objective=options["minimise"],
    )  # fmt: skip
    style, _ = shown
    show_study(comparison, options, shown, None if explained else comparison_report)
    if explained:
        _print_chain(comparison, settings, style, explained)
    if all(row.run is None for row in comparison.rows):
        short = "the job runs on none of the clusters"
        click.echo(f"Error: {short if style == 'text' else failure_text(comparison)}", err=True)
        click.get_current_context().exit(_without_plan(comparison.rows))


def _without_plan(rows: Sequence[ComparisonRow | BuyRow]) -> ExitStatus:
    """Exit status if no cluster has a plan: wrong input if the job was refused on every one."""
    refused = all(row.refused for row in rows)
    return ExitStatus.WRONG_INPUT if rows and refused else ExitStatus.NOTHING_FITS


def _print_chain(comparison: Comparison, settings: Settings, style: str, name: str) -> None:
    row = next(row for row in comparison.rows if row.name == name)
    if row.run is None:
        needs = "".join(f"; would fit (searched): {need}" for need in row.needs[:3])
        raise UsageError(f"{name} has no plan to explain: {row.reason}{needs}")
    chapters = trace(row.run, comparison, settings)
    if style == "text":
        print_report(trace_report(f"{name}: {row.cluster}", chapters))
        return
    steps = [{"chapter": title} | asdict(step) for title, some in chapters.items() for step in some]
    if style == "json":
        click.echo(json.dumps({"cluster": name, "steps": steps}, indent=1, ensure_ascii=False))
    else:
        click.echo(csv_text(steps[0], steps), nl=False)


def run_scale(**options: Any) -> None:
    shown = begin_study(options)
    counts = _counts(options)
    settings, limits = build_settings(options), build_limits(options)
    request = comparing_request(options)

    batch = options["batch"] or ("fixed" if options["batch_ramp"] else "both")
    batches = tuple(one for one in BATCHES if batch in (one, "both"))
    scaling = searched(
        options, len(counts) * len(batches), scale, request, options["gpu"], counts,
        options["tokens"], settings, batches=batches, limits=limits, objective=options["minimise"],
    )  # fmt: skip
    show_study(scaling, options, shown, scaling_report)
    if all(point.run is None for point in scaling.points):
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _counts(options: dict[str, Any]) -> tuple[int, ...]:
    given, first, last = options["counts"], options["first"], options["last"]
    if given is not None:
        if first is not None or last is not None:
            raise UsageError("give --counts, or --from and --to")
        return tuple(given)
    if first is None or last is None:
        raise UsageError("give the numbers of GPUs: --from 512 --to 16384, or --counts 512,768")
    return counts_between(first, last)


_MOST_JOBS = 32
# The clusters if neither --gpus nor --clusters is given: the whole catalogue or, for samples, which
# are few, up to one node.
EVERY_GPU = ("any",)
A_NODE_OF_EACH = ("1..8xany",)
# Fewer for reinforcement learning, because its searches take longer.
RL_SIZES = ("8..64xH100", "8..64xH200", "8..64xA100")


def run_buy(**options: Any) -> None:
    if asks_for_rl(options):
        from planner.cli.rl_clusters import run_clusters

        run_clusters(options, RL_SIZES)
        return
    shown = begin_study(options)
    limits, settings = build_limits(options), build_settings(options)
    runs, offers = (
        tuple(_runs(options)),
        offers_for(options, A_NODE_OF_EACH if options["samples"] else EVERY_GPU),
    )
    buying = searched(
        options, len(offers) * len(runs), buy, runs, offers, limits, settings,
        objective=options["minimise"], order=options["order"], or_owned=options["or_owned"],
    )  # fmt: skip
    show_study(buying, options, shown, buying_report)
    if buying.decision is None or buying.decision.best is None:
        click.get_current_context().exit(_without_plan(buying.rows))


def _runs(options: dict[str, Any]) -> Iterator[TrainingRun]:
    if options["jobs_file"] is None:
        if options["model"] is None or (options["tokens"], options["samples"]) == (None, None):
            raise UsageError("give --model 70b --tokens 15T, or several jobs by --jobs FILE.toml")
        yield TrainingRun(options["model"], *given_tokens(options, comparing_request(options)))
        return
    path = Path(options["jobs_file"])
    names: set[str] = set()
    for number, table in enumerate(_tables(path), start=1):
        given = options | _fields(path, number, table)
        if given["model"] is None or (given["tokens"], given["samples"]) == (None, None):
            _refuse(path, number, "give model = '70b' and tokens = '15T'")
        name = str(table.get("name", given["model"]))
        if name in names:
            _refuse(path, number, f"two jobs are called {name!r}; give each a name")
        names.add(name)
        yield TrainingRun(name, *_request(given, path, number))


def _request(given: dict[str, Any], path: Path, number: int) -> tuple[Request, int]:
    """The request and tokens of one table of the file. Errors name the table."""
    try:
        request = comparing_request(given)
        request.find_model()
        request.find_framework()
        return given_tokens(given, request)
    except UsageError as error:
        _refuse(path, number, str(error))


def _tables(path: Path) -> list[dict[str, Any]]:
    tables = listed_tables(path, "job", "run_buy, with model and tokens")
    if len(tables) > _MOST_JOBS:
        raise UsageError(f"{path}: {len(tables)} jobs; at most {_MOST_JOBS} at a time")
    return tables


def _fields(path: Path, number: int, table: dict[str, Any]) -> dict[str, Any]:
    """The values of a table, converted in the same way as the options with these names."""
    # Options that describe the model and data to train.
    names = {"tokens", "samples", "epochs", *Request.model_fields} - {"gpus", "cluster", "limits"}
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


# Placeholder for the request's model until its size is known.
_ANY = "llama-3-8b"


def run_budget(**options: Any) -> None:
    shown = begin_study(options)
    model_file = _model_file(options)
    settings = build_settings(options)
    base = options | {"model": options["model"] or _ANY, "gpus": None, "cluster": None}
    request = build_request(base, recompute=options["recompute"])
    names = ("flops", "days", "gpus", "parameters", "model", "tokens")
    ask = Ask(**{name: options[name] for name in names})
    if options["gpus"] is not None:
        compile_if_first_run(options["quiet"])
    with watched(options["quiet"]) as progress:
        found = budget(request, ask, settings, how=how(options, progress))
    if model_file is not None and found.shape is not None:
        write_text(model_file, shape_toml(found.shape), force=options["force"])
    show_study(found, options, shown, budget_report)


def _model_file(options: dict[str, Any]) -> Path | None:
    if options["save_model"] is None:
        return None
    if options["model"] is not None:
        raise UsageError("--save-model: --model names a model already; give --params, or neither")
    if not options["save_model"].endswith(".toml"):
        raise UsageError(f"--save-model {options['save_model']!r}: the name must end in .toml")
    return check_output(options["save_model"], options["force"])
