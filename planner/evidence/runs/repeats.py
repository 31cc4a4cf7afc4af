"""How far runs of one setting differ from each other: noise that no prediction can follow.

Runs of one source that are equal in every column but the measurements, and that the model predicts
alike, are repeats. The ratios of their step times, pooled over a source's settings inside one
scale-up domain and beyond it, say what a *perfect* prediction would reach on the groups of that
source: it knows the undisturbed time of every setting, while every second run was measured slower
than that by a ratio drawn from those. (If r are the logarithms of the ratios of two runs, one run
scatters by half their variance: r or 0, evenly.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.ranking import SMALLEST_GROUP, comparable_groups, spearman
from planner.predict.uncertainty.intervals import family_of

Array = NDArray[np.float64]

# What was measured, and where it is written: does not tell two settings apart.
_NOT_SETTINGS = frozenset(
    {
        "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_mem_gb",
        "peak_mem_gib", "mem_kind", "mem_scope", "oom", "from_memory", "notes", "source_ref",
    }
)  # fmt: skip
# Below this many repeated settings a spread says too little to be drawn from.
_FEWEST_SETTINGS = 3
_DRAWS = 200
_P90 = 0.9


@dataclass(frozen=True, slots=True)
class RepeatNoise:
    """Repeated settings of one source on one scale (`one domain`, `several domains`).

    `median`, `p90`, `worst`: slowest over fastest run of a setting, less 1. `pick`, `rank`: means
    over the `groups` of that source and scale for a perfect prediction; None where too few
    settings were repeated, or there is no group.
    """

    source: str
    scale: str
    settings: int
    runs: int
    median: float
    p90: float
    worst: float
    groups: int
    pick: float | None
    rank_correlation: float | None


def repeat_noise(predictions: Iterable[Prediction]) -> list[RepeatNoise]:
    """Noise of every source and scale with repeats, in order of first appearance."""
    timed = [
        prediction
        for prediction in predictions
        if prediction.mapped and prediction.measured("step_time_s")
    ]
    repeated: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for members in _by_setting(timed):
        times = sorted({member.measured("step_time_s") or 0.0 for member in members})
        if len(times) > 1:
            repeated[_place(members[0])].append(times)
    groups: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for members in comparable_groups(timed).values():
        if len(members) >= SMALLEST_GROUP:
            values = np.array([member.measured("step_time_s") for member in members])
            groups[_place(members[0])].append(values)
    return [_noise(*place, settings, groups[place]) for place, settings in repeated.items()]


def _by_setting(predictions: Sequence[Prediction]) -> Iterable[list[Prediction]]:
    """Runs of one setting each; a figure that a source prints twice is one run."""
    settings: dict[object, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        cells = prediction.row.cells.items()
        described = tuple(sorted(cell for cell in cells if cell[0] not in _NOT_SETTINGS))
        settings[prediction.row.source, prediction.step_time_s, described].append(prediction)
    return settings.values()


def _place(prediction: Prediction) -> tuple[str, str]:
    scale = family_of(prediction.mapped.job).scale if prediction.mapped else ""
    return prediction.row.source, scale


def _noise(
    source: str, scale: str, settings: Sequence[Sequence[float]], groups: Sequence[Array]
) -> RepeatNoise:
    spreads = np.array([times[-1] / times[0] - 1.0 for times in settings])
    ratios = np.log([b / a for times in settings for a, b in combinations(times, 2)])
    scores = []
    if len(settings) >= _FEWEST_SETTINGS:
        draws = np.random.default_rng(0)
        scores = [perfect_score(times, ratios, draws) for times in groups]
    return RepeatNoise(
        source=source,
        scale=scale,
        settings=len(settings),
        runs=sum(len(times) for times in settings),
        median=median(spreads),
        p90=float(np.quantile(spreads, _P90)),
        worst=float(spreads.max()),
        groups=len(groups),
        pick=fmean(pick for pick, _ in scores) if scores else None,
        rank_correlation=fmean(rank for _, rank in scores) if scores else None,
    )


def perfect_score(
    times_s: Array, log_ratios: Array, draws: np.random.Generator
) -> tuple[float, float]:
    """(pick, rank correlation) of the runs of a group by their undisturbed times, in the mean.

    A time t is undisturbed, or e^r times what it would be; r drawn from `log_ratios`, all > 0.
    """
    picks, ranks = [], []
    for _ in range(_DRAWS):
        disturbed = draws.choice((0.0, 1.0), size=len(times_s))
        undisturbed = times_s * np.exp(-disturbed * draws.choice(log_ratios, size=len(times_s)))
        picks.append(float(times_s.min() / times_s[undisturbed.argmin()]))
        ranks.append(spearman(undisturbed.tolist(), times_s.tolist()))
    return fmean(picks), fmean(ranks)
