"""Predict measured rows; rows that share a job are costed together.

A run that states no micro-batch is assumed to use the one that its operators would choose: among a
few powers of two that fit, the smallest that is predicted to be about as fast as the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, prod

import numpy as np
from pydantic import ValidationError

from hardware.errors import first_error
from hardware.schema import Cluster
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.evidence.runs.completion import complete
from planner.evidence.runs.lengths import differs_in_length
from planner.evidence.runs.mapping import MappedRow, map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import (
    PLAN_COLUMN,
    MeasuredRow,
    demand_measurements,
    grouped,
    words_of,
)
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.configuration import degree_columns
from planner.predict.cost_model import CostModel, KernelLayout
from planner.predict.plan import expected_step_time_s
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.full_memory import full_step_time_s
from planner.predict.uncertainty.intervals import fit_probability, plan_conditions
from planner.predict.uncertainty.measured_range import Conditions
from planner.predict.uncertainty.open_mixture import NO_DOUBT, Doubt, OpenFact

# Terms that depend on the length of a micro-batch and are allocated anew for each.
_OF_LENGTH = [f.STAGE_LOGITS, f.STAGE_WORKING]
# Share of the layers' kept activations that counts as uneven: blocks of a few sizes, each as often
# as there are layers, replace each other. By torch's rules on the blocks of trainings of 14 and 16
# layers, 1.3 to 1.75 times the needed bytes stay, with recomputation 2.2 to 3.2.
_OF_LAYERS = 0.12


@dataclass(frozen=True)
class Prediction:
    """The cost model's prediction of one row; `error` says why there is none, with the rest empty.

    `completed`: defaults without which the row would have been refused. `as_met`: use the
    prediction from before anything was changed because of the row, if it was kept. `opened`: facts
    that the row leaves open, and `doubt` the uncertainty that they cause in each figure; the
    prediction is its median (`planner.evidence.runs.doubts`).
    """

    row: MeasuredRow
    mapped: MappedRow | None = None
    completed: tuple[str, ...] = ()
    step: Array | None = None
    stages: Array | None = None
    error: str | None = None
    as_met: bool = False
    opened: tuple[OpenFact, ...] = ()
    doubt: Mapping[Figure, Doubt] = field(default_factory=dict)

    def doubt_of(self, figure: Figure) -> Doubt:
        """The uncertainty of a figure due to open facts, relative to the default prediction."""
        return self.doubt.get(figure, NO_DOUBT)

    def _times(self, figure: Figure) -> float:
        """The factor from the prediction with the defaults to the median over all values of the
        open facts."""
        return exp(self.doubt_of(figure).median)

    def measured(self, column: str) -> float | None:
        """A measurement; None if it is empty or in doubt, and for a refused row."""
        return None if self.error is not None else self.row.measurement(column)

    @property
    def configured(self) -> MappedRow:
        """The configuration that the row was mapped to. ValueError for a refused row."""
        if self.mapped is None:
            raise ValueError(f"{self.row.place} was refused: {self.error}")
        return self.mapped

    @property
    def job(self) -> Job:
        """The row's job. ValueError for a refused row."""
        return self.configured.job

    @property
    def step_time_s(self) -> float | None:
        """Predicted seconds of a step; None if the row leaves out a fact that decides them."""
        if self.step is None or self.configured.time_gap or not self.names_gpu:
            return None
        seconds = float(self.step[f.STEP_TIME]) * self.configured.batch_share
        return seconds * self._times("time")

    @property
    def fit_probability(self) -> float | None:
        """Probability of fitting, with the error bars of other sources; None if memory is
        unknown."""
        peak, limit = self.memory_bytes(), self.limit_bytes
        if not peak or not limit:
            return None
        doubt = self.doubt_of("memory")
        return fit_probability(self.job, peak, limit, self.row.source, doubt)

    @property
    def names_gpu(self) -> bool:
        """Whether the row's GPU is known; otherwise only memory is predicted. A row without a
        number of GPUs comes from a plan or launch files, whose job has the GPU."""
        of_plan = self.row.text(PLAN_COLUMN) is not None or self.row.text("num_gpus") is None
        return of_plan or self.row.text("gpu") is not None

    @property
    def full_chance(self) -> float:
        """Probability that memory is full, with the error bars of other sources; 0 if memory is
        unknown."""
        fits = self.fit_probability
        return 0.0 if fits is None else 1.0 - fits

    @property
    def full_step_time_s(self) -> float | None:
        """Predicted seconds of a step if memory is full, which slows the exchanges between pipeline
        stages. None if no measured run of the framework shows that, or if the step time is unknown.
        """
        if (seconds := self.step_time_s) is None:
            return None
        share = self.configured.batch_share
        full_s = full_step_time_s(self.job, self.configured.degrees, seconds / share)
        return None if full_s is None else full_s * share

    @property
    def expected_step_time_s(self) -> float | None:
        """Seconds of a step, allowing for the probability that memory is full; rows are ranked by
        it. None if the step time is unknown."""
        seconds, full_s = self.step_time_s, self.full_step_time_s
        if seconds is None or full_s is None:
            return seconds
        return expected_step_time_s(seconds, full_s, self.full_chance)

    @property
    def conditions(self) -> Conditions | None:
        """The position of the run within the range of the measured runs, which decides the width of
        its error bars; None for a refused row."""
        if self.step is None:
            return None
        conditions = plan_conditions(self.job, self.configured.degrees, self.step)
        unstated = self.row.text("precision") is None and not self.row.text(PLAN_COLUMN)
        least = min(1.0, conditions.least / self._times("time"))
        fewest = prod(fact.fewest for fact in self.opened)
        return conditions._replace(unstated=unstated, least=least, fewest=fewest)

    def memory_bytes(self, kind: str | None = None, scope: str | None = None) -> float | None:
        """Predicted memory of the measured kind (`allocated`, `reserved`, otherwise everything) and
        stage."""
        if self.stages is None or self.configured.memory_gap:
            return None
        columns = {
            "allocated": [f.STAGE_ALLOCATED],
            "reserved": [f.STAGE_ALLOCATED, f.STAGE_FRAGMENTATION],
        }.get(kind or "", [f.STAGE_PEAK])
        per_stage = self.stages[:, columns].sum(axis=1)
        if kind == "allocated":
            # Torch allocates the workspaces of its libraries too.
            per_stage = per_stage + self.job.workspace_bytes
        elif kind is not None:
            # Unused blocks that the allocator keeps on each stage, as far as there is room.
            room = np.maximum(0.0, self.job.hbm_limit_bytes - self.stages[:, f.STAGE_PEAK])
            cached = self.stages[:, f.STAGE_CACHED] + self._uneven_blocks(self.stages)
            per_stage = per_stage + np.minimum(cached, room)
        stage = {"first_stage": 0, "last_stage": -1}.get(scope or "")
        held = per_stage.max() if stage is None else per_stage[stage]
        return float(held) * self._times("memory")

    def _uneven_blocks(self, stages: Array) -> Array:
        """Bytes on each stage that the allocator keeps for blocks of shorter micro-batches; 0 if
        all micro-batches have the same length."""
        if not differs_in_length(self.row):
            return np.zeros(len(stages))
        made = stages[:, _OF_LENGTH].sum(axis=1)
        made[-1] += (logits := self._kept_logits(float(stages[-1, f.STAGE_ACTIVATIONS])))
        layers = stages[:, f.STAGE_ACTIVATIONS].copy()
        layers[-1] -= logits
        kept: Array = self.job.framework.outside.uneven_blocks * (made + _OF_LAYERS * layers)
        return kept

    def _kept_logits(self, most: float) -> float:
        """Bytes of logits that the last stage keeps for backward, at most `most`."""
        job, degrees = self.job, self.configured.degrees
        tokens = degrees.mbs * job.seq / (degrees.cp * degrees.tp)
        return min(most, job.framework.saved.logits_saved_bytes * tokens * job.model.vocab)

    @property
    def fits_by_choice(self) -> bool:
        """Whether the row states no micro-batch, so that one was chosen for it that fits."""
        taken = self.mapped is not None and self.mapped.row.text("mbs") is not None
        return taken and self.row.text("mbs") is None

    @property
    def at_its_word(self) -> Prediction:
        """The same prediction, but its row has only the figures that its source contradicts, as if
        they were true."""
        return replace(self, row=self.row.at_its_word)

    @property
    def fits(self) -> bool | None:
        """Whether the predicted peak is within the usable HBM; None if one is unknown."""
        peak, limit = self.memory_bytes(), self.limit_bytes
        return None if peak is None or limit is None else peak <= limit

    @property
    def limit_bytes(self) -> float | None:
        """Usable HBM of the row's GPU; None if the GPU is unknown."""
        return (
            None if self.mapped is None or not self.names_gpu else self.mapped.job.hbm_limit_bytes
        )


