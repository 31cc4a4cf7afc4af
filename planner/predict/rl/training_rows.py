"""The trainer's side of a step for many configurations at once, for ranking them in a search.

Micro-batches and cost models are those of `planner.predict.rl.training`; each phase of all rows is
one call of the compiled kernel, with each row in its framework's even layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost import fields as f
from planner.cost.codes import Sharers
from planner.cost.tables import Array
from planner.job.job import Job
from planner.job.rl.job import RlJob
from planner.job.specs import ModelSpec
from planner.predict.cost_model import Columns, CostedShapes
from planner.predict.rl.batch_model import BatchModel, ReadingModel
from planner.predict.rl.micro_batches import Batch, mini_batch, whole_batch, with_micro_batches
from planner.predict.rl.moves import unpinned_bytes_per_s
from planner.predict.rl.plan import PhaseName
from planner.predict.rl.training import costing_job, handed_out_s, passes_of, rotary_s, scoring_job

# Share of the token limit at which micro-batches hold only weights, states and gradients.
_NOTHING = 1e-6


@dataclass(frozen=True)
class TrainingRows:
    """Costs of a trainer's configurations, one value for each row. `seconds`: by phase;
    `peak_bytes`: on the fullest GPU over all phases, with the other models in memory;
    `least_peak_bytes`: the same if everything that waits for another phase has been moved away;
    `resident_bytes`: bytes that stay there between phases, including the GPU's context."""

    seconds: Mapping[PhaseName, Array]
    peak_bytes: Array
    least_peak_bytes: Array
    resident_bytes: Array

    @property
    def total_s(self) -> Array:
        """Seconds of all phases of the trainer's side."""
        total: Array = np.sum(list(self.seconds.values()), axis=0)
        return total


def train_rows(job: RlJob, columns: Columns) -> TrainingRows:
    """Every phase of each row; `columns`: columns of shapes of `job.trainer`, whose GPUs train, as
    in `planner.predict.shapes.legal_candidates`."""
    return _Rows(job, columns).rows()


@dataclass(frozen=True)
class _Models:
    """Costs of one model for each row: seconds of its update, if it is trained, and of its reading
    pass; bytes at the peak of each (`update_bytes`, `read_bytes`), and bytes that stay without any
    tokens (`resting_bytes`, `read_resting_bytes`)."""

    update_s: Array
    update_bytes: Array
    resting_bytes: Array
    read_s: Array
    read_bytes: Array
    read_resting_bytes: Array
    weight_bytes: Array


