"""Does the planner pick the right run? Ranks of predicted against measured runs within groups.

A group has one source, model, GPU type and count, sequence length, batch, precision and framework,
and several measured configurations, like the choices of a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from statistics import fmean

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.rows import grouped
from planner.job.job import SURE_TO_FIT

_KEYS = ("model", "gpu", "num_gpus", "seq", "gbs", "precision", "framework")
_TITLE = ", {model}, {num_gpus}x{gpu}, seq {seq}, batch {gbs}, {precision}, {framework}"
SMALLEST_GROUP = 5


@dataclass(frozen=True, slots=True)
class GroupRanking:
    """`pick`: measured throughput of the run ranked first divided by that of the best measured one
    (0 if it ran out of memory; the mean if several come first). `rank_correlation`: Spearman's rho
    of predicted and measured step times."""

    group: str
    runs: int
    pick: float
    rank_correlation: float


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; ties share their mean rank. 0 if one side is constant, 1 if both
    are, since nothing is then out of order."""
    import pandas as pd

    ranks = [pd.Series(values, dtype=float).rank() for values in (first, second)]
    constant = [len(set(values)) <= 1 for values in (first, second)]
    return float(all(constant)) if any(constant) else float(ranks[0].corr(ranks[1]))


def rank_groups(predictions: Iterable[Prediction]) -> list[GroupRanking]:
    """Every group with enough measured runs."""
    found = []
    for group, members in measured_groups(predictions).items():
        ran = [member for member in members if _measured(member) is not None]
        expected = [member.expected_step_time_s or 0.0 for member in ran]
        rank = spearman(expected, [_measured(member) or 0.0 for member in ran])
        found.append(GroupRanking(group, len(ran), pick_share(members), rank))
    return found


def measured_groups(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    """The rows with a known outcome, of every group with enough measured runs."""
    costed = (one for one in predictions if one.step_time_s is not None)
    groups = {
        key: [member for member in members if _measured(member) is not None or member.row.ran_out]
        for key, members in grouped(costed, _group).items()
    }
    return {
        key: members
        for key, members in groups.items()
        if sum(_measured(member) is not None for member in members) >= SMALLEST_GROUP
    }


def _group(prediction: Prediction) -> str:
    """The name of a row's group, as `vtrain-single, GPT-0.2B, 8xA100, seq 1024, batch 16, fp16,
    Megatron-DeepSpeed`."""
    row = prediction.row
    words = {name: row.text(name) or "?" for name in _KEYS}
    return row.source + _TITLE.format(**words)


_measured = methodcaller("measured", "step_time_s")


def candidates_of(members: Sequence[Prediction]) -> list[Prediction]:
    """Runs that fit with the probability that a search requires, with the error bars of other
    sources; if there are none, those predicted to fit, else all."""
    fitting = [member for member in members if member.fits]
    sure = [member for member in fitting if member.full_chance <= 1.0 - SURE_TO_FIT]
    return sure or fitting or list(members)


def pick_share(members: Sequence[Prediction]) -> float:
    """Measured throughput of the run ranked first by expected throughput
    (`planner.predict.uncertainty.full_memory`), divided by that of the best measured one."""
    best = min(seconds for seconds in map(_measured, members) if seconds is not None)
    picked = map(_measured, first_of(candidates_of(members)))
    # 0 for a run that ran out of memory.
    return fmean(best / seconds if seconds else 0.0 for seconds in picked)


def first_of(candidates: Sequence[Prediction]) -> list[Prediction]:
    """The candidates with the shortest expected step; several if the model sees no difference, for
    example between repeats of a run."""
    groups = grouped(candidates, lambda member: member.expected_step_time_s or float("inf"))
    return groups[min(groups)]
