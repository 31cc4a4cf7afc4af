"""The plans that compete with a search's fastest one, for the optimism of choosing the best of
many.

Plans with the same degrees and micro-batch share nearly all of their error, so only the fastest of
each such group counts (`planner.predict.uncertainty.selection`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from planner.cost import fields as f
from planner.predict.uncertainty.differences import Standing, switches_of
from planner.predict.uncertainty.selection import REACH
from planner.search.explorer import Explorer

_DEGREES = ("tp", "pp", "cp", "ep")


def rivals_of(explorers: Iterable[Explorer], gpu: str = "") -> list[Standing]:
    """Standings of the plans that fit and are close to the fastest, with layers split evenly."""
    explorers = tuple(explorers)
    least = min((_fastest_s(explorer) for explorer in explorers), default=np.inf)
    return [
        standing
        for explorer in explorers
        for standing in _near(explorer, least * float(np.exp(REACH)), gpu)
    ]


def _fits(explorer: Explorer) -> NDArray[np.bool_]:
    return np.asarray(explorer.peak <= explorer.limit_bytes)


def _fastest_s(explorer: Explorer) -> float:
    return float(explorer.sample_s.min(where=_fits(explorer), initial=np.inf))


def _near(explorer: Explorer, limit_s: float, gpu: str) -> Iterator[Standing]:
    """Standings of one explorer's plans up to `limit_s` seconds per sequence."""
    rows = np.flatnonzero(_fits(explorer) & (explorer.sample_s <= limit_s))
    names = (*_DEGREES, "mbs")
    keys = np.array([explorer.columns[name][rows] for name in names], dtype=np.int64).T
    for row in rows[fastest_of_each(keys, explorer.sample_s[rows])].tolist():
        yield _standing(explorer, row, gpu)


def fastest_of_each(keys: NDArray[np.int64], seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Index of the fastest plan in each group of equal keys, where each plan is a row of keys."""
    order = np.argsort(seconds, kind="stable")
    _, first = np.unique(keys[order], axis=0, return_index=True)
    return np.sort(order[first])


def _standing(explorer: Explorer, row: int, gpu: str) -> Standing:
    """The standing of a shape in its even layout
    (`planner.predict.uncertainty.differences.standing_of`)."""
    job, step = explorer.cost_model.job, explorer.costed.steps[row]
    column = {name: int(explorer.columns[name][row]) for name in (*_DEGREES, "mbs", "zero", "dp")}
    kinds = (*job.context_kinds, "p2p")
    gpus = column["tp"] * column["pp"] * column["cp"] * column["dp"]
    return Standing(
        gpu=gpu,
        gpus=gpus,
        degrees=tuple(column[name] for name in _DEGREES),
        tokens=column["mbs"] * job.row(int(column["mbs"])).computed / column["cp"],
        switches=switches_of(
            column["zero"], explorer.mode(row).name, job.schedule,
            (job.optimizer_offload, job.activation_offload), kinds[0] if column["cp"] > 1 else "",
        ),
        techniques=frozenset(job.techniques),
        exposed=float(step[f.STEP_EXPOSED].sum() / step[f.STEP_TIME]),
        pace=float(explorer.sample_s[row]) * gpus / job.sample_tokens,
        mixture=job.model.moe is not None,
    )  # fmt: skip
