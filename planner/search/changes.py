"""Changes to a job, as its user would type them, or to its hardware, that may make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from hardware.load import gpu_names, load_gpu
from hardware.schema import Cluster
from hardware.sharp import why_not, with_sharp
from planner.job.frameworks.profile import load_framework
from planner.job.frameworks.switches import site_of
from planner.job.job import Job, searched_modes
from planner.job.offload import searched_offloads, spelled
from planner.job.optimizers import load_optimizer
from planner.job.pool import Pool
from planner.job.request import Request
from planner.predict.calibrated import Factors
from planner.predict.link_account import LATENCIES, RATES_OUT, RATES_UP, scale_up_name
from planner.predict.uncertainty.likely import EVEN_CHANCE
from planner.search.limit_results import Effort, Until
from planner.search.off_gpu import PAGED_OPTIMIZERS, asked_on_drives, asked_with, host_has_room
from planner.search.result import ChangeKind
from planner.search.trial import try_job

SHORTEST_SEQUENCE = 512
# Optimizers with less state, the most similar to AdamW first.
SMALLER_OPTIMIZERS = ("adamw-bf16", "adamw-fp8", "adamw-8bit", "adamw-4bit")
OFFLOADED_SHARES = (0.25, 0.5, 0.75, 1.0)
TOLERANCES = (0.1, 0.2)
# Frameworks in use today that shard more than Megatron-LM.
SHARDING_FRAMEWORKS = ("torchtitan", "deepspeed")
# Numbers of GPUs that are tried one by one, and further nodes that are always tried.
COUNTS_TRIED = 64
NODES_BEYOND = 4
MOST_DOUBLINGS, POOL_DOUBLINGS = 10, 2
# Work per change: enough to find a plan, but not to prove it the fastest. Changes differ by more.
EFFORT = Effort(most_solves=6, most_work_s=1.0, tie=0.02)
# Work to find out if anything fits at all.
PROBE = replace(EFFORT, any_plan=True)

# Factor by which hardware improves, and the numbers of the cost core that it multiplies together.
MORE_HBM_BYTES = 8 * 2**30
FASTER_LINKS = 2.0
FASTER_CHIP = 1.1
_ARITHMETIC = ("matmul_flop_per_s", "matmul16_flop_per_s")
_HBM = ("hbm_bytes_per_s",)


@dataclass(frozen=True)
class Change:
    """One change to a job: the option to type, or a sentence, and the job after it.

    `gpus`: how many GPUs must be used. `complete`: every smaller change of its kind comes before
    it. `factors`: multiply rates of the cost core. `more_bytes`: added to each GPU's memory.
    `keeps_plan`: whether the plan may stay as it is.
    """

    text: str
    make: Callable[[], Job]
    kind: ChangeKind = "choice"
    name: str = ""
    gpus: int | Literal["all"] = "all"
    complete: bool = True
    factors: Factors = field(default_factory=dict)
    more_bytes: float = 0.0
    keeps_plan: bool = True

    @cached_property
    def job(self) -> Job:
        """The job after the change. UsageError if no request may ask for it."""
        return self.make()


Changes = Iterator[Change]


@dataclass(frozen=True)
class Situation:
    """A job in which nothing fits. `gpus`: how many of the given GPUs it can use. `until`: when to
    stop trying changes."""

    request: Request
    job: Job
    gpus: int
    until: Until = field(default_factory=Until)

    def changed(self, text: str, **changes: object) -> Change:
        """A change of some request fields, on the same number of GPUs unless the fields say
        otherwise."""
        same = self.request.model_dump() | {"overrides": self.request.overrides}
        plain = Change(text, lambda: Request(**(same | changes)).resolve())
        return plain if "gpus" in changes else replace(plain, gpus=self.gpus)


MakeChanges = Callable[[Situation], Changes]


# --- the user's choices -------------------------------------------------------------------------


class Choice(NamedTuple):
    """A choice of the user that narrows the search. `kind`: kind of change that only drops it;
    empty if smaller changes come first. `name`: the option, without its values if these are a list.
    `left`: request fields without it."""

    kind: str
    name: str
    left: dict[str, object]


def choices_of(request: Request) -> dict[str, Choice]:
    """The choices of the user that narrow the search, by the text that was typed."""
    choices: dict[str, Choice] = {}
    for condition in request.conditions():
        given = getattr(request, condition.verb)
        left = tuple(text for text in given if " ".join(text.split()) != condition.text)
        if condition.verb == "fix":
            left = tuple(text for text in given if _fixed(text) != condition.text)
        choices[condition.option] = Choice("condition", condition.option, {condition.verb: left})
    for name, values in request.limits.items():
        limits = {other: kept for other, kept in request.limits.items() if other != name}
        option = f"--{_option(name)}"
        text = f"{option} {','.join(str(value) for value in values)}"
        choices[text] = Choice("limit", option, {"limits": limits})
    if request.recompute is not None:
        text = f"--recompute {','.join(request.recompute)}"
        choices[text] = Choice("", "--recompute", {"recompute": None})
    if request.hbm_reserve != "0":
        text = f"--hbm-reserve {request.hbm_reserve}"
        choices[text] = Choice("reserve", "--hbm-reserve", {"hbm_reserve": "0"})
    return choices


def dropped_choices(request: Request) -> dict[str, Request]:
    """For each choice of the user that narrows the search: the request without it."""
    choices = choices_of(request)
    return {text: request.model_copy(update=choice.left) for text, choice in choices.items()}


def _fixed(text: str) -> str:
    from constraints.condition import user_condition

    return user_condition("fix", text).text


def _option(degree: str) -> str:
    return "shard-size" if degree == "shard" else degree.replace("_", "-")


def without(kind: str) -> MakeChanges:
    """Changes that drop one choice of a kind each."""

    def changes(at: Situation) -> Changes:
        for choice in choices_of(at.request).values():
            if choice.kind == kind:
                yield at.changed(f"without {choice.name}", **choice.left)

    return changes


def larger_degree(name: str) -> MakeChanges:
    """Changes to the next larger values of a degree that the user limited."""

    def changes(at: Situation) -> Changes:
        values = at.request.limits.get(name, ())
        tried = range(4) if name == "zero" else [1 << power for power in range(10)]
        for value in (one_range for one_range in tried if values and one_range > max(values)):
            yield at.changed(f"--{name} {value}", limits=at.request.limits | {name: (value,)})

    return changes


def tensor_degrees(at: Situation) -> Changes:
    """Changes to more tp: raise the limit step by step, then go beyond the NVLink domain."""
    yield from larger_degree("tp")(at)
    cluster = at.job.cluster
    several = cluster.num_gpus > cluster.scale_up_domain_gpus
    if several and not at.request.allow_tp_across_domains:
        yield at.changed("--allow-tp-across-nodes", allow_tp_across_domains=True)


def recompute_modes(at: Situation) -> Changes:
    """Changes to recompute modes besides those that the user chose, those that save least first."""
    if at.request.recompute is None:
        return
    names = {mode.name for mode in at.job.recompute}
    for mode in searched_modes(at.job.model, at.job.framework):
        if mode.name not in names:
            yield at.changed(f"--recompute {mode.name}", recompute=(mode.name,))


def everything(at: Situation) -> Changes:
    """The change that drops all of the user's choices together."""
    choices = choices_of(at.request)
    if len(choices) > 1:
        free = at.changed(
            "without " + ", ".join(choices), require=(), forbid=(), fix=(), limits={},
            recompute=None, hbm_reserve="0",
        )  # fmt: skip
        yield replace(free, complete=False)


