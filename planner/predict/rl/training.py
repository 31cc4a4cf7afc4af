"""The trainer's side of a step: passes that read all samples, and the update.

Every phase is a step of the cost core. The update has an optimizer step for each mini-batch and
epoch. Log-probabilities of the policy and of a reference, a critic's values and a reward model's
scores are forward passes over all samples at once, with a separate token limit
(`planner.predict.rl.batch_model.ReadingModel`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.cost import fields as f
from planner.cost.tables import Array
from planner.cost.terms import MEMORY_TERMS, TIME_TERMS
from planner.job.frameworks.losses import with_objective
from planner.job.job import Job
from planner.job.objective import Objective
from planner.job.recompute import Module, RecomputeMode
from planner.job.rl.job import RlJob
from planner.job.specs import ModelSpec
from planner.predict.configuration import Configuration, even_layout
from planner.predict.cost_model import Columns
from planner.predict.mixture import CostedLayout, cost_layout
from planner.predict.rl.batch_model import BatchModel, ReadingModel
from planner.predict.rl.micro_batches import by_tokens, mini_batch, whole_batch, with_micro_batches
from planner.predict.rl.moves import unpinned_bytes_per_s
from planner.predict.rl.plan import WAITING, Phase, PhaseName, Training
from planner.predict.stage import Stage

Bytes = dict[str, float]
_SCORES = Objective("reward")
# Memory terms of a stage that are not in tensors of a phase.
_STAYING = ("communication", "context")
# Seconds for a layer to rotate queries and keys of one packed sample forward, on the host of a DGX
# A100: some two dozen kernel launches. ISEEKYAN/verl_megatron_practice measured 7B on H100, whose
# hosts launch 1.4 times as fast, with and without fusion: 9 s of a reading pass and 18 s of an
# update, of 2,048 samples a rank.
ROTATED_S = 2.17e-4
# Names of the other models on the trainer's GPUs.
REFERENCE, CRITIC, JUDGE = "reference", "critic", "reward model"


class Models:
    """Compiled cost models of trainers' jobs, each built once, for costing many configurations of
    the same jobs."""

    def __init__(self) -> None:
        # Keys are identities of objects, so the objects are kept alive.
        self._made: dict[tuple[int, type[BatchModel]], tuple[Job, BatchModel]] = {}
        self._scoring: dict[tuple[int, int], tuple[Job, ModelSpec, Job]] = {}

    def of(self, job: RlJob, trainer: Job, kind: type[BatchModel]) -> BatchModel:
        """The cost model of class `kind` for a trainer's job, with the micro-batches of the RL job;
        built at the first call."""
        key = id(trainer), kind
        if key not in self._made:
            self._made[key] = trainer, kind(costing_job(job, trainer))
        return self._made[key][1]

    def scoring_job(self, trainer: Job, model: ModelSpec) -> Job:
        """The trainer's job with a model that outputs scores; made once for each pair."""
        key = id(trainer), id(model)
        if key not in self._scoring:
            self._scoring[key] = trainer, model, scoring_job(trainer, model)
        return self._scoring[key][2]


class _Plain(Models):
    """Cost models in plain Python, one per configuration, so that no compiler is loaded."""

    def of(self, job: RlJob, trainer: Job, kind: type[BatchModel]) -> BatchModel:
        return kind(costing_job(job, trainer), compiled=False)


def train(
    job: RlJob,
    trainer: Configuration,
    critic: Configuration | None = None,
    models: Models | None = None,
) -> Training:
    """Time and memory of a trainer's configuration for one step of a job. `critic`: configuration
    of its critic, on the same GPUs, None for the trainer's degrees; the jobs of both configurations
    have the GPUs that train. `models`: shared between calls that cost many configurations.

    Bytes that a phase does not need are marked by their name (`WAITING`): gradients and states
    while a pass reads, and models other than the one at work. If the trainer leaves, they leave
    with it.
    """
    return _Account(job, trainer, critic, models or _Plain()).training()


