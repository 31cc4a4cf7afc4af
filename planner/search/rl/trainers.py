"""Trainers' side of a search: every legal configuration, bounded at once by the compiled core, then
costed in full where its bound says that it may matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from constraints.numbers import Mask
from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.rl.job import RlJob
from planner.predict.configuration import Configuration, even_layout
from planner.predict.plan import Degrees
from planner.predict.rl.plan import Training
from planner.search.rl.costs import Costs
from planner.search.shares import CostedJob, cost_shares

Floats = NDArray[np.float64]
# Of the longest sample, tokens of a micro-batch that are tried where nobody gives a number.
TOKEN_LIMITS = (1, 2)


@dataclass(frozen=True)
class Trainer:
    """A configuration of the trainer, costed in full. `job`: with its limit of tokens."""

    job: RlJob
    configuration: Configuration
    critic: Configuration | None
    training: Training


@dataclass
class TrainerSide:
    """The configurations on so many GPUs.

    `bounds_s`: seconds that no step's training on that row falls below; `peaks`: bytes of its
    update on the fullest GPU, as the core has them; `found`: rows that are costed in full.
    """

    gpus: int
    jobs: tuple[RlJob, ...]
    costed: tuple[tuple[int, CostedJob], ...]
    source: NDArray[np.int64]
    row: NDArray[np.int64]
    bounds_s: Floats
    peaks: Floats
    found: dict[int, Trainer | None] = field(default_factory=dict)

    def trainer(self, at: int, costs: Costs) -> Trainer | None:
        """A row costed in full; None where its critic has no such layout."""
        if at not in self.found:
            self.found[at] = self._costed(at, costs)
        return self.found[at]

    def _costed(self, at: int, costs: Costs) -> Trainer | None:
        number, costed = self.costed[int(self.source[at])]
        job, row = self.jobs[number], int(self.row[at])
        columns = costed.candidates.columns
        mode = costed.job.recompute[int(columns["recompute"][row])]
        pp, vpp = int(columns["pp"][row]), int(columns["vpp"][row])
        layout = even_layout(costed.job, pp, vpp, mode)
        configuration = Configuration.of_row(costed.job, columns, row, layout)
        critic = critic_of(job, configuration)
        if job.critic is not None and critic is None:
            return None
        return Trainer(job, configuration, critic, costs.train(job, configuration, critic))


def critic_of(job: RlJob, trainer: Configuration) -> Configuration | None:
    """The critic in the degrees of the policy, as frameworks set it up; None where there is none,
    or where it has fewer layers than the pipeline has blocks."""
    if job.critic is None:
        return None
    own = replace(trainer.job, model=job.critic)
    if len(job.critic.piece_sequence) < trainer.degrees.pp * trainer.degrees.vpp:
        return None
    return Configuration.even(own, trainer.degrees, trainer.recompute)


def trainer_sides(
    jobs: Sequence[RlJob], counts: Sequence[int]
) -> tuple[dict[int, TrainerSide], str]:
    """The trainers on each number of GPUs that has any, and why the first of the others has none.

    `jobs`: one job at each limit of tokens that is tried.
    """
    found, why = dict[int, TrainerSide](), ""
    for count in counts:
        try:
            found[count] = _side(jobs, count)
        except UsageError as error:
            why = why or str(error)
    return found, why


def _side(jobs: Sequence[RlJob], gpus: int) -> TrainerSide:
    parts = list[tuple[int, CostedJob, Mask]]()
    refused = list[UsageError]()
    for number, job in enumerate(jobs):
        try:
            parts += [(number, one, rows) for one, rows in _costed_jobs(job, gpus)]
        except UsageError as error:
            refused.append(error)
    if not parts:
        raise refused[0] if refused else UsageError(_no_group(jobs[0], gpus))
    rows = [np.flatnonzero(mask) for _, _, mask in parts]
    return TrainerSide(
        gpus,
        tuple(jobs),
        tuple((number, one) for number, one, _ in parts),
        np.concatenate([np.full(len(one), at) for at, one in enumerate(rows)]),
        np.concatenate(rows),
        np.concatenate([_bounds_s(jobs[part[0]], part[1])[part[2]] for part in parts]),
        np.concatenate([part[1].cost_model.peaks(part[1].costed)[part[2]] for part in parts]),
    )


def _costed_jobs(job: RlJob, gpus: int) -> Iterator[tuple[CostedJob, Mask]]:
    """The costed jobs on exactly so many GPUs, with the rows that divide the samples."""
    samples = job.rollout.samples // job.minibatches
    for one in cost_shares(_with_any_batch(job.trainer.on_gpus(gpus))).jobs:
        if one.job.cluster.num_gpus == gpus:
            columns = one.candidates.columns
            rows = samples % columns["dp"] == 0
            if job.framework.token_batches:
                rows &= columns["mbs"] == 1
            if rows.any():
                yield one, rows


def _with_any_batch(job: Job) -> Job:
    """The job with a batch that any number of ranks may share: micro-batches of unlike lengths
    need no whole number of rows, so a batch of rows is a measure of tokens alone."""
    widest = max(0.5, job.cluster.num_gpus / max(1.0, job.batch.sequences))
    return replace(job, batch=replace(job.batch, tolerance=widest))


def _bounds_s(job: RlJob, costed: CostedJob) -> Floats:
    """Seconds of the updates alone at the wanted number of tokens, without a last micro-batch that
    is not full: no training on that row is shorter."""
    columns = costed.candidates.columns
    target = job.trainer.batch.sequences
    share = np.minimum(1.0, target / columns["gbs"])
    bounds: Floats = job.updates * costed.costed.steps[:, f.STEP_TIME] * share
    return bounds


def _no_group(job: RlJob, gpus: int) -> str:
    samples = job.rollout.samples // job.minibatches
    return (
        f"no data-parallel degree on {gpus:,} GPUs divides the {samples:,} samples of a "
        f"mini-batch; give --prompts {_nearest_prompts(job, gpus)}"
    )


def _nearest_prompts(job: RlJob, gpus: int) -> int:
    """Prompts next to those given with which every rank gets as many samples."""
    each = gpus * job.minibatches
    return max(1, round(job.rollout.prompts / each)) * each


def degrees_text(degrees: Degrees) -> str:
    """A trainer's degrees in short, without what says nothing."""
    return str(degrees)