@dataclass(frozen=True)
class _Rows:
    job: RlJob
    columns: Columns

    def rows(self) -> TrainingRows:
        job, policy = self.job, self._model(self.job.trainer)
        seconds: dict[PhaseName, Array] = {}
        beside = np.zeros_like(policy.update_s)
        judge = job.reward.model if job.reward.kind == "model" else None
        critic = None if job.critic is None else self._scoring(job.critic)
        if judge is not None:
            scored = self._scoring(judge)
            seconds["reward"] = scored.read_s
            beside = beside + scored.weight_bytes
        if job.old_logprobs:
            seconds["old_logprobs"] = policy.read_s
        if job.reference != "none":
            swap = 2.0 * policy.weight_bytes / unpinned_bytes_per_s(job.trainer.cluster)
            seconds["reference"] = policy.read_s + (swap if job.reference == "host" else 0.0)
            beside = beside + (policy.weight_bytes if job.reference == "copied" else 0.0)
        if critic is not None:
            seconds["values"] = critic.read_s
            seconds["critic_update"] = critic.update_s
        seconds["update"] = policy.update_s
        handed_s = handed_out_s(job)
        seconds = {name: value + handed_s for name, value in seconds.items()}
        return self._held(seconds, policy, critic, beside)

    def _held(
        self,
        seconds: Mapping[PhaseName, Array],
        policy: _Models,
        critic: _Models | None,
        beside: Array,
    ) -> TrainingRows:
        """The costs of all rows: peak bytes over the phases, with the other models in memory and
        with them moved away. `beside`: bytes of models that are never trained."""
        resting, waits = policy.resting_bytes, policy.resting_bytes - policy.read_resting_bytes
        states = more = np.zeros_like(beside)
        least = np.maximum(policy.read_bytes, policy.update_bytes)
        if critic is not None:
            # The GPU's context is counted with the policy.
            states = critic.resting_bytes - critic.read_resting_bytes
            more = states + critic.weight_bytes
            least = np.maximum(least, critic.update_bytes)
        peak = np.maximum(policy.read_bytes + waits, policy.update_bytes) + beside + more
        if critic is not None:
            others = beside + waits + policy.weight_bytes
            peak = np.maximum(peak, critic.update_bytes + others)
        return TrainingRows(seconds, peak, least, resting + beside + more)

    def _scoring(self, model: ModelSpec) -> _Models:
        return self._model(scoring_job(self.job.trainer, model))

    def _model(self, trainer: Job) -> _Models:
        job = costing_job(self.job, trainer)
        update, reading = BatchModel(job), ReadingModel(job)
        mini = self._costed(update, mini_batch(self.job))
        whole = self._costed(reading, whole_batch(self.job))
        once = rotary_s(self.job, trainer, self.columns)
        passes = np.array([passes_of(mode) for mode in trainer.recompute])
        often = self.job.epochs * passes[self.columns["recompute"]]
        return _Models(
            self.job.updates * mini.steps[:, f.STEP_TIME] + often * once,
            update.peaks(mini),
            self._resting(update, mini) - _passing_bytes(update, mini),
            whole.steps[:, f.STEP_TIME] + once,
            reading.peaks(whole),
            self._resting(reading, whole),
            _weight_bytes(reading, whole),
        )

    def _costed(self, model: BatchModel, batch: Batch) -> CostedShapes:
        return model.cost_shapes(with_micro_batches(self.job, batch, self.columns))

    def _resting(self, model: BatchModel, costed: CostedShapes) -> Array:
        """Bytes on the fullest GPU of each row if its micro-batches had no tokens."""
        shapes, key = costed.shapes, costed.shapes[:, f.SHAPE["key"]].astype(np.int64)
        columns = {
            **self.columns,
            "grad_acc": shapes[:, f.SHAPE["grad_acc"]].astype(np.int64),
            "mbs": costed.keys[key, f.KEY["mbs"]].astype(np.int64),
            "kept": np.full(len(key), _NOTHING),
            "computed": np.ones(len(key)),
        }
        return model.peaks(model.cost_shapes(columns))


def _weight_bytes(model: ReadingModel, costed: CostedShapes) -> Array:
    """Bytes of a model's weights on one GPU, for each row, as the mean over stages: only a shard
    under ZeRO-3, and also under FSDP's stage 2, which gathers weights for each pass."""
    framework = model.framework_inputs
    zero = 3 if framework.zero3_keeps_weight_shard else 2
    return framework.weight_bytes * _parameters(model, costed, "weights", zero)


def _passing_bytes(model: BatchModel, costed: CostedShapes) -> Array:
    """Bytes of an update that are freed after it, on one GPU for each row: the optimizer's
    temporaries, and gradients without buffers of their own."""
    framework = model.framework_inputs
    gradients = 0.0 if framework.persistent_gradients else framework.gradient_bytes
    made = gradients * _parameters(model, costed, "gradients", 2)
    temporaries = framework.optimizer_temporary_bytes * _parameters(model, costed, "states", 1)
    return made + temporaries


def _parameters(model: BatchModel, costed: CostedShapes, counts: str, zero: int) -> Array:
    """Parameters on one GPU, for each row, as the mean over stages. Each class of parameters is
    weighted by its field `counts`. Ranks share them from ZeRO stage `zero` on; below that each GPU
    has them all."""
    shapes, framework = costed.shapes, model.framework_inputs
    key = shapes[:, f.SHAPE["key"]].astype(np.int64)
    total = np.zeros(len(shapes))
    for number, one in enumerate(framework.classes):
        held = costed.costs[key, 0, :, f.PIECE_PARAMETERS + number] @ model.totals
        sharing = "expert_shards" if one.sharers == Sharers.EXPERT_DATA else "shards"
        divided = shapes[:, f.SHAPE["zero"]] >= zero
        ranks = np.where(divided, shapes[:, f.SHAPE[sharing]], 1.0)
        total += getattr(one, counts) * held / ranks
    found: Array = total / shapes[:, f.SHAPE["pp"]]
    return found
