"""Rules that every reinforcement-learning job must obey: lengths, groups, staleness."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.errors import UsageError
from planner.job.rl.job import RlJob
from planner.job.rl.spec import Rollout
from planner.job.specs import ModelSpec


def demand_rl(job: RlJob) -> None:
    """Raise UsageError for the first rule that a job breaks, with the nearest valid setting."""
    demand_positions(job.rollout, job.policy)
    for problem in _problems(job):
        raise UsageError(problem)


def _problems(job: RlJob) -> Iterator[str]:
    rollout = job.rollout
    profile, trainers = job.trainer.framework.name, job.framework.trainers
    if profile not in trainers.values():
        known = ", ".join(dict.fromkeys(trainers.values()))
        yield f"--framework {profile}: {job.framework.name} trains with {known}; give one of these"
    if job.algorithm.group and rollout.samples_per_prompt < 2:
        yield (
            f"--samples-per-prompt {rollout.samples_per_prompt}: {job.algorithm.name} compares "
            "the samples of a prompt with each other and needs at least two; give 2 or more, or "
            "--rl ppo"
        )
    if rollout.samples % job.minibatches:
        yield (
            f"--minibatches {job.minibatches} does not divide the {rollout.samples:,} samples of a "
            f"step; give {_nearest(rollout.samples, job.minibatches)}"
        )
    if job.placements == ("colocated",) and max(job.staleness) > 0:
        yield (
            f"--staleness {max(job.staleness)} with --placement colocated: engine and trainer take "
            "turns on the same GPUs, so samples are never behind; leave --staleness out, or give "
            "--placement separate"
        )
    if rollout.batches > 1.0 and not job.algorithm.resamples:
        yield (
            f"--resampling {rollout.batches:g}: {job.algorithm.name} trains on every sample; leave "
            "it out, or give --rl dapo"
        )
    limit = job.trainer.seq
    if job.framework.token_batches and rollout.longest > limit:
        yield (
            f"--token-limit {limit:,}: the longest sample has {rollout.longest:,} tokens, and a "
            f"micro-batch must have room for it; give --token-limit {rollout.longest}"
        )


def demand_positions(rollout: Rollout, policy: ModelSpec) -> None:
    """Raise UsageError if samples are longer than the policy's positions."""
    most = policy.max_positions
    if rollout.longest <= most:
        return
    room = most - rollout.prompt.longest
    advice = f"give response lengths of at most max={room}" if room > 0 else "shorten prompts"
    raise UsageError(
        f"--lengths: prompts of up to {rollout.prompt.longest:,} and answers of up to "
        f"{rollout.response.longest:,} tokens make {rollout.longest:,} together, but "
        f"{policy.name} has only {most:,} positions; {advice}"
    )


def demand_behind(job: RlJob) -> None:
    """Raise UsageError for a synchronous step with engines on separate GPUs, if the framework has
    none."""
    waits = job.placements == ("separate",) and max(job.staleness) == 0
    if waits and not job.framework.separate_synchronous:
        raise UsageError(
            f"--staleness 0 with engines on separate GPUs: in {job.framework.name} they are at "
            "least one update behind; give --staleness 1, or --placement colocated"
        )


def _nearest(number: int, given: int) -> int:
    """The divisor of `number` that is nearest to `given`."""
    divisors = (one for one in range(1, number + 1) if number % one == 0)
    return min(divisors, key=lambda one: (abs(one - given), one))
