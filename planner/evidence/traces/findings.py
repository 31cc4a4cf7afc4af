"""Patterns in traces that cost MFU, each with a change that helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from hardware.files import shipped_toml
from planner.evidence.traces.rank import READS, RankTrace

# Patterns below these shares of a step are not worth a change.
_WORTH = 0.02
_GAPS = 0.05
_APART = 0.05
_FIRST = 1.2

_TEXTS = shipped_toml("planner.evidence.traces", "names.toml")["findings"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A pattern, the seconds per step that it costs, and the change that helps."""

    pattern: str
    seconds: float
    change: str


def _found(name: str, seconds: float, **values: object) -> Finding:
    pattern, change = _TEXTS[name]
    return Finding(pattern.format(**values), seconds, change)


def findings(ranks: Sequence[RankTrace]) -> list[Finding]:
    """The patterns of all ranks, the costliest first. Seconds are those of the median rank."""
    step_s = median(rank.step_s for rank in ranks)
    exposed = (
        _found(group, median(rank.exposed.get(group, 0.0) for rank in ranks))
        for group in sorted({group for rank in ranks for group in rank.exposed})
    )
    pageable = _found("pageable", median(rank.copies.get("pageable", 0.0) for rank in ranks))
    found = (*exposed, pageable, *_waiting(ranks), *_calls(ranks), *_uneven(ranks))
    worth = [one for one in found if one.seconds >= _WORTH * step_s]
    first = [rank.first_over_rest for rank in ranks if rank.first_over_rest is not None]
    if first and median(first) > _FIRST:
        worth.append(_found("first", 0.0, times=median(first)))
    return sorted(worth, key=lambda one: -one.seconds)


def _waiting(ranks: Sequence[RankTrace]) -> Iterator[Finding]:
    """Gaps between kernels that no synchronisation explains: the CPU issues kernels too slowly."""
    seconds = median(rank.idle_s - rank.idle_synchronised_s for rank in ranks)
    step_s = median(rank.step_s for rank in ranks)
    if seconds >= _GAPS * step_s:
        yield _found("gaps", seconds, gaps=round(median(rank.gaps for rank in ranks)))


def _calls(ranks: Sequence[RankTrace]) -> Iterator[Finding]:
    """Calls that make the CPU wait for the GPU within a step."""
    seconds = median(rank.idle_synchronised_s for rank in ranks)
    names = sorted({name for rank in ranks for name in rank.calls})
    calls = {name: median(rank.calls.get(name, 0.0) for rank in ranks) for name in names}
    # `item` calls the dense one, which would count twice.
    reads = sum(calls.get(name, 0.0) for name in READS if not name.endswith("_dense"))
    named = ", ".join(f"{name} ×{count:g}" for name, count in calls.items() if count >= 1.0)
    if reads >= 1.0:
        yield _found("reads", seconds, named=named)
    elif named:
        yield _found("waits", seconds, named=named)
    frees = sum(count for name, count in calls.items() if name.endswith("Free"))
    if frees >= 1.0:
        yield _found("frees", seconds, frees=frees)


def _uneven(ranks: Sequence[RankTrace]) -> Iterator[Finding]:
    """A rank that computes longer than the median one, so that all others wait."""
    if len(ranks) < 2:
        return
    middle = median(rank.compute_s for rank in ranks)
    slowest = max(ranks, key=lambda rank: rank.compute_s)
    if slowest.compute_s > (1.0 + _APART) * middle:
        longer = slowest.compute_s / middle - 1.0
        yield _found("uneven", slowest.compute_s - middle, rank=slowest.rank, longer=longer)