@dataclass(frozen=True)
class Costed:
    """A configuration, and the costs of its model in one phase as the kernel computed them."""

    configuration: Configuration
    costed: CostedLayout

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of one step, by term; terms of 0 are left out."""
        step = self.costed.step
        return {
            term.name: float(step[f.TIME_COLUMNS[term.field]])
            for term in TIME_TERMS
            if step[f.TIME_COLUMNS[term.field]]
        }

    @cached_property
    def _fullest(self) -> int:
        return int(self.costed.step[f.STEP_PEAK_STAGE])

    @cached_property
    def peak(self) -> Bytes:
        """Bytes by term on the fullest GPU at its peak."""
        row = self.costed.stages[self._fullest]
        return {term.words: float(row[f.MEMORY_COLUMNS[term.field]]) for term in MEMORY_TERMS}

    @cached_property
    def resting(self) -> Bytes:
        """Bytes on the fullest GPU that stay between micro-batches: weights, optimizer state, and
        gradients if they have buffers of their own. If a GPU keeps only FSDP's fp32 shards, these
        count as weights."""
        machine = self.configuration.machines[self._fullest]
        stage = Stage(self.costed.memory[machine], self._fullest)
        rest, framework = stage.rest, stage.inputs.framework
        weights, master = float(rest.resting.weights), float(rest.resting.master_weights)
        states = float(rest.resting.optimizer_state)
        gradients = float(rest.moving.gradients) if framework.persistent_gradients else 0.0
        if not weights:
            weights, master = master, 0.0
        return {"weights": weights, "gradients": gradients, "optimizer state": master + states}

    @property
    def staying(self) -> Bytes:
        """Bytes on the fullest GPU that are not tensors."""
        return {term.words: self.peak[term.words] for term in MEMORY_TERMS if term.name in _STAYING}


@dataclass(frozen=True)
class _Account:
    """The configurations of a trainer and of its critic, with every phase of a step costed once."""

    job: RlJob
    trainer: Configuration
    critic: Configuration | None
    models: Models

    def training(self) -> Training:
        policy = self.update
        return Training(
            phases=(*self._reads(), *self._updates()),
            resident=policy.resting | {name: size for name, size in self.beside.items() if size},
            staying=policy.staying,
            shard_bytes=policy.resting["weights"],
        )

    # --- what is costed --------------------------------------------------------------------------

    @cached_property
    def update(self) -> Costed:
        """One optimizer step of the policy."""
        return self._costed(self.trainer, BatchModel)

    @cached_property
    def critic_update(self) -> Costed | None:
        """One optimizer step of the critic; None without a critic."""
        return self._costed(self._critic, BatchModel) if self._critic else None

    @cached_property
    def reading(self) -> Costed:
        """A pass of the policy over all samples."""
        return self._costed(self.trainer, ReadingModel)

    @cached_property
    def judging(self) -> Costed | None:
        """A reward model's pass over all samples; None if the reward is not a model's."""
        model = self.job.reward.model
        if self.job.reward.kind != "model" or model is None:
            return None
        return self._costed(scoring(self.trainer, model, self.models), ReadingModel)

    def _costed(self, configuration: Configuration, kind: type[BatchModel]) -> Costed:
        """A configuration's optimizer step over a mini-batch, or its reading pass over all
        samples."""
        batch = (whole_batch if kind is ReadingModel else mini_batch)(self.job)
        model = self.models.of(self.job, configuration.job, kind)
        prepared = replace(configuration, job=model.job)
        columns = with_micro_batches(self.job, batch, prepared.columns)
        costed = cost_layout(model, model.price_shapes(columns), 0, prepared)
        return Costed(prepared, costed)

    @property
    def _critic(self) -> Configuration | None:
        if self.job.critic is None:
            return None
        if self.critic is None:
            return scoring(self.trainer, self.job.critic, self.models)
        critic_job = self.models.scoring_job(self.critic.job, self.job.critic)
        return replace(self.critic, job=critic_job)

    @cached_property
    def beside(self) -> Bytes:
        """Bytes, by model, that the reference, the critic and the reward model keep on the policy's
        GPUs; only those that the job has there."""
        found: dict[str, float] = {}
        if self.job.reference == "copied":
            found[REFERENCE] = self.reading.peak["weights"]
        if self.critic_update is not None:
            found[CRITIC] = sum(self.critic_update.resting.values())
        if self.judging is not None:
            found[JUDGE] = self.judging.peak["weights"]
        return found

    # --- phases ----------------------------------------------------------------------------------

    def _reads(self) -> Iterator[Phase]:
        if self.judging is not None:
            yield self._read("reward", self.judging, JUDGE)
        if self.job.old_logprobs:
            yield self._read("old_logprobs", self.reading, "")
        if self.job.reference != "none":
            yield self._read("reference", self.reading, REFERENCE)
        if (configuration := self._critic) is not None:
            yield self._read("values", self._costed(configuration, ReadingModel), CRITIC)

    def _read(self, name: PhaseName, pass_: Costed, of: str) -> Phase:
        """The phase of a forward pass over all samples. `of`: name of the model that reads; empty
        for the policy."""
        terms = dict(pass_.seconds)
        if name == "reference" and self.job.reference == "host":
            # The reference's weights replace the policy's, which come back afterwards.
            rate = unpinned_bytes_per_s(self.trainer.job.cluster)
            terms["swap"] = 2.0 * self.update.resting["weights"] / rate
        terms |= self._handed_out | self._rotary(pass_.configuration, 1.0)
        work = {term: size for term, size in pass_.peak.items() if term not in pass_.resting}
        return _phase(name, terms, self._held(of, read=True) | work)

    def _updates(self) -> Iterator[Phase]:
        if self.critic_update is not None:
            terms = self._trained(self.critic_update)
            held = self._held(CRITIC, read=False) | self.critic_update.peak
            yield _phase("critic_update", terms, held)
        yield _phase(
            "update", self._trained(self.update), self._held("", read=False) | self.update.peak
        )

    def _trained(self, one: Costed) -> dict[str, float]:
        """Seconds by term of all optimizer steps of a model in one step of the job."""
        seconds = {name: self.job.updates * value for name, value in one.seconds.items()}
        passes = self.job.epochs * passes_of(one.configuration.mode)
        return seconds | self._handed_out | self._rotary(one.configuration, passes)

    @property
    def _handed_out(self) -> dict[str, float]:
        """`{"controller": seconds}` in which a single controller distributes samples to the ranks
        and collects results; empty if that takes no time."""
        seconds = handed_out_s(self.job)
        return {"controller": seconds} if seconds else {}

    def _rotary(self, trained: Configuration, passes: float) -> dict[str, float]:
        """`{"rotary": seconds}` in which rotary embeddings are applied to packed samples one by
        one, for `passes` passes over all samples; empty if that takes no time."""
        columns = {name: trained.columns[name] for name in ("dp", "pp")}
        seconds = float(rotary_s(self.job, trained.job, columns)[0]) * passes
        return {"rotary": seconds} if seconds else {}

    def _held(self, of: str, *, read: bool) -> Bytes:
        """Bytes by content that are in memory during a phase in addition to the work itself. The
        model at work is `of` (empty: the policy); its weights are listed if it only reads (`read`),
        because an update's own account has them. All other models are marked as waiting."""
        policy, found = self.update.resting, dict[str, float]()
        for name, size in self.beside.items():
            if name != of:
                found[f"{WAITING}{name}"] = size
            elif read:
                found[name] = size
        if not read:
            return found | ({f"{WAITING}policy": sum(policy.values())} if of else {})
        # A reference on the host replaces the policy while it is read.
        own = of == "" or (of == REFERENCE and self.job.reference != "copied")
        for name, size in policy.items():
            found[name if own and name == "weights" else f"{WAITING}{name}"] = size
        return found


