"""Where trainer and engines may run, and the time and memory of each side alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from hardware.schema import Gpu
from planner.job.rl.job import RlJob
from planner.job.rl.spec import Placement
from planner.predict.configuration import Configuration
from planner.predict.rl.moves import ways
from planner.predict.rl.plan import EngineLayout, Generation, Phase, RlLayout, Training
from planner.predict.rl.step import RlStep, beside_engine, compose
from planner.search.rl.costs import Costs
from planner.search.rl.trainers import Trainer

# Most splits of the GPUs that are tried.
MOST_SPLITS = 8
NO_TRAINING = Training((), {}, {}, 0.0)


@dataclass(frozen=True, slots=True)
class Group:
    """A placement with the GPUs of each side, and the number of updates by which samples may
    lag."""

    placement: Placement
    trainer_gpus: int
    engine_gpus: int
    staleness: int = 0

    @property
    def together(self) -> bool:
        """Whether both sides work at the same time."""
        return self.placement == "separate" and self.staleness > 0

    def streams(self, job: RlJob) -> bool:
        """Whether sampling continues across an update, if the framework can do that."""
        return self.together and job.partial_rollouts


def groups_of(job: RlJob) -> tuple[Group, ...]:
    """Every combination of placement, split and staleness that a job leaves open."""
    gpus = job.trainer.cluster.num_gpus
    found = [Group("colocated", gpus, gpus)] if "colocated" in job.placements else []
    if "separate" in job.placements:
        found += [
            Group("separate", trainer, engine, staleness)
            for trainer, engine in splits_of(job)
            for staleness in useful_staleness(job)
        ]
    return tuple(found)


def useful_staleness(job: RlJob) -> tuple[int, ...]:
    """0 if the framework supports it for engines on separate GPUs, and the smallest positive value.
    In the cost model more staleness makes no step shorter, only the samples older."""
    behind = [one for one in job.staleness if one > 0]
    waits = job.framework.separate_synchronous and 0 in job.staleness
    return (*((0,) if waits else ()), *sorted(behind)[:1])


def splits_of(job: RlJob) -> tuple[tuple[int, int], ...]:
    """(GPUs that train, GPUs that sample): as given, else every number of whole nodes, or of single
    GPUs on one node. If that gives more than `MOST_SPLITS`, evenly spaced ones."""
    gpus, node = job.trainer.cluster.num_gpus, job.trainer.cluster.gpus_per_node
    if job.engine_cluster is not None:
        return ((gpus, job.engine_cluster.num_gpus),)
    if job.engine_gpus is not None:
        return ((gpus - job.engine_gpus, job.engine_gpus),)
    unit = node if gpus > node else 1
    engines = list(range(unit, gpus, unit))
    each = -(-len(engines) // MOST_SPLITS) or 1
    return tuple((gpus - engine, engine) for engine in engines[::each])


def engine_gpu(job: RlJob) -> Gpu | None:
    """The GPU that samples; None if it is the trainer's."""
    return job.engine_cluster.gpu if job.engine_cluster is not None else None


@dataclass(frozen=True, slots=True)
class Engine:
    """A costed engine layout of a group. `seconds`: lower bound on its side's time, whatever the
    trainer. `share`: memory share of its fullest GPU. Both are infinite if it does not fit.
    `preempts`: some sequences lose their cache."""

    layout: EngineLayout
    seconds: float
    share: float
    preempts: bool = False


