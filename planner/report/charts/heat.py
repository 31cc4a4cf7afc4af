"""Heat map of two degrees: the best shape for every pair of values, or the rules that forbid it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations, product
from math import prod
from typing import Literal

import numpy as np

from constraints.axes import AXES, WORLD
from constraints.context import RuleContext
from constraints.numbers import Columns, IntArray, Mask
from constraints.registry import rules_of
from constraints.rule import ShapeRule, conflict_of, rejections
from planner.job.job import Job
from planner.job.quantities import GIB
from planner.predict.plan import Plan
from planner.predict.plan_text import batch_text, configuration_text, degrees_text
from planner.predict.shapes import rule_context
from planner.predict.space import enumerate_shapes
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.report.charts.drawing import Specification, table
from planner.report.charts.front import Floats, peaks_gib, shape_of, speeds
from planner.report.charts.templates import filled
from planner.report.said import described
from planner.search.result import SearchResult
from planner.search.shares import CostedJob

# Degrees that people choose, in the order of a plan's summary. Those with a single value are left
# out later.
_NAMES = (*(name for name in AXES if name not in ("grad_acc", "shard")), "recompute")
# Most values of a degree. Those with a legal shape are kept first, then the smallest.
_MOST_VALUES = 16

Kind = Literal["fits", "may fit", "too large", "forbidden", "not tried"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The cell for value number `i` of degree `a` and value number `j` of degree `b`, both counted
    from 0. `speed`: tokens/s per GPU. `label`: that speed, the GiB, or the first rule in a few
    words."""

    a: str
    b: str
    i: int
    j: int
    kind: Kind
    speed: float
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """All cells, for every pair of degrees. `values`: for each degree its values as text, in
    order."""

    values: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]

    @property
    def first(self) -> tuple[str, str]:
        """The pair to show first: tp across and pp upwards if both have several values."""
        names = list(self.values)
        return ("tp", "pp") if {"tp", "pp"} <= set(names) else (names[0], names[1])


@dataclass(frozen=True)
class _Shapes:
    """Legal shapes with their layers spread evenly, followed by the plans of the search. Each
    column has one entry for each of them, which is called a row. `best`: the rows in order of
    preference: first those that fit, the fastest first, then the others, the lightest first."""

    costed: CostedJob
    columns: Mapping[str, IntArray]
    speed: Floats
    size: Floats
    fits: Mask
    plans: tuple[Plan, ...]

    @property
    def best(self) -> IntArray:
        keys = np.where(self.fits, -self.speed, self.size)
        order: IntArray = np.lexsort((keys, ~self.fits))
        return order

    def text(self, row: int) -> str:
        first = len(self.speed) - len(self.plans)
        if row >= first:
            return f"plan {row - first + 1}, {configuration_text(self.plans[row - first])}"
        degrees, mode = shape_of(self.costed, row)
        return f"{degrees_text(degrees)}, {batch_text(degrees)}, {mode}"


@dataclass(frozen=True)
class _Tried:
    """Every shape that was tried, legal or not, and the rules that reject it."""

    job: Job
    context: RuleContext
    rules: tuple[ShapeRule, ...]
    degrees: Columns
    rejects: Mask

    @classmethod
    def of(cls, job: Job) -> _Tried:
        context = rule_context(job)
        rules = rules_of(context)
        degrees = enumerate_shapes(context).degrees
        return cls(job, context, rules, degrees, rejections(degrees, context, rules))

    def conflict(self, given: Mapping[str, int]) -> tuple[ShapeRule, ...]:
        """The rules that together forbid these values of degrees. If no shape with these values was
        tried: the rule `world-size` if their product does not divide the number of GPUs, otherwise
        ()."""
        mask = np.ones(len(self.degrees["tp"]), dtype=np.bool_)
        for name, value in given.items():
            if name in self.degrees:
                mask &= self.degrees[name] == value
        if mask.any():
            return conflict_of(self.rejects[:, mask], self.rules)
        if set(given) <= set(WORLD) and self.job.cluster.num_gpus % prod(given.values()):
            return tuple(rule for rule in self.rules if rule.name == "world-size")
        return ()


def heat_map(costed: CostedJob, result: SearchResult) -> HeatMap | None:
    """The cells for the shapes and plans of a search; None if fewer than two degrees have several
    values. Plans are included because uneven splits of the layers may fit where even ones do not.
    """
    job, tried = costed.job, _Tried.of(costed.job)
    shapes = _shapes(costed, result)
    values = {name: _values(name, shapes, tried) for name in _NAMES}
    values = {name: found for name, found in values.items() if len(found) > 1}
    if len(values) < 2:
        return None
    cells = [
        cell for pair in combinations(values, 2) for cell in _cells(pair, values, shapes, tried)
    ]
    modes = [mode.name for mode in job.recompute]
    words = {
        name: tuple(modes[value] if name == "recompute" else str(value) for value in found.tolist())
        for name, found in values.items()
    }
    return HeatMap(words, tuple(cells))


