"""Refit of how surely one plan is faster than another, on pairs of measured runs of one source.

    python -m tests.fit.difference_fit [RUNS.csv|FOLDER ...] >
    planner/predict/uncertainty/differences.toml

`planner.predict.uncertainty.differences` says how the file is read. A pair is two runs of one
source that agree in model, sequence length, precision, framework and its version, optimizer and
fabric; in GPU, number of GPUs and batch, too, where it tells of plans of one cluster. Runs are
predicted with the constants that leave their source out, or stand as they were predicted at first
sight where that was kept. Each scale is the one of a short list with the best mean interval score,
all in turn, with the first, until none changes; first those of plans of one cluster, then those
between clusters. A source weighs as the square root of its runs, however many pairs they make.
`left_out` has how the intervals of differences held, and how wide they were, with the scales fitted
without the pair's own source, beside what two intervals that share nothing would have given.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import combinations, product
from math import hypot, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost import fields as f
from planner.evidence.runs.left_out import left_out_factors, predict_held_out
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import grouped
from planner.job.frameworks.profile import FrameworkProfile, with_tables
from planner.job.frameworks.switches import has_technique
from planner.job.written import toml_text
from planner.predict.uncertainty.differences import (
    BETWEEN,
    INSIDE,
    TERMS,
    DifferenceScales,
    Standing,
    degrees_of,
    half_width,
    squares,
    switches_of,
)
from planner.predict.uncertainty.intervals import log_bounds, spread_of
from planner.predict.uncertainty.residuals import COVERAGE
from tests.fit.command import rows_of_errors, run
from tests.fit.constants_fit import tells

Array = NDArray[np.float64]
COMMAND = "python -m tests.fit.difference_fit"

# Tried for each scale, and for how much wider mixtures are.
_SCALES = (0.0, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4)
_SHARE_SCALES = (0.0, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
_MIXTURES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
_TRIED = dict.fromkeys(TERMS, _SCALES) | {"exposed": _SHARE_SCALES, "mixture": _MIXTURES}
_START = dict.fromkeys(TERMS, 0.03) | {"mixture": 1.5}
_ROUNDS = 6
# What the two runs of a pair state alike, beside what the planner resolves.
_STATED = ("software", "fabric", "host", "loss", "dropout", "deterministic", "routing", "variant")
# So many parts of the sources are left out in turn.
_PARTS = 8


class JudgedRun(NamedTuple):
    """A run: ln(measured / predicted), the half width of its own interval without its source, where
    it stands, and what a run must agree in to be its pair, on one cluster and anywhere."""

    source: str
    log_ratio: float
    half: float
    standing: Standing
    cluster: object
    job: object


def judged_runs(predictions: Sequence[Prediction]) -> list[JudgedRun]:
    """The runs that tell of a framework's time, each as somebody predicts it who has not seen its
    source."""
    unseen = predict_held_out(predictions, left_out_factors())
    return [found for one in unseen if (found := _judged(one)) is not None]


def _judged(one: Prediction) -> JudgedRun | None:
    error, at = error_of(one, "time"), one.conditions
    if error is None or at is None or one.step is None or not tells(one, "time"):
        return None
    row, job, degrees = one.row, one.job, one.configured.degrees
    first, measured = row.number("first_sight_s"), row.measurement("step_time_s")
    log_ratio = -np.log1p(error)
    if first and measured:
        log_ratio = log(measured / first)
    spread, _ = spread_of(job, "time", row.source, at)
    low, high = log_bounds(spread)
    model, gpus = job.model, job.cluster.num_gpus
    same = (
        row.source, model, job.seq, job.precision, job.framework.name, job.optimizer.name,
        *map(row.text, _STATED),
    )  # fmt: skip
    mode = one.configured.mode.name
    techniques, plain = _techniques(job.framework)
    standing = Standing(
        gpu=job.cluster.gpu.name,
        gpus=gpus,
        degrees=degrees_of(degrees),
        tokens=degrees.mbs * job.seq / degrees.cp,
        switches=(
            *switches_of(
                degrees.zero, mode, job.schedule, (job.optimizer_offload, job.activation_offload),
                str(job.context_kinds) if degrees.cp > 1 else "",
            ), plain,
        ),
        techniques=techniques,
        exposed=at.exposed,
        pace=float(one.step[f.STEP_TIME]) * gpus / (degrees.gbs * job.seq),
        mixture=model.moe is not None,
    )  # fmt: skip
    cluster = job.cluster.gpu.name, gpus, job.batch.sequences
    return JudgedRun(row.source, float(log_ratio), 0.5 * (high - low), standing, cluster, same)


@cache
def _techniques(profile: FrameworkProfile) -> tuple[frozenset[str], FrameworkProfile]:
    """Techniques that a profile is as they make it, and what it is without them."""
    had = [one for one in profile.techniques if has_technique(profile, one)]
    plain = profile
    for technique in had:
        plain = with_tables(plain, technique.changes(used=False))
    return frozenset(one.name for one in had), plain


@dataclass(frozen=True)
class Pairs:
    """Pairs of runs, one element each: what differs, squared, by term; whether of mixtures;
    ln(measured ratio / predicted ratio); its half width if both errors were independent; the
    source, and the pair's weight."""

    squares: Array
    mixture: NDArray[np.bool_]
    values: Array
    apart: Array
    sources: NDArray[np.str_]
    weights: Array

    def keep(self, kept: NDArray[np.bool_]) -> Pairs:
        """Some of them."""
        return Pairs(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))

    def half_widths(self, scales: Mapping[str, float]) -> Array:
        """Of the intervals, in ln."""
        variances = self.squares @ np.array([scales[term] ** 2 for term in TERMS])
        wider = np.where(self.mixture, scales["mixture"], 1.0)
        return np.asarray(half_width(1.0) * np.sqrt(variances) * wider)

    def scores(self, half: Array) -> Array:
        """Interval scores (Gneiting and Raftery 2007, equation 43), in ln."""
        outside = np.maximum(0.0, np.abs(self.values) - half)
        return 2.0 * half + 2.0 / (1.0 - COVERAGE) * outside


