"""A step of reinforcement learning: its phases in order on both sides, and memory in each.

Colocated, trainer and engine take turns on the same GPUs: the seconds of all phases add up, and the
memory of a phase is that of its side plus the bytes that the other side leaves on the GPU. On
separate GPUs, a synchronous step is also a sum, in which each side waits for the other; if samples
may be behind by one update or more, both sides work at once and the slower one determines the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from hardware.schema import Cluster
from planner.job.rl.job import RlJob
from planner.predict.rl.errors import step_bar, with_bar
from planner.predict.rl.generation import generate
from planner.predict.rl.moves import Transfer, transfer, unpinned_bytes_per_s, usual_way
from planner.predict.rl.plan import Generation, Phase, RlLayout, Side, Training, at_work
from planner.predict.rl.states import asleep, engine_turns
from planner.predict.rl.training import train
from planner.predict.uncertainty.intervals import fit_probability


@dataclass(frozen=True)
class RlStep:
    """One step in steady state.

    `phases`: those of both sides, each side's in order; `step_s`: from one update of the weights to
    the next; `low_s`, `high_s`: its 80 % interval.
    """

    layout: RlLayout
    phases: tuple[Phase, ...]
    generation: Generation
    training: Training
    transfer: Transfer
    step_s: float
    low_s: float
    high_s: float
    usable_bytes: Mapping[Side, float]

    def of(self, side: Side) -> tuple[Phase, ...]:
        """The phases of one side, in order."""
        return tuple(phase for phase in self.phases if phase.side == side)

    def seconds(self, side: Side) -> float:
        """Seconds that a side works in one step."""
        return sum(phase.seconds for phase in self.of(side))

    @property
    def idle(self) -> Mapping[Side, float]:
        """Share of a step in which each side's GPUs wait for the other; 0 if they share GPUs."""
        if self.layout.placement == "colocated":
            return {"trainer": 0.0, "engine": 0.0}
        return {side: max(0.0, 1.0 - self.seconds(side) / self.step_s) for side in _SIDES}

    @cached_property
    def peaks(self) -> Mapping[Side, Phase]:
        """For each side, the phase with the most bytes on its fullest GPU."""
        sides = dict.fromkeys(phase.side for phase in self.phases)
        return {side: max(self.of(side), key=lambda phase: phase.peak_bytes) for side in sides}

    @property
    def peak_bytes(self) -> float:
        """Bytes on the fullest GPU of either side."""
        return max(phase.peak_bytes for phase in self.phases)

    @property
    def fits(self) -> bool:
        """Whether the predicted bytes of every phase fit its GPUs, and generation fits
        (`Generation.fits`)."""
        held = all(phase.peak_bytes <= self.usable_bytes[phase.side] for phase in self.phases)
        return held and self.generation.fits

    @cached_property
    def fit_probability(self) -> float:
        """Probability that every phase fits: that of the phase least likely to fit; 0 if generation
        does not fit. Only the trainer's tensors may be larger than predicted; an engine fills its
        fixed share of the memory with KV cache."""
        if not self.generation.fits:
            return 0.0
        return min((self._fits_with(phase) for phase in self.phases), default=1.0)

    def _fits_with(self, phase: Phase) -> float:
        on_trainer = phase.side == "trainer"
        trainers = sum(
            size
            for name, size in phase.held.items()
            if name.startswith("trainer: ") or (on_trainer and not name.startswith("engine: "))
        )
        limit = self.usable_bytes[phase.side] - (phase.peak_bytes - trainers)
        if trainers <= 0.0:
            return float(limit >= 0.0)
        return fit_probability(self.layout.trainer.job, trainers, limit)


def rl_step(job: RlJob, layout: RlLayout) -> RlStep:
    """Time and memory of a layout of a job. UsageError for degrees that no engine takes."""
    training = train(job, layout.trainer, layout.critic)
    beside = sum(beside_engine(layout, training).values())
    return compose(job, layout, training, generate(job, layout.engine, beside, layout.engine_gpu))


def beside_engine(layout: RlLayout, training: Training) -> Mapping[str, float]:
    """Bytes, by content, that the trainer keeps on a GPU of the engine while the engine samples;
    empty if both have separate GPUs. A trainer that leaves keeps only those that cannot be moved.
    """
    if layout.placement == "separate":
        return {}
    stays = training.staying if layout.trainer_leaves else {**training.resident, **training.staying}
    return _prefixed("trainer", stays)


def _prefixed(side: Side, held: Mapping[str, float]) -> Mapping[str, float]:
    """Bytes of a side, with the side before each name (`trainer: weights`), to be listed in a phase
    of the other side. Entries of 0 are left out."""
    return {f"{side}: {name}": size for name, size in held.items() if size}


def compose(job: RlJob, layout: RlLayout, training: Training, generation: Generation) -> RlStep:
    """The step of a trainer and an engine whose costs are already known."""
    colocated = layout.placement == "colocated"
    way = layout.way or usual_way(job, colocated=colocated)
    moved = transfer(job, layout.engine, way, training.shard_bytes)
    sequence = _taking_turns if colocated else _on_their_own
    phases = tuple(
        one if one.low < 1.0 else with_bar(one, job)
        for one in sequence(job, layout, training, generation, moved)
    )
    step_s, binding = _binding(layout, phases)
    low, high = step_bar(binding)
    usable = layout.trainer.job.cluster.gpu.hbm_usable_bytes
    engine_gpu = layout.engine_gpu or layout.trainer.job.cluster.gpu
    return RlStep(
        layout, phases, generation, training, moved, step_s, step_s * low, step_s * high,
        {"trainer": usable, "engine": engine_gpu.hbm_usable_bytes},
    )  # fmt: skip


