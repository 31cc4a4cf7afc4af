"""The global batch of a request, and the batches of its ramp."""

from __future__ import annotations

from math import ceil

from planner.job.batch_ramp import read_ramp
from planner.job.bounds import MOST_SEQUENCES
from planner.job.errors import UsageError
from planner.job.job import BatchTarget, RampBatch
from planner.job.request_fields import RequestFields
from planner.job.sample_rows import row_tokens
from planner.job.samples import Samples

# Largest ratio by which gradient accumulation may move a step from the mean batch of a ramp.
_AROUND = 0.25


def global_batches(
    request: RequestFields, seq: int, samples: Samples, rows: int = 1
) -> tuple[BatchTarget, tuple[RampBatch, ...]]:
    """The global batch of a request, and the batches of the ramp before it.

    When a ramp is costed at its mean batch, all its batches are returned, and gradient accumulation
    need not be a number that a schedule can run. A batch in tokens counts the tokens of samples
    without padding.
    """
    _demand_pretraining_of_a_ramp(request)
    if samples.lengths is not None:
        tokens = rows * row_tokens(samples, seq)
        return _target(request, request.gbs, request.gbs_tokens, tokens), ()
    batch, ramp = _stated_batches(request, rows * seq)
    mean = request.overrides.mean_batch
    if mean is None:
        return batch, ramp
    return BatchTarget(mean, _AROUND), (*ramp, RampBatch(batch, ramp[-1].until_tokens + 1))


def _demand_pretraining_of_a_ramp(request: RequestFields) -> None:
    """Raise UsageError if a job with a batch ramp is not pretraining."""
    tuned = {
        "--lengths": request.lengths is not None,
        "--train": request.train != "full",
        "--freeze": bool(request.freeze),
        "--objective": request.objective != "lm",
    }
    given = [option for option, is_given in tuned.items() if is_given]
    if request.batch_ramp is not None and given:
        raise UsageError(
            f"--batch-ramp {request.batch_ramp!r} with {' and '.join(given)}: growing batches are "
            "supported only for pretraining; give one batch, for example --gbs 64"
        )


def _stated_batches(request: RequestFields, seq: int) -> tuple[BatchTarget, tuple[RampBatch, ...]]:
    if request.batch_ramp is None:
        return _target(request, request.gbs, request.gbs_tokens, seq), ()
    ramp = read_ramp(request.batch_ramp, request.gbs)
    *before, last = ramp.batches
    given = request.gbs_tokens if last.in_tokens else request.gbs
    other = request.gbs if last.in_tokens else request.gbs_tokens
    if other is not None or given not in (None, last.number):
        said = f"--gbs {request.gbs}" if request.gbs else f"--gbs-tokens {request.gbs_tokens}"
        raise UsageError(
            f"--batch-ramp {request.batch_ramp!r} ends with {last}, but {said} is given; make "
            "them equal, in the same unit, or leave one out"
        )
    targets = [
        _target(
            request,
            None if batch.in_tokens else batch.number,
            batch.number if batch.in_tokens else None,
            seq,
        )
        for batch in (*before, last)
    ]
    until = ramp.until_tokens(seq)
    return targets[-1], tuple(map(RampBatch, targets, until))


def _target(
    request: RequestFields, gbs: int | None, gbs_tokens: int | None, seq: float
) -> BatchTarget:
    """A global batch given in sequences or in tokens. UsageError unless exactly one is given."""
    if (gbs_tokens is None) == (gbs is None):
        raise UsageError("give the global batch once: --gbs-tokens 4M, or --gbs 512 (sequences)")
    sequences = gbs or (gbs_tokens or 0) / seq
    if sequences > MOST_SEQUENCES:
        raise UsageError(
            f"a global batch of {sequences:,.0f} sequences is beyond the solver's 64-bit "
            f"integers; give at most {MOST_SEQUENCES:,}"
        )
    if gbs is not None:
        return BatchTarget(float(gbs), tolerance=0.0, exact=True)
    tokens = gbs_tokens or 0
    if tokens < seq:
        raise UsageError(
            f"a global batch of {tokens:,} tokens is less than one sequence of {seq:,.0f}; "
            f"give at least --gbs-tokens {ceil(seq)} or a shorter --seq"
        )
    return BatchTarget(tokens / seq, request.gbs_tolerance)