def pairs_of(runs: Iterable[JudgedRun], *, between: bool = False) -> Pairs:
    """Pairs of plans of one cluster that differ, or of one job on two clusters (`between`)."""
    rows = list(_pairs(list(runs), between=between))
    sources = np.array([one.source for one, _, _ in rows])
    names, place, counts = np.unique(sources, return_inverse=True, return_counts=True)
    members = {str(name): set[int]() for name in names}
    for one, other, _ in rows:
        members[one.source] |= {id(one), id(other)}
    of_source = np.array([len(members[str(name)]) ** 0.5 for name in names])
    return Pairs(
        squares=np.array([differing for _, _, differing in rows]).reshape(-1, len(TERMS)),
        mixture=np.array([one.standing.mixture for one, _, _ in rows], dtype=np.bool_),
        values=np.array([one.log_ratio - other.log_ratio for one, other, _ in rows]),
        apart=np.array([hypot(one.half, other.half) for one, other, _ in rows]),
        sources=sources,
        weights=(of_source / counts)[place],
    )


def _pairs(
    runs: Sequence[JudgedRun], *, between: bool
) -> Iterator[tuple[JudgedRun, JudgedRun, tuple[float, ...]]]:
    """Runs that may be compared, with what differs; repeats of one configuration tell nothing."""
    for members in grouped(runs, lambda one: (one.source, one.job)).values():
        for one, other in combinations(members, 2):
            if (one.cluster == other.cluster) == between:
                continue
            differing = squares(one.standing, other.standing)
            apart = differing[0] > 0.0
            if apart and (not between or one.standing[:2] != other.standing[:2]):
                yield one, other, differing


def fitted(pairs: Pairs, tried: Sequence[str], start: Mapping[str, float]) -> dict[str, float]:
    """The scales of these names with the best mean score, the others as they are in `start`."""
    scales = dict(start)

    def score(changed: dict[str, float]) -> float:
        half = pairs.half_widths(scales | changed)
        return float(np.average(pairs.scores(half), weights=pairs.weights))

    # Two at a time: the first, which every pair has, makes up for any other.
    first, *others = tried
    for _ in range(_ROUNDS):
        before = dict(scales)
        for other in others:
            names = first, other
            numbers = product(_TRIED[first], _TRIED[other])
            both = [dict(zip(names, two, strict=True)) for two in numbers]
            best: dict[str, float] = min(both, key=score)
            scales |= best
        if scales == before:
            break
    return scales


_INSIDE = (*INSIDE, "mixture")


def fitted_all(inside: Pairs, between: Pairs) -> dict[str, float]:
    """All scales: of plans of one cluster, then between clusters."""
    scales = fitted(inside, _INSIDE, _START)
    return fitted(between, BETWEEN, scales) if len(between.values) else scales


def left_out(inside: Pairs, between: Pairs) -> dict[str, dict[str, float]]:
    """How intervals held whose scales no pair of the same source had a part in."""
    names = sorted({*inside.sources.tolist(), *between.sources.tolist()})
    halves = {id(pairs): np.zeros(len(pairs.values)) for pairs in (inside, between)}
    for part in range(_PARTS):
        gone = names[part::_PARTS]
        masks = {id(pairs): np.isin(pairs.sources, gone) for pairs in (inside, between)}
        scales = fitted_all(inside.keep(~masks[id(inside)]), between.keep(~masks[id(between)]))
        for pairs in (inside, between):
            mask = masks[id(pairs)]
            halves[id(pairs)][mask] = pairs.keep(mask).half_widths(scales)
    return {
        "one_cluster": _held(inside, halves[id(inside)]),
        "two_clusters": _held(between, halves[id(between)]),
        "one_cluster_as_if_independent": _held(inside, inside.apart),
        "two_clusters_as_if_independent": _held(between, between.apart),
    }


