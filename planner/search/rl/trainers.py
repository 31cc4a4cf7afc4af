"""The trainer's side of a search. The compiled core bounds every legal configuration at once; those
whose bound says that they may matter are costed in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from constraints.numbers import IntArray
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest, usual_token_limit
from planner.predict.configuration import Configuration, even_layout
from planner.predict.rl.plan import Training
from planner.predict.rl.training_rows import TrainingRows
from planner.predict.shapes import Candidates, legal_candidates
from planner.search.rl.costs import Costs

Floats = NDArray[np.float64]
# Default token limits of a micro-batch to try, as multiples of the longest sample.
TOKEN_LIMITS = (1, 2)


@dataclass(frozen=True)
class Trainer:
    """A trainer configuration, costed in full. `job`: the job with its token limit."""

    job: RlJob
    configuration: Configuration
    critic: Configuration | None
    training: Training


@dataclass
class TrainerSide:
    """The trainer configurations on a number of GPUs.

    `jobs`: one for each token limit. `seconds`, `peaks`: lower bounds for each row's phases and
    fullest GPU, computed for all rows at once by the compiled core; `least` is the peak when what
    waits for another phase has left, `resident` the bytes that stay between phases. `found`: rows
    costed in full, one at a time.
    """

    gpus: int
    jobs: tuple[RlJob, ...]
    candidates: tuple[tuple[int, Candidates], ...]
    source: NDArray[np.int64]
    row: NDArray[np.int64]
    seconds: Floats
    peaks: Floats
    least: Floats
    resident: Floats
    found: dict[int, Trainer | None] = field(default_factory=dict)

    def configuration(self, at: int) -> Configuration:
        """The configuration of a row, in its framework's own layout of layers."""
        _, one = self.candidates[int(self.source[at])]
        columns, row = one.columns, int(self.row[at])
        mode = one.job.recompute[int(columns["recompute"][row])]
        layout = even_layout(one.job, int(columns["pp"][row]), int(columns["vpp"][row]), mode)
        return Configuration.of_row(one.job, columns, row, layout)

    def trainer(self, at: int, costs: Costs) -> Trainer | None:
        """A row costed in full; None if its critic has no such layout."""
        if at not in self.found:
            self.found[at] = self._costed(at, costs)
        return self.found[at]

    def _costed(self, at: int, costs: Costs) -> Trainer | None:
        number, _ = self.candidates[int(self.source[at])]
        job, configuration = self.jobs[number], self.configuration(at)
        critic = critic_of(job, configuration)
        if job.critic is not None and critic is None:
            return None
        return Trainer(job, configuration, critic, costs.train(job, configuration, critic))


def jobs_of(request: RlRequest) -> tuple[RlJob, ...]:
    """The job at each token limit to try."""
    job = request.resolve()
    if request.token_limit is not None or not job.framework.token_batches:
        return (job,)
    usual, longest = usual_token_limit(job.rollout), job.rollout.longest
    others = sorted({times * longest for times in TOKEN_LIMITS} - {usual})
    return (
        job,
        *(request.model_copy(update={"token_limit": one}).resolve() for one in others),
    )


def critic_of(job: RlJob, trainer: Configuration) -> Configuration | None:
    """The critic with the degrees of the policy, as frameworks configure it; None if there is none,
    or it has fewer layers than the pipeline has blocks."""
    if job.critic is None:
        return None
    own = replace(trainer.job, model=job.critic)
    if len(job.critic.piece_sequence) < trainer.degrees.pp * trainer.degrees.vpp:
        return None
    return Configuration.even(own, trainer.degrees, trainer.recompute)


def trainer_sides(
    jobs: Sequence[RlJob], counts: Sequence[int], costs: Costs
) -> tuple[dict[int, TrainerSide], str]:
    """The trainers on each number of GPUs that has any, and why the first other number has none.

    `jobs`: one job for each token limit to try.
    """
    found, why = dict[int, TrainerSide](), ""
    for count in counts:
        try:
            found[count] = _side(jobs, count, costs)
        except UsageError as error:
            why = why or str(error)
    return found, why