def handed_out_s(job: RlJob) -> float:
    """Seconds per phase in which a single controller handles all samples, each padded to the
    longest; 0 in frameworks without such a controller."""
    return job.framework.position_s * job.rollout.samples * job.rollout.longest


def rotary_s(job: RlJob, trainer: Job, columns: Columns) -> Array:
    """Seconds, for each row of `columns`, in which the layers of a stage apply rotary embeddings to
    samples one by one, in one pass over all samples; 0 if the framework does not do that."""
    if job.fused_rotary or trainer.framework.name not in job.framework.rotates_samples:
        return np.zeros(len(columns["dp"]))
    layers = len(trainer.model.kind_sequence) / columns["pp"]
    each = ROTATED_S / trainer.cluster.host_launch_speed
    seconds: Array = each * job.rollout.samples / columns["dp"] * layers
    return seconds


def passes_of(mode: RecomputeMode) -> float:
    """The time that training takes for a layer's attention, in units of a forward pass: 2, because
    backward launches as many kernels as forward; 3 if the layer is recomputed in full, because
    forward runs once more."""
    return 3.0 if mode.mask & Module.FULL else 2.0


def costing_job(job: RlJob, trainer: Job) -> Job:
    """The trainer's job as the cost model needs it. If micro-batches count tokens: with packed
    samples and no padding; otherwise unchanged."""
    if not by_tokens(job):
        return trainer
    samples = replace(trainer.samples, packing="padding-free", balance="none", packer="none")
    return replace(trainer, samples=samples)


def scoring_job(trainer: Job, model: ModelSpec) -> Job:
    """The trainer's job with another model that outputs a score per token instead of logits."""
    objective = replace(_SCORES, loss=trainer.objective.loss)
    objectives = (*trainer.framework.objectives, "reward")
    framework = trainer.framework.model_copy(update={"objectives": objectives})
    framework = with_objective(framework, objective)
    # Rows of the scoring job are samples, not pairs of them.
    plain = Objective("policy", loss=trainer.objective.loss)
    return replace(trainer, model=model, framework=framework, objective=plain)


def scoring(
    trainer: Configuration, model: ModelSpec, models: Models | None = None
) -> Configuration:
    """The configuration of a model that outputs scores, at the trainer's degrees and with its
    layers spread evenly."""
    job, degrees = (models or Models()).scoring_job(trainer.job, model), trainer.degrees
    layout = even_layout(job, degrees.pp, degrees.vpp, trainer.mode)
    return replace(trainer, job=job, layout=layout)


def _phase(name: PhaseName, terms: Mapping[str, float], held: Bytes) -> Phase:
    kept = {what: size for what, size in held.items() if size}
    return Phase(name, "trainer", sum(terms.values()), terms, kept)
