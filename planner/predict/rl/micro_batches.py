"""Micro-batches of samples of unequal length that are joined up to a number of tokens.

A rank's samples of a batch are split into the fewest micro-batches that a token limit allows, of
about equal work each; all data-parallel ranks then make as many as the one with the most tokens (a
MAX all-reduce: verl, utils/seqlen_balancing.py, rearrange_micro_batches; slime,
utils/seqlen_balancing.py; OpenRLHF, utils/seqlen_balancing.py). NeMo-RL instead fills bins by
first-fit decreasing, which leaves some tokens of each bin unused
(distributed/batched_data_dict.py).

So a micro-batch has fewer tokens than the limit, and exactly the tokens of the batch are computed.
"""

from __future__ import annotations

from functools import cache
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from planner.job.rl.job import RlJob
from planner.job.sample_rows import most_together, packs_of
from planner.job.samples import Lengths
from planner.predict.cost_model import Columns
from planner.predict.unequal import waiting

# Columns that determine which ranks share a batch and which of them run in step.
_SHARING = ("dp", "pp", "vpp", "zero", "tp", "cp", "ep", "etp")


class Batch(NamedTuple):
    """Samples that are read or trained on at once: `samples` on all ranks, in micro-batches of up
    to `limit` tokens. `apart`: how far ranks' shares of the tokens differ: 1 if ranks are not
    balanced, 0 if they have equal tokens, in between if only several batches together are balanced.
    `rows`: samples per micro-batch, used only if micro-batches count samples; None: as many as in
    training."""

    samples: float
    limit: float
    apart: float
    rows: int | None = None


class MicroBatches(NamedTuple):
    """Micro-batches of one rank. `number`: how many; `tokens`: tokens of a mean one; `most`: tokens
    of the longest one during training; `more_tokens`, `more_squares`: excess of the fullest rank
    over the mean rank, as a share, in tokens and in squared lengths."""

    number: int
    tokens: float
    most: float
    more_tokens: float
    more_squares: float


def mini_batch(job: RlJob) -> Batch:
    """The samples of one optimizer step. If a framework balances ranks only over all M mini-batches
    of a step together, the tokens of ranks in a single mini-batch still vary, with 1 - 1/M of the
    variance without balancing."""
    samples = job.rollout.samples / job.minibatches
    apart = {"none": 1.0, "step": sqrt(1.0 - 1.0 / job.minibatches), "mini-batch": 0.0}
    return Batch(samples, float(job.trainer.seq), apart[job.framework.balances])


def whole_batch(job: RlJob) -> Batch:
    """All samples of a step, as a reading pass processes them."""
    limit = float(job.token_limit_read or job.trainer.seq)
    apart = 1.0 if job.framework.balances == "none" else 0.0
    given = job.token_limit_read
    rows = None if given is None else max(1, round(given / job.trainer.seq))
    return Batch(float(job.rollout.samples), limit, apart, rows)


def with_micro_batches(job: RlJob, batch: Batch, columns: Columns) -> Columns:
    """The columns of shapes, with the micro-batches into which each shape splits the batch. If
    micro-batches count samples, `mbs`, `grad_acc` and `gbs` are set. If they count tokens, `mbs` is
    1, and columns for the cost model are added: `kept` (longest micro-batch over the job's sequence
    length), `computed` (mean over longest), `more_tokens` and `more_squares`."""
    if not by_tokens(job):
        mbs = columns["mbs"] if batch.rows is None else np.full_like(columns["mbs"], batch.rows)
        number = np.maximum(1, np.ceil(batch.samples / columns["dp"] / mbs - 1e-9))
        number = number.astype(np.int64)
        gbs = number * mbs * columns["dp"]
        return {**columns, "mbs": mbs, "grad_acc": number, "gbs": gbs}
    table = np.column_stack([columns[name] for name in _SHARING])
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    found = np.array([_of_shape(job, batch, row) for row in rows]).reshape(-1, 5)[inverse.ravel()]
    number, tokens, most, more_tokens, more_squares = found.T
    ones = np.ones(len(found), dtype=np.int64)
    return {
        **columns,
        "mbs": ones,
        "grad_acc": number.astype(np.int64),
        "gbs": (number * columns["dp"]).astype(np.int64),
        "kept": most / job.trainer.seq,
        "computed": tokens / most,
        "more_tokens": more_tokens,
        "more_squares": more_squares,
    }


def by_tokens(job: RlJob) -> bool:
    """Whether micro-batches consist of whole samples up to a number of tokens, without padding."""
    return job.framework.token_batches and job.trainer.samples.packing == "pack-varlen"


def _of_shape(job: RlJob, batch: Batch, row: np.ndarray) -> MicroBatches:
    shape = dict(zip(_SHARING, map(int, row), strict=True))
    ranks, experts = shape["dp"], shape["ep"] * shape["etp"]
    holders = max(1, experts // (shape["tp"] * shape["cp"]))
    in_step = ranks if shape["zero"] == 3 else min(ranks, holders)
    together = shape["pp"] if shape["vpp"] > 1 else 1
    lengths = job.trainer.samples.lengths or job.rollout.response
    return _micro_batches(
        lengths, batch._replace(samples=batch.samples / ranks), ranks, in_step, together,
        job.framework.fills_bins,
    )  # fmt: skip


@cache
def _micro_batches(
    lengths: Lengths, share: Batch, ranks: int, in_step: int, together: int, bins: bool
) -> MicroBatches:
    """Micro-batches of a rank's share of a batch; their number is a multiple of `together`, as
    interleaved pipelines require."""
    draws = max(1, round(share.samples))
    more_tokens, more_squares = (
        share.apart * more for more in _more(lengths, draws, ranks, in_step)
    )
    total = share.samples * lengths.mean
    room = share.limit * (packs_of(lengths, round(share.limit), "best-fit").fill if bins else 1.0)
    number = min(ceil(total * (1.0 + more_tokens) / room - 1e-9), max(1, draws))
    number = max(1, ceil(number / together) * together)
    tokens = total / number
    most = max(tokens, min(share.limit, most_together(lengths, draws)))
    return MicroBatches(number, tokens, most, more_tokens, more_squares)


@cache
def _more(lengths: Lengths, draws: int, ranks: int, in_step: int) -> tuple[float, float]:
    """Excess of the fullest rank over the mean rank, as a share of the mean: (in tokens, in squared
    lengths); (0, 0) with one rank. `draws`: number of independent samples on a rank; `in_step`:
    number of ranks that wait for each other in every micro-batch. A rank's micro-batches are alike,
    so the ranks that others wait for in each micro-batch are those that they wait for at the end of
    the step."""
    if ranks == 1:
        return 0.0, 0.0
    tokens, shares = np.array(lengths.tokens), np.array(lengths.shares)
    in_step = min(in_step, ranks)
    more_tokens, more_squares = (
        waiting((values, shares), draws, 1, ranks, in_step, 0.0) for values in (tokens, tokens**2)
    )
    return more_tokens, more_squares