def _side(jobs: Sequence[RlJob], gpus: int, costs: Costs) -> TrainerSide:
    parts = list[tuple[int, Candidates, IntArray, TrainingRows]]()
    refused = list[UsageError]()
    on_part = [replace(job, trainer=job.trainer.on_gpus(gpus)) for job in jobs]
    for number, job in enumerate(on_part):
        try:
            parts += [(number, *one) for one in _costed_rows(job, gpus, costs)]
        except UsageError as error:
            refused.append(error)
    if not parts:
        raise refused[0] if refused else UsageError(_no_group(jobs[0], gpus))
    return TrainerSide(
        gpus,
        tuple(on_part),
        tuple((number, one) for number, one, _, _ in parts),
        np.concatenate([np.full(len(part[2]), at) for at, part in enumerate(parts)]),
        np.concatenate([rows for _, _, rows, _ in parts]),
        np.concatenate([found.total_s for _, _, _, found in parts]),
        np.concatenate([found.peak_bytes for _, _, _, found in parts]),
        np.concatenate([found.least_peak_bytes for _, _, _, found in parts]),
        np.concatenate([_resident(*part) for part in parts]),
    )


def _resident(_: int, one: Candidates, rows: IntArray, found: TrainingRows) -> Floats:
    """Bytes that stay between phases, if the rows can tell. Under ZeRO-2 they include weights that
    FSDP gathers and frees, so there the rows cannot."""
    sharded = one.columns["zero"][rows] == 2
    return np.where(sharded, 0.0, found.resident_bytes)


def _costed_rows(
    job: RlJob, gpus: int, costs: Costs
) -> Iterator[tuple[Candidates, IntArray, TrainingRows]]:
    """For each choice of offload and techniques, the legal shapes on exactly this many GPUs, the
    rows among them that divide the samples, and their costs."""
    samples = job.rollout.samples // job.minibatches
    for number, decided in enumerate(_one_row_each(job, with_any_batch(job.trainer)).decided()):
        try:
            one = legal_candidates(decided)
        except UsageError:
            if number == 0:
                raise
            continue
        rows = np.flatnonzero(samples % one.columns["dp"] == 0)
        if one.job.cluster.num_gpus == gpus and len(rows):
            kept = {name: values[rows] for name, values in one.columns.items()}
            yield one, rows, costs.train_rows(replace(job, trainer=one.job), kept)


def _one_row_each(job: RlJob, trainer: Job) -> Job:
    """The trainer's job with one row per micro-batch, if micro-batches are limited by tokens."""
    if not job.framework.token_batches or "mbs" in trainer.limits:
        return trainer
    return replace(trainer, limits={**trainer.limits, "mbs": frozenset({1})})


def with_any_batch(job: Job) -> Job:
    """The job with a batch that any number of ranks may share. Micro-batches of unlike lengths need
    no whole number of rows, so a batch in rows only measures tokens."""
    widest = max(0.5, job.cluster.num_gpus / max(1.0, job.batch.sequences))
    return replace(job, batch=replace(job.batch, tolerance=widest))


def demand_group(job: RlJob, dp: int, gpus: int) -> None:
    """Raise UsageError if the samples of a mini-batch do not divide over the data-parallel
    ranks."""
    samples = job.rollout.samples // job.minibatches
    if samples % dp:
        raise UsageError(
            f"dp {dp} does not divide the {samples:,} samples of a mini-batch; give --prompts "
            f"{_nearest_prompts(job, gpus)}, or other degrees"
        )


def _no_group(job: RlJob, gpus: int) -> str:
    samples = job.rollout.samples // job.minibatches
    return (
        f"no data-parallel degree on {gpus:,} GPUs divides the {samples:,} samples of a "
        f"mini-batch; give --prompts {_nearest_prompts(job, gpus)}"
    )


def _nearest_prompts(job: RlJob, gpus: int) -> int:
    """The number of prompts nearest to the given one that gives every rank the same number of
    samples."""
    each = gpus * job.minibatches
    return max(1, round(job.rollout.prompts / each)) * each
