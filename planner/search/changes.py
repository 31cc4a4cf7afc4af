"""Changes of a job that may make it fit, as its user would type them.

`planner.search.relaxations` searches them, and adds those of the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.job.frameworks import load_framework
from planner.job.job import Job, searched_modes
from planner.job.offload import searched_offloads, spelled
from planner.job.optimizers import load_optimizer
from planner.job.request import Request
from planner.job.technique_rules import site_of
from planner.search.limit_results import Until

SHORTEST_SEQUENCE = 512
# Optimizers with less state, the nearest to AdamW first.
SMALLER_OPTIMIZERS = ("adamw-bf16", "adamw-fp8", "adamw-8bit", "adamw-4bit")
OFFLOADED_SHARES = (0.25, 0.5, 0.75, 1.0)
TOLERANCES = (0.1, 0.2)
# Frameworks in use today that shard further than Megatron-LM does.
SHARDING_FRAMEWORKS = ("torchtitan", "deepspeed")

Make = Callable[[], Job]


@dataclass(frozen=True)
class Change:
    """One change of the job. `complete`: every smaller change of its kind comes before it."""

    text: str
    make: Make
    complete: bool = True


Changes = Iterator[Change]


@dataclass(frozen=True)
class Asked:
    """A changed request; called, its job. UsageError for what no request may ask."""

    plain: Request
    changes: dict[str, object]

    @property
    def request(self) -> Request:
        """The request with the changes."""
        same = self.plain.model_dump() | {"overrides": self.plain.overrides}
        return Request(**(same | self.changes))

    def __call__(self) -> Job:
        return self.request.resolve()


@dataclass(frozen=True)
class Situation:
    """The job in which nothing fits. `gpus`: how many of the given ones it can use."""

    request: Request
    job: Job
    gpus: int

    def asked(self, **changes: object) -> Asked:
        """The request with some fields changed."""
        return Asked(self.request, changes)


# --- the user's choices -------------------------------------------------------------------------


def dropped_choices(request: Request) -> dict[str, Request]:
    """For each choice of the user that narrows the search: the request without it."""
    choices: dict[str, Request] = {}
    for condition in request.conditions():
        given = getattr(request, condition.verb)
        left = tuple(text for text in given if " ".join(text.split()) != condition.text)
        if condition.verb == "fix":
            left = tuple(text for text in given if _fixed(text) != condition.text)
        choices[condition.option] = request.model_copy(update={condition.verb: left})
    for name, values in request.limits.items():
        limits = {other: kept for other, kept in request.limits.items() if other != name}
        text = f"--{_option(name)} {','.join(str(value) for value in values)}"
        choices[text] = request.model_copy(update={"limits": limits})
    if request.recompute is not None:
        text = f"--recompute {','.join(request.recompute)}"
        choices[text] = request.model_copy(update={"recompute": None})
    if request.hbm_reserve != "0":
        text = f"--hbm-reserve {request.hbm_reserve}"
        choices[text] = request.model_copy(update={"hbm_reserve": "0"})
    return choices


def _fixed(text: str) -> str:
    from constraints.condition import user_condition

    return user_condition("fix", text).text


def _option(degree: str) -> str:
    return "shard-size" if degree == "shard" else degree.replace("_", "-")


def conditions(at: Situation, _until: Until) -> Changes:
    item = {condition.option for condition in at.request.conditions()}
    for text, request in dropped_choices(at.request).items():
        if text in item:
            yield Change(f"without {text}", Asked(request, {}))


def degree_limits(at: Situation, _until: Until) -> Changes:
    for name in at.request.limits:
        others = {other: kept for other, kept in at.request.limits.items() if other != name}
        yield Change(f"without --{_option(name)}", at.asked(limits=others))


def larger_degree(name: str) -> Callable[[Situation, Until], Changes]:
    """The next larger values of a degree that the user limited."""

    def changes(at: Situation, _until: Until) -> Changes:
        values = at.request.limits.get(name, ())
        tried = range(4) if name == "zero" else [1 << power for power in range(10)]
        for value in (one_range for one_range in tried if values and one_range > max(values)):
            yield Change(f"--{name} {value}", at.asked(limits=at.request.limits | {name: (value,)}))

    return changes


def tensor_degrees(at: Situation, until: Until) -> Changes:
    """More tp: the limit lifted step by step, then beyond the NVLink domain."""
    yield from larger_degree("tp")(at, until)
    cluster = at.job.cluster
    several = cluster.num_gpus > cluster.scale_up_domain_gpus
    if several and not at.request.allow_tp_across_domains:
        yield Change("--allow-tp-across-nodes", at.asked(allow_tp_across_domains=True))


def recompute_modes(at: Situation, _until: Until) -> Changes:
    """Modes beside those that the user chose, those that free least first."""
    if at.request.recompute is None:
        return
    names = {mode.name for mode in at.job.recompute}
    for mode in searched_modes(at.job.model, at.job.framework):
        if mode.name not in names:
            yield Change(f"--recompute {mode.name}", at.asked(recompute=(mode.name,)))


def memory_reserve(at: Situation, _until: Until) -> Changes:
    if at.request.hbm_reserve != "0":
        yield Change("without --hbm-reserve", at.asked(hbm_reserve="0"))


def everything(at: Situation) -> Changes:
    """All of the user's choices dropped together."""
    choices = dropped_choices(at.request)
    if len(choices) > 1:
        free = at.asked(require=(), forbid=(), fix=(), limits={}, recompute=None, hbm_reserve="0")
        yield Change("without " + ", ".join(choices), free, complete=False)


