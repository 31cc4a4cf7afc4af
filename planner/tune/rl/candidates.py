"""Reinforcement-learning plans that short runs can try: those of a file, and their neighbours.

A neighbour differs from a plan in one choice of either side. Only plans that `planner launch` can
write are tried, and only neighbours that fit with at least the probability `LEAST_FIT`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from planner.evidence.rl.costing import Costed, costed_step
from planner.job.errors import UsageError
from planner.job.quantities import plural
from planner.job.rl.job import RlJob
from planner.launch.rl import RlLaunch, launch_note
from planner.predict.rl.plan import RlLayout
from planner.predict.rl.step import RlStep, rl_step
from planner.search.rl.explain import neighbour_layouts
from planner.search.rl.plans import layout_of
from planner.search.rl.result import RlResult
from planner.tune.candidates import LEAST_FIT, MOST_CANDIDATES, configuration_key

# Number of plans whose neighbours are candidates too: each adds about ten.
_WITH_NEIGHBOURS = 3


@dataclass(frozen=True, eq=False)
class RlCandidate:
    """One layout of a job with its prediction. `name`: for people."""

    name: str
    launch: RlLaunch
    step: RlStep

    @cached_property
    def key(self) -> str:
        """Its layout as stable text."""
        layout = self.launch.layout
        parts = [layout.placement, f"trainer {configuration_key(layout.trainer)}", self.engine]
        if self.launch.job.trainer.samples.packing != "longest":
            parts.insert(2, f"{self.launch.token_limit} tokens a micro-batch")
        if layout.staleness:
            parts.append(f"{layout.staleness} behind")
        parts += ["streams"] * layout.streams + ["trainer leaves"] * layout.trainer_leaves
        return "; ".join(parts + ([f"weights by {layout.way}"] if layout.way else []))

    @property
    def engine(self) -> str:
        """The split of its engines, as text."""
        engine = self.launch.layout.engine
        return (
            f"{plural(engine.replicas, 'engine')} of tp {engine.tp}, pp {engine.pp}, "
            f"dp {engine.dp}, ep {engine.ep}, {engine.kv_share:.0%} of a GPU, "
            f"{engine.sequences} sequences"
        )

    @property
    def engine_degrees(self) -> tuple[int, ...]:
        """The degrees of its engines, without their cache share and number of sequences."""
        engine = self.launch.layout.engine
        return engine.replicas, engine.tp, engine.pp, engine.dp, engine.ep

    @property
    def trainer(self) -> str:
        """The split of its trainer, as text."""
        layout = self.launch.layout
        return f"{configuration_key(layout.trainer)}, {self.launch.token_limit}"

    @cached_property
    def costed(self) -> Costed:
        """Its phases, and those of them that add up to the step."""
        return costed_step(self.step)

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return self.step.step_s

    @property
    def fits(self) -> float:
        """Probability that every phase fits in memory."""
        return self.step.fit_probability

    @property
    def gpus(self) -> int:
        """GPUs of trainer and engines together."""
        return self.launch.layout.gpus

    @property
    def peak_bytes(self) -> float | None:
        """None, because logs show only the memory of the trainer's allocator, not the engine's
        share."""
        return None


def rl_candidates(result: RlResult) -> dict[str, RlCandidate]:
    """Candidates by key: the plans that can be launched, then their neighbours, fastest first.
    UsageError if no plan can be launched."""
    found: dict[str, RlCandidate] = {}
    why: list[str] = []
    for name, job, layout in _planned(result):
        _add(found, why, RlLaunch(result.request, job, layout), name)
    if not found:
        raise UsageError(f"no plan of the file can be started: {why[0]}")
    near: dict[str, RlCandidate] = {}
    for name, job, layout in _near(result):
        _add(near, why, RlLaunch(result.request, job, layout), name)
    some = sorted(near.values(), key=lambda one: one.step_s)
    likely = (one for one in some if one.fits >= LEAST_FIT and one.key not in found)
    return dict([*found.items(), *((one.key, one) for one in likely)][:MOST_CANDIDATES])


def _planned(result: RlResult) -> Iterator[tuple[str, RlJob, RlLayout]]:
    for number, plan in enumerate(result.plans, start=1):
        yield f"plan {number}", *layout_of(result.request, plan)


def _near(result: RlResult) -> Iterator[tuple[str, RlJob, RlLayout]]:
    for number, plan in enumerate(result.plans[:_WITH_NEIGHBOURS], start=1):
        for change, job, layout in neighbour_layouts(result.request, plan):
            yield f"plan {number} with {change}", job, layout


def _add(found: dict[str, RlCandidate], why: list[str], launch: RlLaunch, name: str) -> None:
    """Add a candidate if it can be launched; otherwise add the reason to `why`."""
    try:
        note = launch_note(launch)
        one = RlCandidate(name, launch, rl_step(launch.job, launch.layout))
    except UsageError as error:
        note = str(error)
    if note is None:
        found.setdefault(one.key, one)
    else:
        why.append(note)