@dataclass(frozen=True)
class Alone:
    """The time of one side of a step while the other does nothing, computed as differences of whole
    steps, so that sums and overlaps are those of the step itself.

    `configuration`: any trainer configuration on the group's GPUs.
    """

    job: RlJob
    group: Group
    configuration: Configuration
    costs: Costs

    def layout(self, engine: EngineLayout, way: str = "", *, leaves: bool = False) -> RlLayout:
        """A layout of the group with this engine."""
        return RlLayout(
            self.group.placement,
            self.configuration,
            engine,
            self.group.staleness,
            trainer_leaves=leaves,
            streams=self.group.streams(self.job),
            way=way,
            engine_gpu=engine_gpu(self.job),
        )

    def engine(self, layout: EngineLayout, way: str = "") -> Engine:
        """Cost an engine, with the fastest way of sending new weights if there are several."""
        generation = self.costs.generate(self.job, layout, 0.0, engine_gpu(self.job))
        if not generation.fits:
            return Engine(layout, inf, inf)
        steps = (
            compose(self.job, self.layout(layout, one), NO_TRAINING, generation)
            for one in ways_of(self.job, self.group.placement, way)
        )
        step = min(steps, key=lambda step: step.step_s)
        share = memory_share(step)
        seconds = step.step_s if share <= 1.0 else inf
        return Engine(layout, seconds, share, preempts=generation.preempted > 0.0)

    def trainer_s(self, training: Training, *, leaves: bool) -> float:
        """Seconds that a trainer adds to a step whose engines do nothing."""
        idle = self._idle_step(NO_TRAINING, leaves=False)
        serial = self._idle_step(training, leaves=leaves)
        return serial.step_s - idle.step_s

    def leaving_s(self, resident: float) -> float:
        """Seconds to move this many bytes to the host and back."""
        moved = replace(NO_TRAINING, resident={"weights": resident})
        return self.trainer_s(moved, leaves=True)

    def trainer_share(self, training: Training, *, leaves: bool) -> float:
        """Peak memory share of the trainer, whatever the engine."""
        return memory_share(self._idle_step(training, leaves=leaves))

    def beside_share(self, training: Training, *, leaves: bool) -> float:
        """Share of a GPU that a trainer occupies while engines sample."""
        layout = self.layout(_ONE_ENGINE, leaves=leaves)
        usable = self.configuration.job.cluster.gpu.hbm_usable_bytes
        return sum(beside_engine(layout, training).values()) / usable

    def left_bytes(self, training: Training) -> float:
        """Bytes that every engine leaves on a GPU while the trainer works."""
        alone = {phase.name: phase.peak_bytes for phase in training.phases}
        with_engine = self._idle_step(training, leaves=False).of("trainer")
        left = [one.peak_bytes - alone[one.name] for one in with_engine if one.name in alone]
        return min(left, default=0.0)

    def _idle_step(self, training: Training, *, leaves: bool) -> RlStep:
        serial = replace(self.layout(_ONE_ENGINE, leaves=leaves), staleness=0)
        return compose(self.job, serial, training, self._idle)

    @cached_property
    def _idle(self) -> Generation:
        nothing = Phase("generation", "engine", 0.0, {}, {})
        return Generation(nothing, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), fits=True)


# An engine leaves more on a GPU the more layers a stage has; this one has the fewest.
_ONE_ENGINE = EngineLayout(1, pp=4)


def ways_of(job: RlJob, placement: Placement, said: str = "") -> Sequence[str]:
    """Ways to send new weights from trainer to engine that the framework has in a placement, or
    just the requested one."""
    framework = job.framework
    if placement == "colocated":
        return (framework.transfer_colocated,)
    known = tuple(way for way in framework.transfer_separate if ways()[way].reaches(job))
    return (said,) if said in known else known


def leaves_of(job: RlJob, placement: Placement) -> tuple[bool, ...]:
    """Whether the trainer's tensors go to the host while engines sample. On shared GPUs every
    option of the framework is tried; on separate GPUs there is no need."""
    return job.framework.trainer_choices if placement == "colocated" else (False,)


def memory_share(step: RlStep) -> float:
    """Memory share of the fullest GPU of either side."""
    return max(one.peak_bytes / step.usable_bytes[one.side] for one in step.phases)


def joined(
    job: RlJob,
    group: Group,
    trainer: Trainer,
    engine: EngineLayout,
    costs: Costs,
    *,
    leaves: bool,
    way: str = "",
) -> RlStep:
    """The step of a trainer and an engine together, with the fastest way of sending new weights."""
    steps = (
        costs.step(
            job,
            RlLayout(
                group.placement, trainer.configuration, engine, group.staleness,
                trainer.critic, leaves, group.streams(job), one, engine_gpu(job),
            ),
            trainer.training,
        )
        for one in ways_of(job, group.placement, way)
    )  # fmt: skip
    return min(steps, key=lambda step: step.step_s)
