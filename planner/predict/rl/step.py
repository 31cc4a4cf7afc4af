"""A step of reinforcement learning: its phases in order on both sides, and memory while they last.

Colocated, trainer and engine take turns on the same GPUs: seconds of all phases add up, and a phase
holds what its side needs beside what the other side leaves on the GPU. On GPUs of their own, a
synchronous step is a sum as well, of which each side waits through the other's part; with samples
that may be behind by an update or more, both sides work at once and the slower one binds.
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
from planner.predict.rl.states import asleep, sleep_phase, wake_phase
from planner.predict.rl.training import train
from planner.predict.uncertainty.intervals import fit_probability


@dataclass(frozen=True)
class RlStep:
    """One step in steady state.

    `phases`: of both sides, each side's in order; `step_s`: from one update of the weights to the
    next of the samples of one step; `low_s`, `high_s`: its 80 % interval.
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
        """Seconds that a side works for one step."""
        return sum(phase.seconds for phase in self.of(side))

    @property
    def idle(self) -> Mapping[Side, float]:
        """Share of a step in which each side's GPUs wait for the other; none where they share."""
        if self.layout.placement == "colocated":
            return {"trainer": 0.0, "engine": 0.0}
        sides: tuple[Side, Side] = ("trainer", "engine")
        return {side: max(0.0, 1.0 - self.seconds(side) / self.step_s) for side in sides}

    @cached_property
    def peaks(self) -> Mapping[Side, Phase]:
        """The phase in which each side's fullest GPU holds most."""
        sides = dict.fromkeys(phase.side for phase in self.phases)
        return {side: max(self.of(side), key=lambda phase: phase.peak_bytes) for side in sides}

    @property
    def peak_bytes(self) -> float:
        """Bytes on the fullest GPU of either side."""
        return max(phase.peak_bytes for phase in self.phases)

    @property
    def fits(self) -> bool:
        """Whether every phase fits its GPUs, by the prediction's middle."""
        held = all(one.peak_bytes <= self.usable_bytes[one.side] for one in self.phases)
        return held and self.generation.fits

    @cached_property
    def fit_probability(self) -> float:
        """Probability that every phase fits: the trainer's tensors may turn out larger than
        predicted; an engine takes its share and fills the rest of that with its KV cache."""
        if not self.generation.fits:
            return 0.0
        return min((self._fits_with(one) for one in self.phases), default=1.0)

    def _fits_with(self, phase: Phase) -> float:
        trainers = sum(size for name, size in phase.held.items() if self._is_trainers(name, phase))
        limit = self.usable_bytes[phase.side] - (phase.peak_bytes - trainers)
        if trainers <= 0.0:
            return float(limit >= 0.0)
        return fit_probability(self.layout.trainer.job, trainers, limit)

    def _is_trainers(self, name: str, phase: Phase) -> bool:
        if name.startswith(("trainer: ", "engine: ")):
            return name.startswith("trainer: ")
        return phase.side == "trainer"


def rl_step(job: RlJob, layout: RlLayout) -> RlStep:
    """What a layout of a job takes and holds, from its own trainer and engines. UsageError for
    degrees that no engine takes."""
    training = train(job, layout.trainer, layout.critic)
    beside = sum(beside_engine(layout, training).values())
    return compose(job, layout, training, generate(job, layout.engine, beside, layout.engine_gpu))


def beside_engine(layout: RlLayout, training: Training) -> Mapping[str, float]:
    """Bytes that the trainer keeps on a GPU of the engine while that samples."""
    if layout.placement == "separate":
        return {}
    stays = training.staying if layout.trainer_leaves else {**training.resident, **training.staying}
    return _prefixed("trainer", stays)


def _prefixed(side: Side, held: Mapping[str, float]) -> Mapping[str, float]:
    """What a side holds, named after it where the other side's phase is meant."""
    return {f"{side}: {name}": size for name, size in held.items() if size}


def compose(job: RlJob, layout: RlLayout, training: Training, generation: Generation) -> RlStep:
    """The step of a trainer and an engine that are costed."""
    colocated = layout.placement == "colocated"
    moved = transfer(
        job, layout.engine, layout.way or usual_way(job, colocated=colocated), training.shard_bytes
    )
    phases = (
        tuple(_taking_turns(job, layout, training, generation, moved))
        if colocated
        else tuple(_on_their_own(job, training, generation, moved, layout))
    )
    phases = tuple(one if one.low < 1.0 else with_bar(one, job) for one in phases)
    step_s = _step_seconds(layout, phases)
    low, high = _interval(layout, phases, step_s)
    usable = layout.trainer.job.cluster.gpu.hbm_usable_bytes
    engine_gpu = layout.engine_gpu or layout.trainer.job.cluster.gpu
    return RlStep(
        layout, phases, generation, training, moved, step_s, low, high,
        {"trainer": usable, "engine": engine_gpu.hbm_usable_bytes},
    )  # fmt: skip