def predict_rows(rows: Iterable[MeasuredRow]) -> list[Prediction]:
    """A prediction for each row, in order; rows beyond the model carry their error."""
    return cost_predictions(_with_micro_batches([_uncosted(row) for row in rows]))


def predict_beside(rows: Iterable[MeasuredRow], ones: Iterable[Prediction]) -> list[Prediction]:
    """A prediction for each row, given a prediction of a slightly different row for each; equal
    configurations are not costed again."""
    trials = [_as_costed(_uncosted(row), one) for row, one in zip(rows, ones, strict=True)]
    uncosted = [index for index, trial in enumerate(trials) if trial.step is None]
    for index, found in zip(
        uncosted, cost_predictions([trials[index] for index in uncosted]), strict=True
    ):
        trials[index] = found
    return trials


def _as_costed(trial: Prediction, one: Prediction) -> Prediction:
    """The trial with the costs of `one`, if both have the same configuration."""
    if trial.mapped is None or _configuration_key(trial.mapped) != _configuration_key(
        one.configured
    ):
        return trial
    return replace(trial, step=one.step, stages=one.stages)


def _configuration_key(mapped: MappedRow) -> Hashable:
    share = mapped.recomputed_share, mapped.row.integer("head_stage")
    layout = mapped.layout.block_layers, tuple(mapped.layout.recomputed.items())
    return _group_key(mapped.job), mapped.degrees, mapped.mode, layout, share