# --- the job ------------------------------------------------------------------------------------


def larger_values(name: str, option: str, values: Sequence[float]) -> MakeChanges:
    """Changes to larger values of a numeric request field."""

    def changes(at: Situation) -> Changes:
        now = getattr(at.request, name)
        for value in () if isinstance(now, str) else values:
            if value > now:
                yield at.changed(f"{option} {value:g}", **{name: value})

    return changes


def batch_tolerance(at: Situation) -> Changes:
    """Changes to a looser batch tolerance, so that more replica counts and micro-batches divide the
    batch."""
    if at.request.gbs_tokens is not None:
        yield from larger_values("gbs_tolerance", "--gbs-tolerance", TOLERANCES)(at)


def techniques(at: Situation) -> Changes:
    """Changes that add a technique which is only used on request and needs no further package. The
    searches show which of them save memory."""
    request, profile = at.request, at.job.framework
    inside = not request.allow_tp_across_domains
    site = site_of(
        profile,
        at.job.model,
        at.job.cluster,
        inside=inside,
        tuning=at.job.tuning,
        samples=at.job.samples,
    )
    said = (*request.use, *request.without)
    open_ones = [
        one
        for one in profile.techniques
        if one.effect != "speed" and one.name not in said and not (one.needs or site.obstacle(one))
    ]
    asked = [pair for one in open_ones for pair in asked_with(one, at.job, request.use)]
    for text, fields in (*asked, *asked_on_drives(open_ones, request.use)):
        change = at.changed(text, **fields)
        if "optimizer_offload" not in fields or host_has_room(change.job):
            yield change


