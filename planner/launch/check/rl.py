"""Predicts launches of reinforcement learning: turns the files into a request and a layout, and
costs the step.

Files state the maximum length of prompts and answers, never their actual lengths. Unless the caller
gives them (`--lengths prompt=...,response=...`), every sample is assumed to be as long as allowed,
which gives an upper bound of memory and time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.images import WITHOUT
from planner.job.job import BatchTarget
from planner.job.length_text import read_prompts
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.job.request_fields import Launched, Overrides
from planner.job.rl.frameworks import find_rl_framework
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.job.rl.spec import algorithms
from planner.job.samples import Lengths
from planner.job.written import picked
from planner.launch.check.request import (
    IN_FILES,
    canonical_mode,
    degrees_of,
    tables_of_variations,
)
from planner.launch.read.found import Found, Problem, not_predictable
from planner.launch.read.rl_found import RlFound
from planner.predict.configuration import Configuration
from planner.predict.evaluate import Proposal
from planner.predict.rl.plan import EngineLayout, RlLayout

if TYPE_CHECKING:
    from planner.predict.rl.step import RlStep

# Tokens of a prompt if no file limits them.
_USUAL_PROMPT = 512
# Short samples are the allowed length divided by this: if even they do not fit, no run fits.
_SHORT = 16
# The algorithm for groups of one answer.
_ALONE = "reinforce"
# Fields of a request, with their source in the files.
_ALIKE = (
    "prompts samples_per_prompt framework epochs placement critic reference old_logprobs "
    "resampling=resamples engine=engine.name rollout_precision=engine.weights "
    "kv_precision=engine.kv kv_share=engine.kv_share sequences=engine.sequences"
)
# The parts of a refusal that advise on the planner's own options.
_OPTION = re.compile(r"^--[\w-]+ [^:]*: |; give --.*$|, or --rl \w+$")


@dataclass(frozen=True)
class RlCheck:
    """The verdict on a launch of reinforcement learning. `step`: the prediction; None if too little
    is known or a rule is broken.

    `at_limits`: whether all samples are assumed to be as long as the files allow, because their
    lengths are unknown; `short_fits`: whether the launch would fit with short samples.
    """

    problems: tuple[Problem, ...] = ()
    request: RlRequest | None = None
    job: RlJob | None = None
    layout: RlLayout | None = None
    step: RlStep | None = None
    at_limits: bool = False
    short_fits: bool = True


def rl_check(found: Found, gpus: str | None, cluster: str | None) -> RlCheck:
    """The prediction of a launch on the given GPUs."""
    rl = found.rl
    known = found.model is not None or found.shape is not None
    hides = any(
        one.severity in ("error", "missing") or one.rule == "not-predictable"
        for one in found.problems
    )
    if rl is None or not known or hides:
        return RlCheck()
    at_limits = found.lengths is None
    if at_limits and rl.response_limit is None:
        text = "the files do not say how long answers may be"
        fix = "--lengths prompt=512,response=lognormal:median=1000,p95=4000,max=8192"
        return RlCheck((Problem("lengths-unknown", text, "missing", fix=fix),))
    try:
        request = rl_request(found, rl, gpus, cluster)
        job = _resolved(request, rl)
        problems = tuple(_machine_problems(rl, job))
        if any(one.severity == "error" for one in problems):
            return RlCheck(problems, request, job)
        layout = rl_layout(found, rl, request, job)
        step = _step(job, layout)
        short = step.fits or not at_limits or _short_fits(found, rl, gpus, cluster)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        return RlCheck((Problem("option-value", f"{field}: {first['msg']}"),))
    except (UsageError, HardwareError) as error:
        # Drop the advice on the planner's own options.
        return RlCheck((not_predictable(_OPTION.sub("", str(error).strip())),))
    return RlCheck(problems, request, job, layout, step, at_limits, short)


def _step(job: RlJob, layout: RlLayout) -> RlStep:
    from planner.predict.rl.step import rl_step

    return rl_step(job, layout)


def _short_fits(found: Found, rl: RlFound, gpus: str | None, cluster: str | None) -> bool:
    """Whether the launch fits if prompts and answers have only a sixteenth of the allowed
    length."""
    answer = max(1, (rl.response_limit or _SHORT) // _SHORT)
    prompt = max(1, (rl.prompt_limit or _USUAL_PROMPT) // _SHORT)
    brief = replace(found, lengths=f"prompt={prompt},response={answer}")
    request = rl_request(brief, rl, gpus, cluster)
    job = _resolved(request, rl)
    return _step(job, rl_layout(brief, rl, request, job)).fits


def _resolved(request: RlRequest, rl: RlFound) -> RlJob:
    """The job of a request, with the engine's further settings from the files. UsageError if it is
    refused."""
    job, engine = request.resolve(), rl.engine
    set_engine = replace(job.engine, chunk=engine.chunk or job.engine.chunk, graphs=engine.graphs)
    return replace(job, engine=set_engine, **picked(rl, "token_limit_read fused_rotary"))


# --- the request ----------------------------------------------------------------------------------


def rl_request(found: Found, rl: RlFound, gpus: str | None, cluster: str | None) -> RlRequest:
    """The request that files describe. UsageError for an impossible machine."""
    return RlRequest(
        trainer=_trainer(found, rl, gpus, cluster),
        algorithm=_algorithm(rl),
        minibatches=_dividing(rl.samples, rl.minibatches),
        staleness=str(rl.staleness),
        reward=rl.reward or "rule",
        token_limit=rl.token_limit or _unpadded(found, rl),
        **picked(rl, _ALIKE),
    )


def _unpadded(found: Found, rl: RlFound) -> int | None:
    """Tokens in a micro-batch of `mbs` samples without padding: `mbs` times the mean length, but at
    least the longest sample. None if samples are padded."""
    if rl.padded:
        return None
    prompt, response = read_prompts(_lengths(found, rl))
    longest = prompt.longest + response.longest
    return max(longest, round(found.mbs * (prompt.mean + response.mean)))


def _algorithm(rl: RlFound) -> str:
    """The algorithm. With one answer per prompt, a group algorithm has nothing to compare and is
    costed as `reinforce`."""
    return (
        _ALONE if rl.samples_per_prompt == 1 and algorithms()[rl.algorithm].group else rl.algorithm
    )


def _dividing(samples: int, minibatches: int) -> int:
    """The number of mini-batches, lowered until it divides the samples: frameworks drop the
    remainder or make the last mini-batch smaller."""
    return next(one for one in range(min(minibatches, samples), 0, -1) if samples % one == 0)


def stated_lengths(rl: RlFound) -> str:
    """The `--lengths` value for every prompt and answer being as long as the files allow."""
    return f"prompt={rl.prompt_limit or _USUAL_PROMPT},response={rl.response_limit or 1}"


def _lengths(found: Found, rl: RlFound) -> str:
    """Lengths of prompts and answers, cut at the files' limits; unknown lengths are set to those
    limits. UsageError if wrong."""
    if found.lengths is None:
        return stated_lengths(rl)
    parts = re.split(r",\s*response=", found.lengths.strip()[len("prompt=") :], maxsplit=1)
    read = read_prompts(found.lengths)
    limits = (rl.prompt_limit, rl.response_limit)
    prompt, response = map(_cut, parts, read, limits)
    return f"prompt={prompt},response={response}"


def _cut(text: str, lengths: Lengths, limit: int | None) -> str:
    """The `--lengths` text with lengths above the limit reduced to it. Unchanged if none is;
    otherwise a histogram."""
    if limit is None or lengths.longest <= limit:
        return text
    shares: dict[int, float] = {}
    for tokens, share in zip(lengths.tokens, lengths.shares, strict=True):
        whole = min(max(1, round(tokens)), limit)
        shares[whole] = shares.get(whole, 0.0) + share
    return ",".join(f"{tokens}:{share:.9f}" for tokens, share in shares.items())


def _trainer(found: Found, rl: RlFound, gpus: str | None, cluster: str | None) -> Request:
    asked = found.asked() | {
        "lengths": _lengths(found, rl),
        "packing": "longest" if rl.padded else None,
        "seq": None,
        "objective": "lm",
        "images": found.images or (WITHOUT if _sees(found) else None),
    }
    named = (*found.variations, *_lacking(found, rl))
    launched = Launched(tables_of_variations(named, found.framework), found.transport())
    overrides = Overrides(model=found.shape if found.model is None else None, launched=launched)
    return Request(
        model=found.model or IN_FILES,
        overrides=overrides,
        gpus=gpus,
        cluster=cluster,
        allow_tp_across_domains=True,
        **asked,
    )


def _lacking(found: Found, rl: RlFound) -> Iterator[str]:
    """Techniques of the trainer's profile that are off under this framework unless the files switch
    them on."""
    offered = {technique.name for technique in load_framework(found.framework).techniques}
    lacks = offered.intersection(find_rl_framework(rl.framework).without)
    yield from (f"no-{name}" for name in sorted(lacks.difference(found.variations)))


def _sees(found: Found) -> bool:
    """Whether the policy reads images."""
    spec = found.shape if found.model is None else load_model(found.model).spec
    return spec is not None and spec.vision is not None


# --- the layout -----------------------------------------------------------------------------------


def rl_layout(found: Found, rl: RlFound, request: RlRequest, job: RlJob) -> RlLayout:
    """The layout that the files state, on the GPUs of a job. UsageError if it breaks a rule."""
    engine, (trains, samples) = rl.engine, _gpus_of(rl, job)
    mbs = found.mbs if rl.padded else 1
    # Frameworks make as many micro-batches as an interleaved pipeline needs.
    passes = found.pp if found.vpp > 1 and found.pp > 1 else 1
    sides = replace(found, world=trains, dp=None, gbs=None, grad_acc=passes, mbs=mbs)
    degrees = degrees_of(sides, request.trainer, trains)
    part = job.trainer.on_gpus(trains)
    part = replace(part, batch=BatchTarget(float(degrees.gbs), tolerance=0.0, exact=True))
    proposal = Proposal(
        request.trainer, degrees, canonical_mode(found), found.block_layers, found.recomputed
    )
    framework, engines = job.framework, max(1, samples // engine.engine_gpus)
    share = framework.kv_share_colocated if rl.placement == "colocated" else None
    return RlLayout(
        rl.placement,
        proposal.of(part),
        EngineLayout(
            engines,
            engine.tp,
            engine.pp,
            engine.ep,
            engine.dp,
            engine.kv_share or share or framework.kv_share_separate,
            engine.sequences or job.usual_sequences(rl.placement, engines),
        ),
        rl.staleness,
        _critic(job, proposal.of(part)),
        framework.trainer_leaves if rl.leaves is None else rl.leaves,
        streams=rl.streams,
        way=engine.way,
    )


def _critic(job: RlJob, trainer: Configuration) -> Configuration | None:
    """The critic with the degrees of the policy, as frameworks set it up; None without a critic."""
    if job.critic is None:
        return None
    own = replace(trainer.job, model=job.critic)
    return Configuration.even(own, trainer.degrees, trainer.recompute)


def _gpus_of(rl: RlFound, job: RlJob) -> tuple[int, int]:
    """The number of GPUs that train and the number that sample."""
    total, separate = job.trainer.cluster.num_gpus, rl.placement == "separate"
    trains, samples = rl.trainer_gpus, rl.engine.gpus
    left = [max(1, total - (other or 0)) if separate else total for other in (samples, trains)]
    return (left[0] if trains is None else trains, left[1] if samples is None else samples)


def _machine_problems(rl: RlFound, job: RlJob) -> Iterator[Problem]:
    """Problems: the files use more or fewer GPUs than are given."""
    total = job.trainer.cluster.num_gpus
    trains, samples = _gpus_of(rl, job)
    taken = max(trains, samples) if rl.placement == "colocated" else trains + samples
    if taken > total:
        text = f"the files use {taken:,} GPUs, but the check is for {total:,}"
        yield Problem("launched-processes", text, fix=f"--gpus with {taken} GPUs")
    elif taken < total:
        text = f"the files use {taken:,} of {total:,} GPUs: the prediction is for those in use"
        yield Problem("launched-processes", text, "warning", fix=f"--gpus with {taken} GPUs")


def figures(check: RlCheck) -> dict[str, Any]:
    """The prediction as a record in SI units; empty if there is no prediction."""
    step, job = check.step, check.job
    if step is None or job is None:
        return {}
    return {
        **picked(step, "step_time_s=step_s step_low_s=low_s step_high_s=high_s"),
        "samples_per_s": job.rollout.samples / step.step_s,
        **picked(step, "fits fit_probability"),
        "at_limits": check.at_limits,
        "phases": [picked(phase, "name side seconds peak_bytes") for phase in step.phases],
    }
