"""Report of `planner tune`: trials as predicted and as measured, and the plan to take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from planner.job.quantities import (
    HOUR_S,
    gib,
    percent_sure,
    plural,
    seconds,
    share,
    short_count,
    signed_share,
)
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table
from planner.tune.journal import TELLING
from planner.tune.loop import Next
from planner.tune.outcome import TriedPlan, TunedStudy

NONE = "–"


@as_report
def tune_report(study: TunedStudy, folder: Path | None) -> Iterator[Block]:
    """The trials of a study and what to do next. `folder`: the study's folder."""
    yield Facts(tuple(_facts(study)))
    if study.trials:
        yield trials_table(study.trials)
        untold = [one for one in study.trials if one.measured_s is None]
        if untold:
            lines = tuple(f"{one.number}: {one.learnt}" for one in untold)
            yield Notes(lines, "Trials without a step time")
    told = (take_text(study), _ended(study))
    # Trouble is reported before the result known so far.
    first = told[::-1] if study.reason in ("setup", "failures") else told
    yield Notes((*first, *_notes(study)))
    if folder is not None:
        yield Notes(tuple(_next(study, folder)), "Next")


def _facts(study: TunedStudy) -> Iterator[tuple[str, str]]:
    yield "model", study.model
    yield "cluster", f"{study.num_gpus:,} × {study.gpu}, by {study.runs_on}"
    yield "framework", study.framework
    yield "rest", f"{short_count(study.tokens)} tokens"
    yield "spent", f"{study.spent_gpu_hours:.2f} GPU-hours in {plural(len(study.trials), 'trial')}"


def trials_table(trials: Sequence[TriedPlan]) -> TableData:
    """One row for each trial."""
    titles = (
        "# | ~plan | ~configuration | GPUs | predicted | measured | off | peak GiB | <outcome | "
        "GPU-h"
    )
    return table(titles, (_row(one) for one in trials), "Trials")


def _row(one: TriedPlan) -> tuple[str, ...]:
    measured, off = NONE, NONE
    if one.measured_s is not None:
        bar = f" ±{share(one.relative_sd)}" if one.relative_sd is not None else ""
        measured = f"{seconds(one.measured_s)}{bar}"
        off = signed_share(one.predicted_s / one.measured_s - 1.0)
    predicted_gib = NONE if one.predicted_peak_bytes is None else gib(one.predicted_peak_bytes)
    peak = NONE if one.peak_bytes is None else gib(one.peak_bytes)
    return (
        str(one.number), one.name, one.plan, f"{one.gpus:,}", seconds(one.predicted_s),
        measured, off, f"{predicted_gib} → {peak}", (one.outcome or "open").replace("-", " "),
        f"{one.gpu_hours:.2f}",
    )  # fmt: skip


def take_text(study: TunedStudy) -> str:
    """The recommended plan, as the last line of a report."""
    return f"→ {best_text(study)}"


def best_text(study: TunedStudy) -> str:
    """The recommended plan, in a sentence."""
    sure = percent_sure(study.best_probability)
    return (
        f"Take {study.best_name} ({study.best}): {seconds(study.best_s)} a step as far as is "
        f"known now, {sure} sure to be the fastest."
    )


def why_text(study: TunedStudy) -> str:
    """Why the study ended or goes on, without the plan to take, which `best_text` names."""
    return re.sub(r"[^;]* is the fastest with (?:over )?\d+ %; ", "", study.sentence).strip()


def _ended(study: TunedStudy) -> str:
    going_on = study.reason == "running"
    return f"The study {'goes on' if going_on else 'ended'}: {why_text(study)}."


def _notes(study: TunedStudy) -> Iterator[str]:
    if any(one.measured_s is not None for one in study.trials):
        yield (
            "predicted: before the trial. measured: median of the steps after warm-up, ± its "
            "standard error. off: how much longer or shorter the prediction is than measured. "
            "peak: predicted total → as the log counts it."
        )
    yield from study.notes


def _next(study: TunedStudy, folder: Path) -> Iterator[str]:
    study_folder = shlex.quote(str(folder))
    if study.cluster_file:
        cluster = shlex.quote(str(folder / study.cluster_file))
        yield (f"planner search --cluster {cluster} ...: search with the results of these runs")
    untold = [one.number for one in study.trials if one.outcome not in (None, *TELLING)]
    if untold:
        yield f"{folder / 'trials'}/{untold[-1]:03d}/: the last trial without a result"
    yield f"planner report {study_folder} -o study.html: the study as a page"
    yield f"planner tune --resume {study_folder} --trials N: go on"


@as_report
def dry_run_report(trials: Sequence[Next], names: Mapping[str, str], note: str) -> Iterator[Block]:
    """The trials that would run. `names`: names of plans by key."""
    rows = [
        (
            str(number), names[one.key], one.key, f"{one.saves_gpu_s / HOUR_S:,.2f}",
            f"{one.costs_gpu_s / HOUR_S:,.2f}",
        )
        for number, one in enumerate(trials, start=1)
        if one.key is not None
    ]  # fmt: skip
    titles = "# | ~plan | ~configuration | saves GPU-h | costs GPU-h"
    if rows:
        yield table(titles, rows, "Trials that would run if each result were as predicted")
    yield Notes((*(one.sentence for one in trials if one.key is None), note))