def _taking_turns(
    job: RlJob, layout: RlLayout, training: Training, generation: Generation, moved: Transfer
) -> Iterator[Phase]:
    """Phases on the same GPUs, in order: new weights, sampling, judging, reading, training.

    A trainer that leaves drops its gradients and moves its states to the host before the transfer
    of new weights, and its weights after it (NeMo-RL, `refit_policy_generation`; verl,
    `update_weights`).
    """
    beside = beside_engine(layout, training)
    engine = generation.phase
    awake = {name: size for name, size in engine.held.items() if name not in beside}
    weights, sleeping = _weights(awake), asleep(job, layout.engine)
    trainer = _prefixed("trainer", {**training.resident, **training.staying})
    if layout.trainer_leaves:
        yield _trainer_moves(
            "leave", job.trainer.cluster, training, {**trainer, **_prefixed("engine", sleeping)}
        )
        trainer = _prefixed("trainer", _weights(training.resident) | dict(training.staying))
    yield _moving(moved, "engine", {**trainer, **weights, **sleeping})
    yield engine_turns("wake", job, layout, {**awake, **beside})
    yield replace(engine, held={**awake, **beside})
    yield from _judging(job, "engine", {**awake, **beside})
    yield engine_turns("sleep", job, layout, {**awake, **beside})
    engine_left = _prefixed("engine", sleeping if job.framework.sleep_level else awake)
    if layout.trainer_leaves:
        trainer = _prefixed("trainer", {**training.resident, **training.staying})
        yield _trainer_moves("return", job.trainer.cluster, training, {**trainer, **engine_left})
    for phase in training.phases:
        held = at_work(phase.held) if layout.trainer_leaves else phase.held
        yield replace(phase, held={**held, **engine_left})


def _weights(resident: Mapping[str, float]) -> dict[str, float]:
    return {name: size for name, size in resident.items() if name == "weights"}


def _on_their_own(
    job: RlJob, layout: RlLayout, training: Training, generation: Generation, moved: Transfer
) -> Iterator[Phase]:
    """Phases on separate GPUs. The transfer of new weights occupies both sides."""
    engine = generation.phase
    sampling = _steady(engine, generation) if layout.streams else engine
    yield _moving(moved, "engine", engine.held)
    yield sampling
    yield from _judging(job, "engine", engine.held)
    yield from training.phases
    resident = {**training.resident, **training.staying}
    yield _moving(moved, "trainer", {**resident, "buffers": moved.buffer_bytes})


def _steady(engine: Phase, generation: Generation) -> Phase:
    """The generation phase with its seconds replaced by those of engines that always have a next
    prompt (`steady_s`); the causes keep their shares of them."""
    share = generation.steady_s / engine.seconds if engine.seconds else 1.0
    terms = {name: value * share for name, value in engine.terms.items()}
    return replace(engine, seconds=generation.steady_s, terms=terms)


def _judging(job: RlJob, side: Side, held: Mapping[str, float]) -> Iterator[Phase]:
    """The reward phase, if the reward takes a given number of seconds; otherwise nothing. A rule
    takes no time, and a reward model is a phase of the trainer."""
    if job.reward.kind == "seconds" and job.reward.seconds:
        yield Phase("reward", side, job.reward.seconds, {"given": job.reward.seconds}, held)


def _moving(moved: Transfer, side: Side, held: Mapping[str, float]) -> Phase:
    held = {**held, "buffers": moved.buffer_bytes}
    return Phase("transfer", side, moved.seconds, moved.terms, held)


def _trainer_moves(
    name: Literal["leave", "return"],
    cluster: Cluster,
    training: Training,
    held: Mapping[str, float],
) -> Phase:
    """The phase in which the trainer's tensors are moved to the host or back, except gradients,
    which are computed anew."""
    copied = (size for name, size in training.resident.items() if name != "gradients")
    seconds = sum(copied) / unpinned_bytes_per_s(cluster)
    return Phase(name, "trainer", seconds, {"copies": seconds}, held)


_SIDES: tuple[Side, Side] = ("trainer", "engine")


def _binding(layout: RlLayout, phases: tuple[Phase, ...]) -> tuple[float, tuple[Phase, ...]]:
    """(seconds of a step, phases that determine them). Colocated or synchronous: all phases, whose
    seconds add up (a transfer between separate GPUs occupies both sides and counts once).
    Otherwise: the phases of the slower side."""
    sides = {side: sum(phase.seconds for phase in phases if phase.side == side) for side in _SIDES}
    both = sides["engine"] + sides["trainer"]
    if layout.placement == "colocated":
        return both, phases
    if layout.staleness == 0:
        return both - next(phase.seconds for phase in phases if phase.name == "transfer"), phases
    slower = max(_SIDES, key=lambda side: sides[side])
    return sides[slower], tuple(phase for phase in phases if phase.side == slower)