def lighter_objectives(at: Situation) -> Changes:
    """Changes to the same objective without a copied reference, and without all logits at once."""
    for objective in at.job.objective.lighter():
        yield at.changed(f"--objective {objective}", objective=str(objective))


def smaller_optimizers(at: Situation) -> Changes:
    """Changes to optimizers with less state, and to those whose states may leave the GPU."""
    for name in SMALLER_OPTIMIZERS:
        if load_optimizer(name).state_bytes < at.job.optimizer.state_bytes:
            yield at.changed(f"--optimizer {name}", optimizer=name)
    for name in PAGED_OPTIMIZERS if at.job.framework.optimizer.paged else ():
        if not at.job.optimizer.paged:
            yield at.changed(f"--optimizer {name}", optimizer=name)


def activation_offloads(at: Situation) -> Changes:
    """Changes that offload the activations of more modules, if the framework can."""
    profile = at.job.framework
    if at.request.activation_offload == "search" or not profile.activation_offload.modules:
        return
    for modules in searched_offloads(profile, at.job.model):
        if set(modules) > set(at.job.activation_offload):
            named = spelled(modules, profile, at.job.model)
            yield at.changed(f"--activation-offload {named}", activation_offload=named)


def dtypes(at: Situation) -> Changes:
    if at.job.dtype != "bf16":
        precision = "bf16" if at.request.precision == "fp32" else at.request.precision
        yield at.changed("--dtype bf16", dtype="bf16", precision=precision)


def shorter_sequences(at: Situation) -> Changes:
    """Changes to sequences of half the length. The batch keeps its tokens, or its number of samples
    if they are padded."""
    if at.job.ramp and at.job.batch.exact:
        return  # each of its batches would have to follow
    factor = 2
    while at.job.seq % factor == 0 and at.job.seq // factor >= SHORTEST_SEQUENCE:
        seq = at.job.seq // factor
        padded = at.job.samples.lengths is not None and not at.job.samples.is_packed
        if at.request.gbs is None or padded:
            yield at.changed(f"--seq {seq}", seq=seq)
        else:
            gbs = at.request.gbs * factor
            yield at.changed(f"--seq {seq} --gbs {gbs}", seq=seq, gbs=gbs)
        factor *= 2


def framework_changes(at: Situation) -> Changes:
    """Changes to a framework with a higher ZeRO stage."""
    zero_stage = max(at.job.framework.parallelism.zero_stages)
    if max(at.request.limits.get("zero", (zero_stage,))) < zero_stage:
        return
    for name in SHARDING_FRAMEWORKS:
        stage = max(load_framework(name).parallelism.zero_stages)
        if stage > zero_stage:
            text = f"--framework {name} (ZeRO {stage})"
            yield at.changed(text, framework=name, dtype=None, recompute=None)


# --- the machines -------------------------------------------------------------------------------