def _held(pairs: Pairs, half: Array) -> dict[str, float]:
    """Width, coverage and score in the mean of all pairs (weighed as in the fit) and of each
    source's mean."""
    if not len(half):
        return {"pairs": 0}
    scores, inside = pairs.scores(half), np.abs(pairs.values) <= half
    each = [pairs.sources == name for name in np.unique(pairs.sources)]

    def both(values: Array) -> tuple[float, float]:
        weighed = np.average(values, weights=pairs.weights)
        of_sources = np.mean([values[one].mean() for one in each])
        return round(float(weighed), 3), round(float(of_sources), 3)

    width, held, score = both(2.0 * half), both(inside.astype(np.float64)), both(scores)
    return {
        "pairs": len(half), "sources": len(each), "width": width[0], "width_of_sources": width[1],
        "held": held[0], "held_of_sources": held[1], "score": score[0],
        "score_of_sources": score[1],
    }  # fmt: skip


# Runs of a sweep of which fewer tell nothing of how errors go with predictions.
_SMALLEST_SWEEP = 3


def flattering_share(runs: Iterable[JudgedRun]) -> float:
    """Share of the variance of errors that predictions owe their order to: over the sweeps of one
    job on one cluster, -cov(ln(measured / predicted), ln(predicted)) over the variance of
    ln(measured / predicted), between 0 and 1. A source weighs as the square root of its runs."""
    against: dict[str, float] = defaultdict(float)
    varied: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for sweep in grouped(runs, lambda one: (one.source, one.job, one.cluster)).values():
        fastest = _fastest_of_each(sweep)
        if len(fastest) < _SMALLEST_SWEEP:
            continue
        errors = np.array([one.log_ratio for one in fastest])
        paces = np.log([one.standing.pace for one in fastest])
        errors, paces = errors - errors.mean(), paces - paces.mean()
        source = fastest[0].source
        against[source] -= float(errors @ paces)
        varied[source] += float(errors @ errors)
        counts[source] += len(fastest)
    weights = {source: counts[source] ** -0.5 for source in counts}
    whole = sum(weights[source] * varied[source] for source in counts)
    share = sum(weights[source] * against[source] for source in counts) / whole if whole else 1.0
    return round(min(1.0, max(0.0, share)), 3)


def _fastest_of_each(sweep: Iterable[JudgedRun]) -> list[JudgedRun]:
    """Of runs in one place the one that is predicted fastest: it is what a search would choose."""
    found: dict[object, JudgedRun] = {}
    for one in sorted(sweep, key=lambda one: one.standing.pace):
        place = one.standing
        found.setdefault((place.degrees, place.tokens, place.switches, place.techniques), one)
    return list(found.values())


_ABOUT = """\
# How surely one plan is faster than another: standard deviations of ln(measured ratio / predicted
# ratio) by what differs (planner/predict/uncertainty/differences.py), fitted to pairs of measured
# runs of one source; `mixture`: how many times as large they are of mixtures of experts.
# `flattering`: share of the variance that a prediction owes its place to, over measured sweeps
# (planner/predict/uncertainty/selection.py).
# `left_out`: how the 80 % intervals held without the pair's source, and how those would that take
# the two errors as independent (pairs weighed as in the fit; mean of each source's mean).
"""


def render(
    scales: Mapping[str, float], flattering: float, judged: Mapping[str, Mapping[str, float]]
) -> str:
    """The TOML file."""
    content = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": COMMAND,
        "mixture": scales["mixture"],
        "flattering": flattering,
        "scales": {term: scales[term] for term in TERMS},
        "left_out": {name: dict(one) for name, one in judged.items()},
    }
    return _ABOUT + toml_text(content)


def scales_of(found: Mapping[str, float]) -> DifferenceScales:
    """What was fitted, as plans are judged with it."""
    return DifferenceScales({term: found[term] for term in TERMS}, found["mixture"])


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    runs = judged_runs(predict_rows(rows_of_errors(paths)))
    inside, between = pairs_of(runs), pairs_of(runs, between=True)
    scales, judged = fitted_all(inside, between), left_out(inside, between)
    sys.stdout.write(render(scales, flattering_share(runs), judged))


if __name__ == "__main__":
    run(main, sys.argv[1:])