def _taking_turns(
    job: RlJob, layout: RlLayout, training: Training, generation: Generation, moved: Transfer
) -> Iterator[Phase]:
    """Phases on the same GPUs, in order: new weights, sampling, judging, reading, training.

    A trainer that leaves drops its gradients and sends its states to the host before new weights
    go over, and its weights behind them (NeMo-RL, `refit_policy_generation`; verl,
    `update_weights`).
    """
    beside = beside_engine(layout, training)
    engine = generation.phase
    awake = {name: size for name, size in engine.held.items() if name not in beside}
    weights = {name: size for name, size in awake.items() if name == "weights"}
    sleeping = asleep(job, layout.engine)
    trainer = _prefixed("trainer", {**training.resident, **training.staying})
    if layout.trainer_leaves:
        yield _trainer_moves(
            "leave", job.trainer.cluster, training, {**trainer, **_prefixed("engine", sleeping)}
        )
        trainer = _prefixed("trainer", _weights(training.resident) | dict(training.staying))
    yield _moving(moved, "engine", {**trainer, **weights, **sleeping})
    yield wake_phase(job, layout, {**awake, **beside})
    yield replace(engine, held={**awake, **beside})
    yield from _judging(job, "engine", {**awake, **beside})
    yield sleep_phase(job, {**awake, **beside})
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
    job: RlJob, training: Training, generation: Generation, moved: Transfer, layout: RlLayout
) -> Iterator[Phase]:
    """Phases on GPUs of their own. New weights are an exchange of both sides."""
    engine = generation.phase
    sampling = _steady(engine, generation) if layout.streams else engine
    yield _moving(moved, "engine", engine.held)
    yield sampling
    yield from _judging(job, "engine", engine.held)
    yield from training.phases
    resident = {**training.resident, **training.staying}
    yield _moving(moved, "trainer", {**resident, "buffers": moved.buffer_bytes})


def _steady(engine: Phase, generation: Generation) -> Phase:
    """Sampling where the next prompts follow at once, so that no engine waits for the longest
    answer of a step; the terms keep their shares."""
    share = generation.steady_s / engine.seconds if engine.seconds else 1.0
    terms = {name: value * share for name, value in engine.terms.items()}
    return replace(engine, seconds=generation.steady_s, terms=terms)


def _judging(job: RlJob, side: Side, held: Mapping[str, float]) -> Iterator[Phase]:
    """A reward that takes given seconds; a rule takes none, a model is a phase of the trainer's."""
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
    """The trainer's tensors go to the host, or come back; gradients are made anew."""
    copied = (size for name, size in training.resident.items() if name != "gradients")
    seconds = sum(copied) / unpinned_bytes_per_s(cluster)
    return Phase(name, "trainer", seconds, {"copies": seconds}, held)


def _step_seconds(layout: RlLayout, phases: tuple[Phase, ...]) -> float:
    """Colocated and synchronous steps are sums; else the slower side binds."""
    sides = {side: sum(one.seconds for one in phases if one.side == side) for side in _SIDES}
    if layout.placement == "colocated":
        return sides["engine"] + sides["trainer"]
    exchange = next(one.seconds for one in phases if one.name == "transfer")
    if layout.staleness == 0:
        return sides["engine"] + sides["trainer"] - exchange
    return max(sides["engine"], sides["trainer"])


_SIDES: tuple[Side, Side] = ("trainer", "engine")


def _interval(layout: RlLayout, phases: tuple[Phase, ...], step_s: float) -> tuple[float, float]:
    """The 80 % interval: of all phases where they add up, of the side that binds where both work at
    once."""
    binding = phases
    if layout.placement == "separate" and layout.staleness > 0:
        sums = {side: sum(one.seconds for one in phases if one.side == side) for side in _SIDES}
        slower = max(_SIDES, key=lambda side: sums[side])
        binding = tuple(one for one in phases if one.side == slower)
    low, high = step_bar(binding)
    return step_s * low, step_s * high