def _with_micro_batches(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The same rows, with a micro-batch chosen for those that state none."""
    results = list(predictions)
    trials = [
        (index, replace(one, mapped=mapped))
        for index, one in enumerate(predictions)
        if one.mapped is not None
        for mapped in other_micro_batches(one.row, one.mapped)
    ]
    costed = cost_predictions([trial for _, trial in trials])
    for index, places in grouped(range(len(trials)), lambda place: trials[place][0]).items():
        settled = _settled_on([costed[place] for place in places])
        results[index] = replace(results[index], mapped=settled.mapped)
    return results


def _settled_on(trials: Sequence[Prediction]) -> Prediction:
    """The trial with the micro-batch that a run is assumed to use; `trials`: smallest first."""
    fitting = [trial for trial in trials if trial.fits is not False] or trials[:1]
    fastest = min(item.step_time_s or np.inf for item in fitting)
    limit = (1.0 + LEAST_GAIN) * fastest
    return next(item for item in fitting if (item.step_time_s or np.inf) <= limit)


def cost_predictions(
    predictions: Sequence[Prediction], model_of: Callable[[Job], CostModel] = CostModel
) -> list[Prediction]:
    """The same rows, costed (again), with another cost model if one is given."""
    results = list(predictions)
    pairs = [(index, one.mapped) for index, one in enumerate(results) if one.mapped is not None]
    for members in grouped(pairs, lambda pair: _group_key(pair[1].job)).values():
        mapped = [member for _, member in members]
        costed = _cost_members(mapped, model_of(mapped[0].job))
        for (index, _), (step, stages) in zip(members, costed, strict=True):
            results[index] = replace(results[index], step=step, stages=stages)
    return results


def recalibrated(predictions: Sequence[Prediction], cluster: Cluster) -> list[Prediction]:
    """The same rows; those on a cluster's GPU with its calibration. UsageError if there are
    none."""
    learnt = {"calibration": cluster.calibration}
    found = list(predictions)
    for index, one in enumerate(found):
        if one.mapped is not None and one.job.cluster.gpu.name == cluster.gpu.name:
            job = replace(one.job, cluster=one.job.cluster.model_copy(update=learnt))
            found[index] = replace(one, mapped=replace(one.mapped, job=job))
    if all(new is old for new, old in zip(found, predictions, strict=True)):
        raise UsageError(f"no row that can be predicted ran on {cluster.gpu.name}")
    return cost_predictions(found)


def _uncosted(row: MeasuredRow) -> Prediction:
    """The row mapped to its configuration, or the reason why it cannot be."""
    try:
        demand_measurements(row)
        mapped, completed = _mapped(row)
    except ValidationError as error:
        # The first wrong field of the row's model or degrees, in one line.
        return Prediction(row, error=": ".join(filter(None, first_error(error))))
    except (UnpredictableRowError, ValueError) as error:
        return Prediction(row, error=str(error))
    return Prediction(row, mapped, completed)


def _mapped(row: MeasuredRow) -> tuple[MappedRow, tuple[str, ...]]:
    """The mapped row, completed only if necessary, and the defaults used."""
    try:
        return map_row(row), ()
    except ValueError as error:
        completed = complete(row)
        if not completed.assumed:
            raise
        try:
            return map_row(completed.row), completed.assumed
        except UnpredictableRowError:
            raise error from None


_OF_A_MODEL = (
    "model", "seq", "precision", "attention", "attention_kernel", "recompute", "optimizer_offload",
    "activation_offload", "optimizer", "dropout", "schedule", "context_kinds", "tuning", "samples",
    "objective",
)  # fmt: skip


def _group_key(job: Job) -> Hashable:
    """Rows with equal keys share a cost model: everything of the job but its batch."""
    # Identity is enough: `planner.evidence.runs.mapping` caches one object per variant.
    return id(job.cluster), id(job.framework), *(getattr(job, name) for name in _OF_A_MODEL)


def _cost_members(members: Sequence[MappedRow], model: CostModel) -> list[tuple[Array, Array]]:
    """(STEP_* vector, STAGE_* matrix) of rows that share a job and its cost model."""
    costed = model.price_shapes(degree_columns(member.degrees for member in members))
    return [
        model.cost_layout(costed, index, _kernel_layout(model, member))
        for index, member in enumerate(members)
    ]


def _kernel_layout(model: CostModel, member: MappedRow) -> KernelLayout:
    """Counts of pieces per stage, as far as the row states them."""
    found = member.kernel_layout(model)
    counts, recomputed, kinds = found.counts, found.recomputed, len(member.job.model.piece_kinds)
    # A source may state the stage of the LM head (nanotron packs it greedily).
    stated = member.row.integer("head_stage")
    if stated is not None and 0 <= stated < counts.shape[1]:
        counts[kinds + 1] = 0.0
        counts[kinds + 1, stated] = 1.0
    if member.recomputed_share != 1.0:
        recomputed = np.rint(recomputed * member.recomputed_share)
    return replace(found, recomputed=recomputed)


_CANDIDATES = (1, 2, 4, 8)
# A larger micro-batch costs memory, so one that saves less than this share of the time is not
# taken.
LEAST_GAIN = 0.02


def other_micro_batches(row: MeasuredRow, mapped: MappedRow) -> list[MappedRow]:
    """The row at each micro-batch that its batch allows; empty if the micro-batch is stated or
    follows from the batch."""
    if row.text("mbs") is not None or mapped.row is not row or row.text(PLAN_COLUMN):
        return []
    found = []
    for size in _CANDIDATES:
        trial = MeasuredRow(row.file, row.line, row.cells | {"mbs": str(size)})
        try:
            one_map_row = map_row(trial)
        except (UnpredictableRowError, ValueError):
            continue
        # The micro-batch is smaller if a rank's share of the batch is.
        if one_map_row.degrees.mbs == size and one_map_row.batch_share == 1.0:
            found.append(one_map_row)
    return found


def assumed(prediction: Prediction) -> tuple[str, ...]:
    """The defaults used for a row, in words such as `vocab 50,304`; empty for a refused row."""
    mapped = prediction.mapped
    if mapped is None:
        return ()
    row, texts = prediction.row, [*mapped.assumed, *prediction.completed]
    for column, text in words_of("taken").items():
        if row.text(column) is None:
            texts.append(f"{column} {text.format(mapped=mapped)}")
    if row.text("flash") is None and row.text("kernel") is None:
        texts.append(f"attention {mapped.job.attention_kernel}")
    return tuple(dict.fromkeys(texts))