def _shapes(costed: CostedJob, result: SearchResult) -> _Shapes:
    job, modes = costed.job, [mode.name for mode in costed.job.recompute]
    plans = tuple(plan for plan in result.plans if plan.recompute in modes)
    limit = likely_limit_bytes(job, job.fit_probability) / GIB
    columns = {
        name: np.concatenate(
            (costed.candidates.columns[name], [_value(plan, name, modes) for plan in plans])
        )
        for name in _NAMES
    }
    speed = np.concatenate((speeds(costed), [plan.tokens_per_s_per_gpu for plan in plans]))
    size = np.concatenate((peaks_gib(costed), [plan.peak_bytes / GIB for plan in plans]))
    fits = size <= limit
    fits[len(size) - len(plans) :] = True
    return _Shapes(costed, columns, speed, size, fits, plans)


def _value(plan: Plan, name: str, modes: list[str]) -> int:
    return modes.index(plan.recompute) if name == "recompute" else int(getattr(plan.degrees, name))


def _values(name: str, shapes: _Shapes, tried: _Tried) -> IntArray:
    """The values of a degree that the heat map shows, ascending. If there are too many, values
    without a legal shape are dropped first."""
    legal = np.unique(shapes.columns[name])
    if name == "recompute":
        return legal
    others = np.setdiff1d(tried.degrees[name], legal)
    return np.sort(np.concatenate((legal, others))[:_MOST_VALUES])


def _cells(
    pair: tuple[str, str], values: Mapping[str, IntArray], shapes: _Shapes, tried: _Tried
) -> Iterator[Cell]:
    best = _best_rows(pair, values, shapes)
    for places in product(range(len(values[pair[0]])), range(len(values[pair[1]]))):
        row = best.get(places)
        if row is None:
            given = {name: int(values[name][at]) for name, at in zip(pair, places, strict=True)}
            yield _without_shape(pair, places, tried.conflict(given), tried)
        else:
            yield _with_shape(pair, places, shapes, row)


def _best_rows(
    pair: tuple[str, str], values: Mapping[str, IntArray], shapes: _Shapes
) -> dict[tuple[int, int], int]:
    """The best row of `shapes` for each cell (`i`, `j`): the fastest that fits; if none fits, the
    lightest. Cells without a shape are missing."""
    order = shapes.best
    kept = order[
        np.logical_and.reduce([np.isin(shapes.columns[name][order], values[name]) for name in pair])
    ]
    places = np.stack([np.searchsorted(values[name], shapes.columns[name][kept]) for name in pair])
    cells, first = np.unique(places, axis=1, return_index=True)
    rows = kept[first].tolist()
    return {(int(x), int(y)): row for (x, y), row in zip(cells.T, rows, strict=True)}


def _with_shape(pair: tuple[str, str], places: tuple[int, int], shapes: _Shapes, row: int) -> Cell:
    speed, size, text = float(shapes.speed[row]), float(shapes.size[row]), shapes.text(row)
    if shapes.fits[row]:
        said = f"fastest that fits: {speed:,.0f} tokens/s a GPU, {size:.1f} GiB ({text})"
        return Cell(*pair, *places, "fits", speed, f"{speed:,.0f}", said)
    kind: Kind = "may fit" if size <= shapes.costed.job.hbm_limit_bytes / GIB else "too large"
    why = (
        "may fit, but with a lower probability than required" if kind == "may fit" else "too large"
    )
    said = f"{why}, with layers spread evenly: the lightest takes {size:.1f} GiB ({text})"
    return Cell(*pair, *places, kind, 0.0, f"{size:.0f} GiB", said)


def _without_shape(
    pair: tuple[str, str], places: tuple[int, int], rules: tuple[ShapeRule, ...], tried: _Tried
) -> Cell:
    if not rules:
        said = "not tried: useless, because a GPU would get too few or too many tokens or layers"
        return Cell(*pair, *places, "not tried", 0.0, "", said)
    said = "forbidden: " + "; ".join(
        f"{rule.explain(tried.context)} [{rule.name}]" for rule in rules
    )
    label = rule_words(rules[0].name, tried.job.cluster.num_gpus) + (" …" if len(rules) > 1 else "")
    return Cell(*pair, *places, "forbidden", 0.0, label, said)


def rule_words(name: str, gpus: int) -> str:
    """The text of a cell that a rule forbids, in a few words. For a condition of the user, the text
    says that it is theirs."""
    words: dict[str, str] = described("pages.rules")
    whose = "as you asked" if name.startswith("user-") else "your condition"
    return words.get(name, whose).format(gpus=gpus)


_CELL_HEIGHT = 34


def heat_chart(found: HeatMap, choose: bool = True) -> Specification:
    """A cell for each pair of values of two degrees. `choose`: lists below the chart let the user
    choose the two degrees."""
    cells = [cell for cell in found.cells if choose or {cell.a, cell.b} == set(found.first)]
    across, up = found.first
    return filled(
        "heat",
        height=_CELL_HEIGHT * len(found.values[up]),
        cells=table(map(asdict, cells)),
        across=across,
        up=up,
        choose=choose,
        degrees=list(found.values),
        # For axis labels such as `tp 4`: the values for the positions of cells.
        values=json.dumps(dict(found.values)),
    )