# --- the job ------------------------------------------------------------------------------------


def batch_tolerance(at: Situation, _until: Until) -> Changes:
    """A looser tolerance of the batch: more replica counts and micro-batches divide it."""
    if at.request.gbs_tokens is None:
        return
    for tolerance in TOLERANCES:
        if tolerance > at.request.gbs_tolerance:
            yield Change(f"--gbs-tolerance {tolerance:g}", at.asked(gbs_tolerance=tolerance))


def techniques(at: Situation, _until: Until) -> Changes:
    """Techniques that a search takes only where somebody asks, but for those that need a package;
    which of them save memory, the searches tell."""
    request, profile = at.request, at.job.framework
    inside = not request.allow_tp_across_domains
    site = site_of(profile, at.job.model, at.job.cluster, inside=inside)
    for one in profile.techniques:
        said = one.name in (*request.use, *request.without)
        if one.effect == "numerics" and not (said or one.needs or site.obstacle(one)):
            yield Change(f"--with {one.name}", at.asked(use=(*request.use, one.name)))


def smaller_optimizers(at: Situation, _until: Until) -> Changes:
    """Optimizers with less state."""
    for name in SMALLER_OPTIMIZERS:
        if load_optimizer(name).state_bytes < at.job.optimizer.state_bytes:
            yield Change(f"--optimizer {name}", at.asked(optimizer=name))


def larger_offloads(at: Situation, _until: Until) -> Changes:
    """More of the optimizer on the CPU."""
    if at.request.optimizer_offload == "search":
        return
    for share in OFFLOADED_SHARES:
        if share > at.request.optimizer_offload:
            yield Change(f"--optimizer-offload {share:g}", at.asked(optimizer_offload=share))


def activation_offloads(at: Situation, _until: Until) -> Changes:
    """Activations of more modules on the host, where the framework has it."""
    profile = at.job.framework
    if at.request.activation_offload == "search" or not profile.activation_offload.modules:
        return
    for modules in searched_offloads(profile, at.job.model):
        if set(modules) > set(at.job.activation_offload):
            named = spelled(modules, profile, at.job.model)
            yield Change(f"--activation-offload {named}", at.asked(activation_offload=named))


def dtypes(at: Situation, _until: Until) -> Changes:
    if at.job.dtype != "bf16":
        precision = "bf16" if at.request.precision == "fp32" else at.request.precision
        yield Change("--dtype bf16", at.asked(dtype="bf16", precision=precision))


def shorter_sequences(at: Situation, _until: Until) -> Changes:
    """Halved sequences; the batch keeps its tokens."""
    if at.job.ramp and at.job.batch.exact:
        return  # each of its batches would have to follow
    factor = 2
    while at.job.seq % factor == 0 and at.job.seq // factor >= SHORTEST_SEQUENCE:
        seq = at.job.seq // factor
        if at.request.gbs is None:
            yield Change(f"--seq {seq}", at.asked(seq=seq))
        else:
            gbs = at.request.gbs * factor
            yield Change(f"--seq {seq} --gbs {gbs}", at.asked(seq=seq, gbs=gbs))
        factor *= 2


def framework_changes(at: Situation, _until: Until) -> Changes:
    """A framework with a higher ZeRO stage."""
    zero_stage = max(at.job.framework.parallelism.zero_stages)
    if max(at.request.limits.get("zero", (zero_stage,))) < zero_stage:
        return
    for name in SHARDING_FRAMEWORKS:
        stage = max(load_framework(name).parallelism.zero_stages)
        if stage > zero_stage:
            text = f"--framework {name} (ZeRO {stage})"
            yield Change(text, at.asked(framework=name, dtype=None, recompute=None))
