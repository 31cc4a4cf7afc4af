"""Predicted against measured: errors by family."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from planner.measured.predict import Prediction


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of one figure over one family. Shares, not percent; `bias` is the median signed."""

    rows: int
    median: float
    mean: float
    p90: float
    worst: float
    bias: float


@dataclass(frozen=True, slots=True)
class FitConfusion:
    """Fit against out-of-memory, over rows whose source says which happened."""

    ran: int
    ran_predicted_not_to_fit: int
    out_of_memory: int
    out_of_memory_predicted_to_fit: int


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """Everything measured about one family of rows."""

    family: str
    rows: int
    refused: int
    time: ErrorSummary | None
    memory: ErrorSummary | None
    fit: FitConfusion


def time_error(prediction: Prediction) -> float | None:
    """Signed relative error of the step time, None where not measured or predicted."""
    return _relative(prediction.step_time_s, prediction.row.number("step_time_s"))


def memory_error(prediction: Prediction) -> float | None:
    """Signed relative error of the peak memory of the kind and stage that the row measured."""
    measured = prediction.row.number("peak_mem_gib")
    predicted = prediction.memory_bytes(
        prediction.row.text("mem_kind"), prediction.row.text("mem_scope")
    )
    return _relative(predicted, measured * 2**30 if measured else None)


def _relative(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or not measured:
        return None
    return predicted / measured - 1.0


def summarise(errors: Sequence[float]) -> ErrorSummary | None:
    """Summary of signed relative errors; None without any."""
    if not errors:
        return None
    sizes = sorted(abs(error) for error in errors)
    index = min(len(sizes) - 1, math.ceil(0.9 * len(sizes)) - 1)
    return ErrorSummary(
        len(sizes), median(sizes), fmean(sizes), sizes[index], sizes[-1], median(errors)
    )


def fit_confusion(predictions: Iterable[Prediction]) -> FitConfusion:
    """How often the fit was called wrong, each way; rows that do not state what they recompute
    say nothing about the fit."""
    ran = ran_wrong = oom = oom_wrong = 0
    for prediction in predictions:
        peak, limit = prediction.memory_bytes(), prediction.limit_bytes
        stated = prediction.row.text("oom")
        if peak is None or limit is None or stated not in ("0", "1", "0.0", "1.0"):
            continue
        if prediction.row.text("recompute") is None:
            continue
        fits = peak <= limit
        if stated.startswith("1"):
            oom += 1
            oom_wrong += fits
        else:
            ran += 1
            ran_wrong += not fits
    return FitConfusion(ran, ran_wrong, oom, oom_wrong)


def report(
    predictions: Iterable[Prediction], family: Callable[[Prediction], str]
) -> list[FamilyReport]:
    """One report per family, in order of first appearance."""
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        groups[family(prediction)].append(prediction)
    return [_family_report(name, members) for name, members in groups.items()]


def _family_report(name: str, members: Sequence[Prediction]) -> FamilyReport:
    times = [error for member in members if (error := time_error(member)) is not None]
    memories = [error for member in members if (error := memory_error(member)) is not None]
    return FamilyReport(
        family=name,
        rows=len(members),
        refused=sum(member.error is not None for member in members),
        time=summarise(times),
        memory=summarise(memories),
        fit=fit_confusion(members),
    )
