"""The best single changes of a launch: configurations that differ from it by one option, each
costed like any plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.frameworks.techniques import Technique
from planner.job.job import Job, searched_modes
from planner.job.request_fields import Launched
from planner.launch.check.assess import Assessment
from planner.launch.check.network import unset_network
from planner.launch.check.opened import opened_facts, plan_in_doubt
from planner.launch.check.request import variation_tables
from planner.launch.read.found import Found
from planner.launch.registry import formats, function
from planner.predict.evaluate import Proposal
from planner.predict.memory.advice import Over
from planner.predict.memory.solve import SAFE_PROBABILITY
from planner.predict.plan import Degrees, Plan
from planner.predict.techniques import further_techniques
from planner.predict.uncertainty.differences import Ratio, standing_of
from planner.predict.uncertainty.selection import expected_ratio
from planner.search.neighbours import neighbours

Watch = Callable[[str, int, int], None]

MOST_CHANGES = 3
# A gain or a saving below this share is not worth an edit.
LEAST_GAIN = 0.01
_FACTORS = (4, 8)


# A configuration one change away, and that change in words.
Candidate = tuple[str, Proposal]


@dataclass(frozen=True)
class LaunchChange:
    """A change that is worth making. `change`: a description of it; `proposal`, `plan`: the changed
    configuration and its prediction.

    `faster`: tokens/s divided by those of the launch, minus one. `expected`: step time of the
    launch divided by that of the change, with its 80 % interval; corrected because the best of many
    changes was picked (`planner.predict.uncertainty.selection`). `saved_bytes`: reduction of peak
    memory. All three are None if there is no prediction of the launch as it is.
    """

    change: str
    proposal: Proposal
    plan: Plan
    faster: float | None
    saved_bytes: float | None
    expected: Ratio | None = None

    @property
    def sufficient(self) -> bool:
        """Whether the change fits with the probability that a recommendation needs."""
        return self.plan.fit_probability >= SAFE_PROBABILITY


def best_changes(
    assessment: Assessment, watch: Watch, over: Over = lambda _what: False
) -> tuple[LaunchChange, ...]:
    """Up to three best changes. If some changes fit safely: the fastest of them; otherwise those
    with the least memory. If the launch itself fits safely, only changes that make it more than 1 %
    faster.

    Empty if the launch cannot be predicted. `over`: called with each change before it is tried;
    True means that time is up, and the change is skipped.
    """
    proposal, job = assessment.proposal, assessment.job
    if proposal is None or job is None or assessment.unpredictable:
        return ()
    candidates, base = list(_candidates(assessment, proposal, job)), assessment.plan
    found = []
    for index, (change, changed) in enumerate(candidates):
        if over(change):
            continue
        watch("changes", index, len(candidates))
        try:
            # A first estimate: the best changes later get error bars from their own open facts.
            plan = plan_in_doubt(changed.plan(), job, assessment.opened)
        except (UsageError, HardwareError, ConstraintError):
            continue  # it breaks a rule
        faster = None if base is None else plan.tokens_per_s / base.tokens_per_s - 1.0
        saved = None if base is None else base.peak_bytes - plan.peak_bytes
        found.append(LaunchChange(change, changed, plan, faster, saved))
    best = tuple(_in_its_doubt(one, assessment.found) for one in _best(found, base))
    return best if base is None else _as_expected(best, found, base, mixture=bool(job.model.moe))


def _in_its_doubt(change: LaunchChange, found: Found) -> LaunchChange:
    """The change with error bars that also cover its open facts (those that no file decides);
    unchanged if the launch has none."""
    if not found.left_open:
        return change
    plan, job = change.proposal.plan(), change.proposal.request.resolve()
    opened = opened_facts(found.left_open, change.proposal, job, plan)
    return replace(change, plan=plan_in_doubt(plan, job, opened))


def _as_expected(
    best: Sequence[LaunchChange], tried: Sequence[LaunchChange], base: Plan, *, mixture: bool
) -> tuple[LaunchChange, ...]:
    """The best changes with `expected` set: a gain that is corrected because they were picked among
    all tried changes that fit."""
    ours = standing_of(base, "", mixture)
    rivals = [standing_of(one.plan, "", mixture) for one in tried if one.sufficient]
    return tuple(
        replace(one, expected=expected_ratio(standing_of(one.plan, "", mixture), ours, rivals))
        for one in best
    )


def _best(changes: list[LaunchChange], base: Plan | None) -> tuple[LaunchChange, ...]:
    safe = [change for change in changes if change.sufficient]
    safe.sort(key=lambda change: -change.plan.tokens_per_s)
    lighter = sorted(changes, key=lambda change: change.plan.peak_bytes)
    if base is None:
        return tuple((safe or lighter)[:MOST_CHANGES])
    if base.fit_probability >= SAFE_PROBABILITY:
        return tuple(item for item in safe if (item.faster or 0.0) > LEAST_GAIN)[:MOST_CHANGES]
    least = LEAST_GAIN * base.peak_bytes
    saving = (change for change in lighter if (change.saved_bytes or 0.0) > least)
    return tuple(safe or saving)[:MOST_CHANGES]


# --- candidates -----------------------------------------------------------------------------------


def _candidates(assessment: Assessment, proposal: Proposal, job: Job) -> Iterator[Candidate]:
    """Every change to try, as a description and a configuration, without duplicates."""
    seen: set[object] = {_key(proposal)}
    for change, changed in _all(assessment, proposal, job):
        completed = _completed(changed, proposal, job, assessment.found)
        key = _key(completed)
        if key not in seen:
            seen.add(key)
            yield change, completed


def _key(proposal: Proposal) -> object:
    """A key for finding duplicates: equal for equal configurations. It includes the overrides,
    which `repr` of a request leaves out."""
    return repr(proposal), str(proposal.request.overrides)


def _all(assessment: Assessment, proposal: Proposal, job: Job) -> Iterator[Candidate]:
    gbs = round(job.batch.sequences)
    near = neighbours(proposal, job, gbs)
    yield from ((change, there) for change, there in near if there.degrees.gbs == gbs)
    yield from _jumps(proposal, job, gbs)
    if assessment.plan is None:
        yield from _batches(proposal, job, gbs)
    for mode in searched_modes(job.model, job.framework):
        if mode.name != proposal.recompute:
            yield f"recompute {mode.name}", replace(proposal, recompute=mode.name, recomputed=None)
    yield from _switches(assessment, proposal, job)
    if job.attention == "eager" and job.framework.attention == "flash":
        request = proposal.request.model_copy(update={"attention": "flash"})
        yield "flash attention", replace(proposal, request=request)


def _jumps(proposal: Proposal, job: Job, gbs: int) -> Iterator[Candidate]:
    """Changes of one degree, or of mbs, by a factor of 2, 4 or 8 (mbs: only divided). dp then fills
    the GPUs. Also the launch's own degrees with dp filling the GPUs."""
    before, rules, gpus = proposal.degrees, job.framework.parallelism, job.cluster.num_gpus
    factors = (2, *_FACTORS)
    offered = {"tp": rules.tensor, "pp": rules.pipeline, "cp": rules.context}
    wanted: list[dict[str, int]] = [{}]
    for name, has in offered.items():
        value = getattr(before, name)
        if has:
            wanted += [{name: value * factor} for factor in factors]
        wanted += [{name: value // factor} for factor in factors if value % factor == 0]
    wanted += [{"mbs": before.mbs // factor} for factor in factors if before.mbs % factor == 0]
    for changes in wanted:
        completed = _followed(before.model_copy(update=changes), before).filling(gpus, gbs)
        if completed is not None and completed != before:
            yield _words(completed, before, changes), replace(proposal, degrees=completed)


def _batches(proposal: Proposal, job: Job, gbs: int) -> Iterator[Candidate]:
    """Changes to the next smaller and the next larger global batch that can be divided among the
    ranks. Empty for a job with a batch ramp."""
    if job.ramp:
        return  # the other batches of the ramp would have to follow
    before = proposal.degrees
    grouped = before.vpp > 1 and job.framework.parallelism.interleaved_microbatches != "any"
    step = before.mbs * before.dp * (before.pp if grouped else 1)
    for size in (gbs // step * step, -(-gbs // step) * step):
        if size and size != gbs:
            request = proposal.request.model_copy(update={"gbs": size})
            accumulation = size // (before.mbs * before.dp)
            degrees = before.model_copy(update={"grad_acc": accumulation})
            yield f"global batch {size:,}", replace(proposal, request=request, degrees=degrees)


def _followed(degrees: Degrees, before: Degrees) -> Degrees:
    """The degrees with etp and vpp adjusted: etp follows tp if the two were equal before; vpp
    becomes 1 without a pipeline. Layers are split later, in `_completed`."""
    etp = degrees.tp if before.etp == before.tp else before.etp
    return degrees.model_copy(update={"etp": etp, "vpp": 1 if degrees.pp == 1 else degrees.vpp})


def _words(new: Degrees, degrees: Degrees, asked: dict[str, int]) -> str:
    """A description such as `tp 4 (dp 8)`: the requested change, and the changes that follow from
    it."""
    first = " ".join(f"{name} {getattr(new, name)}" for name in asked)
    following = (name for name in ("vpp", "dp", "grad_acc") if name not in asked)
    changed = (name for name in following if getattr(new, name) != getattr(degrees, name))
    other = [f"{name.replace('_', '-')} {getattr(new, name)}" for name in changed]
    if not first:
        return ", ".join(other)
    shown = [text for text in other if not text.startswith("grad")]
    return first + (f" ({', '.join(shown)})" if shown else "")


def _switches(assessment: Assessment, proposal: Proposal, job: Job) -> Iterator[Candidate]:
    """Changes that unset network variables, undo variations of the profile, or use a further
    technique."""
    launched = proposal.request.overrides.launched
    if launched is None:
        return
    if unset := unset_network(assessment.found, proposal):
        yield unset
    for name, table in variation_tables().items():
        if "removed" in table and name in launched.variations:
            gone = (name, "uncompiled-loss") if name == "eager-blocks" else (name,)
            yield table["removed"], _launched_as(proposal, launched.without(*gone))
    compiled = "eager-blocks" not in launched.variations
    for technique in _untried(proposal, job) if compiled else ():
        flags = "" if "{" in technique.flags else f", {technique.flags}"
        used = launched.using(technique.name)
        yield f"use {technique.name}{flags}", _launched_as(proposal, used)


def _untried(proposal: Proposal, job: Job) -> Iterator[Technique]:
    """Techniques that the launch does not use but a search with its degrees would try."""
    further = further_techniques(job, proposal.degrees, proposal.recompute)
    return (technique for technique in further if technique.use != "asked")


def _launched_as(proposal: Proposal, launched: Launched) -> Proposal:
    request = proposal.request
    return replace(proposal, request=request.model_copy(update=request.launched_as(launched)))


def _completed(proposal: Proposal, base: Proposal, job: Job, found: Found) -> Proposal:
    """The configuration with what follows from its change: the framework's default split of layers
    if the stages changed, and the file's ZeRO stage if there are now several replicas to shard
    over."""
    if proposal.recompute != base.recompute:
        proposal = replace(proposal, recomputed=None)
    degrees, before = proposal.degrees, base.degrees
    if _replicas(before) == 1 < _replicas(degrees) and degrees.zero == before.zero:
        # Before the change there was only one rank to shard over.
        proposal = replace(proposal, degrees=degrees.model_copy(update={"zero": found.zero}))
    if (degrees.pp, degrees.vpp) != (before.pp, before.vpp):
        blocks, written = None, formats().get(found.format)
        if written and written.splits and degrees.pp > 1:
            split = function(written.dialect, written.splits)
            blocks = split(job.model.layers, degrees.pp * degrees.vpp)
        proposal = replace(proposal, block_layers=blocks, recomputed=None, mtp_standalone=False)
    return proposal


def _replicas(degrees: Degrees) -> int:
    return degrees.dp * degrees.cp
