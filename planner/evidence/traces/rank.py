"""One rank's trace as seconds by term: the GPU's work, the parts of it that overlap, and the
reasons why it waited."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware.files import shipped_toml
from planner.evidence.traces.events import EventStream
from planner.job.errors import UsageError

_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CPU = frozenset({"cuda_runtime", "cuda_driver"})
_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_SYNCHRONISES = re.compile(
    r"^(cuda|hip)(StreamSynchronize|DeviceSynchronize|EventSynchronize|Memcpy)$|^cuStreamSynchronize"
)
_HOST_MEMORY = re.compile(r"\b(pinned|pageable)\b", re.IGNORECASE)
_ALLOCATES = re.compile(r"^(cuda|hip)(Malloc|Free)$")
# Operators that wait for the GPU to hand a number to the CPU.
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
# A shorter gap is the GPU's time between two kernels that were both issued long before.
_SHORT_GAP_S = 2e-6
_MICRO = 1e-6
# Most starts and ends that are processed at once: a step with more is cut into pieces of time.
_AT_ONCE = 1_000_000
_NONE = np.zeros((0, 2))


def _doubles() -> array[float]:
    return array("d")


@dataclass
class Collected:
    """The kept parts of a trace: starts and ends, s, of kernels by term, of copies by the memory
    that they use, and of collectives by group; starts of calls by name. 16 bytes a kernel."""

    kernels: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_doubles))
    copies: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_doubles))
    groups: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_doubles))
    waits: array[float] = field(default_factory=_doubles)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    gpu_steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    calls: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_doubles))
    unusable: int = 0
    events: int = 0


@dataclass(frozen=True)
class RankTrace:
    """One rank over its whole steps, in seconds per step (mean over `steps`; if none is `marked`,
    the whole trace counts as one).

    `terms`: GPU time of kernels by term; `copies`: GPU time of the copies among them, by the memory
    that they use (`copy_memory`); `exposed`, `hidden`: GPU time of collectives by group, outside
    and under other kernels; `busy_s`: time with any kernel; `idle_s`: time without one, of which
    `idle_synchronised_s` while or right after the CPU waited for the GPU. `calls`: synchronising,
    reading and allocating calls per step. `first_over_rest`: the first step divided by the median
    of the others.
    """

    path: Path
    rank: int
    steps: tuple[float, ...]
    marked: bool
    step_s: float
    terms: dict[str, float]
    copies: dict[str, float]
    exposed: dict[str, float]
    hidden: dict[str, float]
    compute_s: float
    busy_s: float
    idle_s: float
    idle_synchronised_s: float
    gaps: int
    calls: dict[str, float]
    first_over_rest: float | None
    unusable: int

    @property
    def exposed_s(self) -> float:
        """Seconds of communication outside all other kernels."""
        return math.fsum(self.exposed.values())


def read_rank(path: Path, number: int) -> RankTrace:
    """Read a trace by term; `number` is the rank if the file does not state one. UsageError."""
    stream = EventStream(path)
    found = collect(stream)
    if not (found.kernels or found.groups):
        raise UsageError(
            f"{path}: none of {found.events:,} events is a GPU kernel; profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on a machine with GPUs"
        )
    return _summary(path, number if stream.rank is None else stream.rank, found)


def collect(events: Iterable[dict[str, Any]]) -> Collected:
    """Pass over the events once and keep what the terms need."""
    found = Collected()
    for event in events:
        found.events += 1
        if event.get("ph") != "X":
            continue
        start, duration = _number(event.get("ts")), _number(event.get("dur"))
        if math.isfinite(start) and 0.0 <= duration < math.inf:
            _add(found, event, start * _MICRO, (start + duration) * _MICRO)
        else:
            found.unusable += 1
    return found


def _number(value: object) -> float:
    """A number as float; NaN for anything else."""
    return float(value) if isinstance(value, int | float) else math.nan


def _add(found: Collected, event: dict[str, Any], start: float, end: float) -> None:
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    if category in _GPU:
        term = kernel_term(name, category)
        if term != "communication":
            found.kernels[term].extend((start, end))
            if term == "copies":
                found.copies[copy_memory(name)].extend((start, end))
        else:
            arguments = event.get("args")
            group = collective_group(name, arguments if isinstance(arguments, dict) else {})
            found.groups[group].extend((start, end))
    elif category in _CPU:
        if _SYNCHRONISES.match(name):
            found.waits.extend((start, end))
            found.calls[name].append(start)
        elif _ALLOCATES.match(name):
            found.calls[name].append(start)
    elif category == "cpu_op":
        if name in READS:
            found.calls[name].append(start)
    elif match := _STEP.match(name):
        steps = found.gpu_steps if category == "gpu_user_annotation" else found.steps
        steps[int(match[1])] = (start, end)


def _spans(values: array[float]) -> Spans:
    return np.frombuffer(values, dtype=np.float64).reshape(-1, 2)


def _summary(path: Path, rank: int, found: Collected) -> RankTrace:
    bounds = _bounds(found)
    if not bounds[-1][1] > bounds[0][0]:
        raise UsageError(f"{path}: its steps take no time; give a trace as the profiler wrote it")
    events = sum(map(len, (*found.kernels.values(), *found.groups.values())))
    pieces = 1 + events // (_AT_ONCE * len(bounds))
    waits = union(_spans(found.waits))
    total: Counter[tuple[str, str]] = Counter()
    for step in bounds:
        for start, end in pairwise(np.linspace(*step, pieces + 1)):
            total.update(_sums(found, waits, start, end))
    count = len(bounds)
    mean = {what: value / count for what, value in total.items()}

    def by(kind: str) -> dict[str, float]:
        return {name: seconds for (one, name), seconds in mean.items() if one == kind}

    durations = tuple(float(late - early) for early, late in bounds)
    others = durations[1:]
    return RankTrace(
        path=path,
        rank=rank,
        steps=durations,
        marked=bool(found.gpu_steps or found.steps),
        step_s=(bounds[-1][1] - bounds[0][0]) / count,
        terms=by("term"),
        copies=by("copies"),
        exposed=by("exposed"),
        hidden=by("hidden"),
        compute_s=mean["all", "compute"],
        busy_s=mean["all", "busy"],
        idle_s=mean["all", "idle"],
        idle_synchronised_s=mean["all", "synchronised"],
        gaps=round(mean["all", "gaps"]),
        calls=_calls(found, bounds[0][0], bounds[-1][1], count),
        first_over_rest=durations[0] / float(np.median(others)) if others else None,
        unusable=found.unusable,
    )


def _sums(found: Collected, waits: Spans, start: float, end: float) -> dict[tuple[str, str], float]:
    """Seconds between `start` and `end`, by kind and name; for gaps their number."""
    kernels = {term: within(_spans(values), start, end) for term, values in found.kernels.items()}
    groups = {name: within(_spans(values), start, end) for name, values in found.groups.items()}
    compute = union(_NONE, *kernels.values())
    every = union(compute, *groups.values())
    idle = complement(every, start, end)
    long = idle[idle[:, 1] - idle[:, 0] > _SHORT_GAP_S]
    sums = {("term", term): length(spans) for term, spans in kernels.items()}
    for memory, values in found.copies.items():
        sums["copies", memory] = length(within(_spans(values), start, end))
    for name, spans in groups.items():
        sums["exposed", name] = length(union(spans, compute)) - length(compute)
        sums["hidden", name] = max(0.0, length(spans) - sums["exposed", name])
    return sums | {
        ("all", "compute"): length(compute),
        ("all", "busy"): length(every),
        ("all", "idle"): length(idle),
        ("all", "synchronised"): _after_waits(long, waits),
        ("all", "gaps"): float(len(long)),
    }


def _bounds(found: Collected) -> list[tuple[float, float]]:
    """Starts and ends of whole steps, as the GPU ran them if the trace says so; without marked
    steps, one step from the first kernel to the last."""
    for steps in (found.gpu_steps, found.steps):
        inside = [steps[number] for number in sorted(steps)]
        if inside:
            stops = [start for start, _ in inside[1:]] + [inside[-1][1]]
            return [(start, end) for (start, _), end in zip(inside, stops, strict=True)]
    every = [_spans(values) for values in (*found.kernels.values(), *found.groups.values())]
    return [(min(one[:, 0].min() for one in every), max(one[:, 1].max() for one in every))]


def _after_waits(gaps: Spans, waits: Spans) -> float:
    """Seconds of gaps during which a call that waits for the GPU ran or ended: the GPU had run dry,
    and the CPU issued kernels again only then."""
    if not len(waits) or not len(gaps):
        return 0.0
    place = np.searchsorted(waits[:, 0], gaps[:, 1])
    before = np.maximum(place - 1, 0)
    touched = (place > 0) & (waits[before, 1] >= gaps[:, 0])
    return length(gaps[touched])


def _calls(found: Collected, start: float, end: float, count: int) -> dict[str, float]:
    counted = {
        name: sum(start <= at < end for at in starts) for name, starts in found.calls.items()
    }
    return {name: number / count for name, number in counted.items() if number}


# Sets of time as arrays of disjoint spans [n, 2] in seconds, sorted.
Spans = NDArray[np.float64]


def union(*sets: Spans) -> Spans:
    """The time covered by any span of any set. A gap lies before the i-th start if the (i-1)-th
    end, in sorted order, is earlier: as many spans have then ended as have begun."""
    starts, ends = (np.sort(np.concatenate([one[:, side] for one in sets])) for side in (0, 1))
    edges = np.concatenate([[True], starts[1:] > ends[:-1], [True]])
    count = len(starts)
    return np.column_stack([starts[edges[:count]], ends[edges[1 : count + 1]]])


def length(spans: Spans) -> float:
    """Total seconds of disjoint spans."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def complement(spans: Spans, start: float, end: float) -> Spans:
    """The parts of [start, end] that the disjoint spans inside it leave free."""
    edges = np.concatenate([[start], spans.ravel(), [end]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def within(spans: Spans, start: float, end: float) -> Spans:
    """The part of [start, end] that spans cover."""
    inside = np.minimum(spans[:, 1], end) > np.maximum(spans[:, 0], start)
    return union(np.clip(spans[inside], start, end))


OTHER = "elementwise"
TERMS = ("matrix products", "attention", OTHER, "optimizer", "copies")


def _patterns(table: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    rows = shipped_toml("planner.evidence.traces", "names.toml")[table]
    return tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in rows)


_KERNELS, _GROUPS = _patterns("kernels"), _patterns("groups")


@lru_cache(maxsize=10_000)
def kernel_term(name: str, category: str) -> str:
    """The term of a kernel: `communication`, `copies`, or one of `TERMS`."""
    if category in ("gpu_memcpy", "gpu_memset"):
        return "copies"
    return next((term for term, pattern in _KERNELS if pattern.search(name)), OTHER)


@lru_cache(maxsize=10_000)
def copy_memory(name: str) -> str:
    """The host memory that a copy uses, `pinned` or `pageable`, or `GPU` for a copy or a fill
    within GPUs. CUPTI names both ends: "Memcpy HtoD (Pageable -> Device)"."""
    found = _HOST_MEMORY.search(name)
    return found[1].lower() if found else "GPU"


def collective_group(name: str, arguments: dict[str, Any]) -> str:
    """The group, `tp`, `cp`, `ep`, `pp` or `dp`, from the process group's description. Otherwise
    from the collective: `ep` for an all-to-all, `pp` for a send or receive. A kernel of sends and
    receives whose collective is not named may belong to either, and is in an unnamed group."""
    described = str(arguments.get("Process Group Description", ""))
    for term, pattern in _GROUPS:
        if described and pattern.search(described):
            return term
    collective = str(arguments.get("Collective name", "")).lower()
    if re.search(r"all_?to_?all", f"{collective} {name.lower()}"):
        return "ep"
    return "pp" if re.search(r"send|recv", collective) else "unnamed group"