def more_gpus(at: Situation) -> Changes:
    """Changes to more GPUs, smallest number first: GPUs of one node, then whole nodes.

    Doubling shows first how far to look. If no doubling fits, only a few more nodes are tried.
    """
    if at.job.pool is not None:
        yield from _larger_pools(at, at.job.pool)
        return
    cluster = at.job.cluster
    node, num_gpus = cluster.node_gpus, cluster.num_gpus
    first = max(2, num_gpus // node + 1)
    enough = _enough_doubled(at)
    most = max(first + NODES_BEYOND, (enough or 0) * 2 // node)
    counts = [*range(num_gpus + 1, node + 1), *(nodes * node for nodes in range(first, most + 1))]
    counts = [count for count in counts[:COUNTS_TRIED] if cluster.connects(count)]
    yield from (_on_gpus(at, count) for count in counts)
    if enough is not None and enough > counts[-1]:
        yield replace(_on_gpus(at, enough), complete=False)


def _larger_pools(at: Situation, pool: Pool) -> Changes:
    """Changes that double all clusters of a pool, repeatedly."""
    for doubling in range(1, POOL_DOUBLINGS + 1):
        gpus = "+".join(
            f"{part.num_gpus << doubling}x{text.rpartition('x')[2]}"
            for part, text in zip(pool.parts, pool.texts, strict=True)
        )
        yield at.changed(f"--gpus {gpus}", gpus=gpus)


def _enough_doubled(at: Situation) -> int | None:
    """The first doubling of the GPUs with which something fits."""
    level = min(at.request.fit_probability, EVEN_CHANCE)
    for doubling in range(1, MOST_DOUBLINGS + 1):
        count = at.job.cluster.num_gpus << doubling
        if not at.job.cluster.connects(count) or at.until.over("gpus"):
            break
        change, effort = _on_gpus(at, count), at.until.effort(PROBE)
        trial = try_job(change.make, (level,), gpus=change.gpus, effort=effort)
        if trial is not None and trial.limit_result.point is not None:
            return count
    return None


def _on_gpus(at: Situation, count: int) -> Change:
    """Change to another number of GPUs, written into the cluster file if there is one."""
    changes = at.request.on_gpus(count)
    if changes is None:
        return Change(f"num_gpus = {count} in the cluster file", lambda: at.job.on_gpus(count))
    return at.changed(f"--gpus {changes['gpus']}", **changes)


def other_gpus(at: Situation) -> Changes:
    """Changes to GPUs with more memory that are not worse in other ways, smallest memory first.

    They have the same vendor, NVLink domains at least as large, and at least the same speed in the
    precision. Among equals, a part at full power comes before the same part with a power limit.
    """
    if at.job.pool is not None:
        return
    cluster, precision = at.job.cluster, at.job.precision
    known = sorted(map(load_gpu, gpu_names()), key=lambda gpu: (gpu.hbm_usable_bytes, -gpu.tdp_w))
    for gpu in known:
        better = (
            gpu.vendor == cluster.gpu.vendor
            and gpu.hbm_usable_bytes > cluster.gpu.hbm_usable_bytes
            and gpu.peak_flop_per_s.get(precision, 0.0) >= cluster.gpu.peak(precision)
            and gpu.scale_up_domain_gpus >= cluster.gpu.scale_up_domain_gpus
        )
        if better:
            gpus = f"{cluster.num_gpus}x{gpu.name}"
            yield at.changed(f"--gpus {gpus}", gpus=gpus, cluster=None)


def hardware_changes(job: Job) -> Changes:
    """Slightly better memory, links and arithmetic than the catalogue's, as far as the job uses
    them."""

    def better(name: str, text: str, factors: Factors, to: Job = job) -> Change:
        return Change(text, lambda: to, "hardware", name, factors=factors)

    cluster = job.cluster
    larger = better("hbm", "+8 GiB HBM", {}, more_hbm(job, MORE_HBM_BYTES))
    yield replace(larger, more_bytes=MORE_HBM_BYTES)
    if cluster.num_gpus > cluster.scale_up_domain_gpus and cluster.nics_per_node:
        faster = dict.fromkeys(RATES_OUT, FASTER_LINKS)
        yield better("network", "2× inter-node bandwidth", faster)
        groups = job.framework.parallelism.sharp_groups
        if groups and not cluster.sharp and not why_not(cluster) and not job.pool:
            reducing = job.on_clusters(with_sharp)
            yield better("sharp", "switches that reduce (--sharp)", {}, reducing)
    if cluster.num_gpus > 1:
        links = f"2× {scale_up_name(cluster)} bandwidth"
        yield better("latency", "half the link latency", dict.fromkeys(LATENCIES, 1 / FASTER_LINKS))
        yield better("scale-up", links, dict.fromkeys(RATES_UP, FASTER_LINKS))
    yield better("compute", "+10 % sustained FLOP/s", dict.fromkeys(_ARITHMETIC, FASTER_CHIP))
    yield better("hbm-rate", "+10 % HBM bandwidth", dict.fromkeys(_HBM, FASTER_CHIP))


def more_hbm(job: Job, size_bytes: float) -> Job:
    """The job on GPUs with more memory and no other change."""

    def larger(cluster: Cluster) -> Cluster:
        gpu = cluster.gpu
        sizes = {
            name: getattr(gpu, name) + size_bytes for name in ("hbm_bytes", "hbm_usable_bytes")
        }
        return cluster.model_copy(update={"gpu": gpu.model_copy(update=sizes)})

    return job.on_clusters(larger)


# Changes that may make a job fit, by kind.
KINDS: Mapping[str, MakeChanges] = {
    "condition": without("condition"),
    "limit": without("limit"),
    "zero": larger_degree("zero"),
    "tp": tensor_degrees,
    "recompute": recompute_modes,
    "reserve": without("reserve"),
    "batch": batch_tolerance,
    "objective": lighter_objectives,
    "technique": techniques,
    "optimizer": smaller_optimizers,
    "offload": larger_values("optimizer_offload", "--optimizer-offload", OFFLOADED_SHARES),
    "activation-offload": activation_offloads,
    "dtype": dtypes,
    "sequence": shorter_sequences,
    "framework": framework_changes,
    "gpus": more_gpus,
    "gpu-type": other_gpus,
}
