"""Sentences that state the assumptions behind a plan."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from constraints.rule import Layout
from hardware.load import Fact, cluster_facts, cluster_names, gpu_facts, gpu_names
from planner.job.frameworks.adapters import hooks_tower
from planner.job.job import Job
from planner.job.models.catalog import beside_notes
from planner.job.models.hf_config import supported_model_types
from planner.job.quantities import GIB, share
from planner.job.schedules import schedule_named
from planner.job.tuned_layers import EXPERTS, in_groups
from planner.job.tuning import VISION_TOWER
from planner.predict.configuration import Configuration
from planner.predict.home_notes import home_notes, host_share
from planner.predict.links import link_inputs
from planner.predict.plan import Degrees, Interval
from planner.predict.sharp import sharp_notes
from planner.predict.techniques import used_techniques
from planner.predict.uncertainty.measured_range import Conditions


def choice_notes(configuration: Configuration, offloaded_bytes: float) -> tuple[str, ...]:
    """Assumptions that follow from a plan's choices. `offloaded_bytes`: bytes of offloaded
    activations on the rank that offloads the most."""
    job, degrees, layout = configuration.job, configuration.degrees, configuration.layout
    return (
        *_recompute_notes(job, layout),
        *((_MTP_APART,) if layout.mtp_standalone else ()),
        *sharp_notes(job, degrees),
        *home_notes(job, degrees),
        *_activation_notes(job, offloaded_bytes, job.offload_fraction),
    )


def _recompute_notes(job: Job, layout: Layout) -> Iterator[str]:
    """One note for each recompute mode in use that treats layers in groups. It says whether one
    layer of each group recomputes, or all layers of the group share one checkpoint, because the
    notations of these two are easily confused. Nothing for other modes."""
    forms = job.framework.recomputing
    # A measured run may use the name that its source has for a mode.
    named = {mode.name: mode for mode in job.recompute}
    for name in layout.recomputed:
        mode = named.get(name) or job.framework.recompute_mode(name)
        if mode.every > 1:
            alternative = f"; one checkpoint for {mode.every} layers is full:uniform={mode.every}"
            yield (
                f"recompute {mode.name}: one layer in {mode.every} recomputes, the others keep all "
                f"their activations{alternative if forms.uniform_flags else ''}"
            )
        elif mode.span > 1:
            alternative = f"; to recompute only one layer in {mode.span}, give full/{mode.span}"
            yield (
                f"recompute {mode.name}: one checkpoint for {mode.span} layers, which all "
                f"recompute{alternative if forms.every_flags else ''}"
            )


_MTP_APART = (
    "multi-token prediction in a block of its own: Megatron-Core then exchanges shapes before "
    "every transfer between stages, counted as a message and a launch each; the final norm "
    "counts with the head, though it follows the last layer; no measured run does this, so the "
    "error bars do not cover it"
)


def unmeasured_notes(interval: Interval) -> tuple[str, ...]:
    """One note that lists the conditions of the plan that no measured run covers and that therefore
    widen the interval of the step time; empty if there are none."""
    if not interval.beyond:
        return ()
    return (f"outside what was measured: {', '.join(interval.beyond)}; the interval is wider",)


FRACTION_NOTE = (
    "only a fraction of the activations is offloaded: with several micro-batches in flight, "
    "Megatron-Core fetches all of the next one's activations before its backward starts; a layer "
    "that is offloaded in part counts as on the GPU and as copied"
)


def _activation_notes(job: Job, size_bytes: float, fraction: float) -> Iterator[str]:
    """Host memory that offloaded activations need, and the assumed speed of the host link."""
    if not job.activation_offload:
        return
    size = size_bytes * job.cluster.gpus_per_node / GIB
    rate = link_inputs(job.cluster).host_bytes_per_s / 1e9
    yield (
        f"offloaded activations: at most {host_share(job.cluster, size)}, pinned; copies at "
        f"{rate:.0f} GB/s a GPU and direction, beside the compute of a "
        "layer; NIC traffic on the same link is not counted; few measured runs offload "
        "activations, so the error bars do not cover it"
    )
    if fraction < 1.0:
        yield FRACTION_NOTE


def schedule_assumptions(job: Job) -> list[str]:
    """Assumptions behind the time of a pipeline schedule."""
    schedule = schedule_named(job.schedule)
    notes = []
    if schedule.splits_backward:
        notes.append(
            "backward is split into gradients of inputs and of weights; attention and norms count "
            "with the inputs"
        )
    if schedule.placement == "mirrored":
        notes.append("two copies of the model, each with gradients and optimizer state")
    return notes


def _dropout_notes(job: Job) -> tuple[str, ...]:
    """If dropout is on, a note on the memory that its masks take. If it is off although the sources
    of the framework's profile use it, a warning. Otherwise empty."""
    if job.dropout:
        return ("dropout on: backward keeps its masks, one byte a value",)
    if job.framework.saved.dropout:
        return ("dropout off; published runs and formulas of this profile have it: --dropout",)
    return ()


# Tolerance for rounding when samples have equally many patches.
_ALIKE = 1.0 + 1e-9


def _notes_of_samples(job: Job) -> Iterator[str]:
    """How images are assumed to combine with samples of different lengths."""
    samples, lengths = job.samples, job.samples.lengths
    if lengths is None or not job.model.images.patches or not lengths.mean_patches:
        return
    if lengths.most_patches > lengths.mean_patches * _ALIKE:
        yield (
            "images as the file of lengths states them, counted in the tokens of each sample; "
            "memory is that of the longest row together with the most patches"
        )
        return
    tokens = job.model.images.tokens * lengths.mean
    shorter = f"; {share(samples.raised)} of the samples given are shorter, assumed to be that "
    yield (
        f"images and lengths: every sample has equally many images, and its length includes their "
        f"{tokens:,.0f} tokens" + (f"{shorter}long" if samples.raised else "")
    )


def image_notes(job: Job) -> Iterator[str]:
    """Assumptions about images that the job does not describe, and about a frozen vision tower."""
    images = job.model.images
    yield from _notes_of_samples(job)
    if images.shrunk:
        yield (
            f"images {images.shrunk}: the family's processor shrinks them, so they take "
            f"{images.tokens * job.row_tokens:,.0f} tokens of a row, as smaller images would"
        )
    vision, frozen = job.model.vision, images.patches and job.tuning.freezes(VISION_TOWER)
    if vision and frozen and hooks_tower(job.tuning, job.framework, vision.tower):
        yield (
            "frozen vision tower with recomputation: transformers 5 hooks its patch embedding too, "
            "so its checkpoints are kept, its forward pass runs again, and it has a backward pass"
        )
    yield from _tower_notes(job)
    if images.usual:
        yield (
            f"images not given: assumes one of {images.usual} pixels a sample, the largest usual "
            f"size for this family, {share(images.tokens)} of the tokens; state yours, as in "
            "--images 1x640x480"
        )


def _tower_notes(job: Job) -> Iterator[str]:
    """Notes on a vision tower that is not part of the pipeline's layers: it runs on the first
    stage, is copied or split there, and may get no adapters. Nothing otherwise."""
    vision, name = job.model.vision, job.framework.name
    if vision is None or vision.place == "layers":
        return
    stands = "the vision tower runs with the embeddings on the first pipeline stage"
    if vision.place == "copied":
        yield (f"{name}: {stands}, whole on every tensor-parallel rank, and is never recomputed")
    else:
        yield (
            f"{name}: {stands}, split over tensor parallelism; every context-parallel rank runs "
            "all of it"
        )
    if vision.place == "copied" and job.tuning.has_adapters:
        yield f"{name}: no layer of tower and projector gets adapters; they stay frozen"


def framework_assumptions(job: Job, degrees: Degrees) -> tuple[str, ...]:
    """Assumptions of the framework's profile that apply to these degrees and this precision; then
    those about dropout, images and kinds of layers that no measured run covers."""
    unused = set(job.techniques) - set(used_techniques(job, degrees))
    unused |= {"fp16", "bf16"} - {job.precision}
    notes = tuple(
        text for text in job.framework.assumptions if text.partition(":")[0] not in unused
    )
    notes += (*_dropout_notes(job), *image_notes(job))
    if job.model.has_states:
        notes += (
            "state-space layers run in fused kernels: mamba_ssm and causal_conv1d, or "
            "flash-linear-attention; in plain torch they keep many times as much, which is not "
            "modelled",
        )
    # Frameworks that use each family's own model class have rules for certain families.
    family = job.model.family
    if job.framework.families and family not in supported_model_types():
        notes += (
            f"the tensors that transformers keeps for {family} models were not counted; assumes a "
            "plain layer",
        )
    return notes


def mtp_notes(job: Job) -> tuple[str, ...]:
    """A note if the number of multi-token-prediction layers is not the published one."""
    trained, published = job.model.mtp_layers, job.published_mtp
    if trained == published:
        return ()
    statement = f"{trained or 'no'} layers of multi-token prediction are trained"
    return (
        f"{statement}; {job.model.name} was published with {published} (--mtp-layers {published})",
    )


def _expert_notes(job: Job) -> Iterator[str]:
    """A note for models whose routed experts are stored in one tensor, if the experts' adapters are
    merged with the weights before each use, or if the experts get no adapters because the targets
    name only a group of linear layers. Nothing otherwise."""
    targets, rules = job.tuning.targets, job.framework.adapters
    if job.model.moe is None or rules.quantised_experts:
        return
    if EXPERTS in targets and rules.merges_tensors:
        yield (
            "adapters of experts are merged with them before each use, as peft 0.21 does: a copy "
            "of all experts' weights, which backward keeps unless the layer is recomputed"
        )
    elif EXPERTS in in_groups(targets) and EXPERTS not in targets:
        yield (
            "routed experts get no adapters, because they are in one tensor "
            "(targets=all-linear,experts,router adds some, as peft 0.21 does by default with "
            "all-linear)"
        )


def tuning_notes(job: Job) -> Iterator[str]:
    """How the framework stores adapters and the frozen weights next to them."""
    tuning, rules = job.tuning, job.framework.adapters
    if not tuning.has_adapters:
        return
    weight_type = tuning.adapter or rules.weight_type
    words = "the type of weights that it trains" if weight_type == "framework" else weight_type
    yield f"adapters: {job.framework.name} holds their weights, gradients and states in {words}"
    yield from _expert_notes(job)
    if tuning.base is None:
        return
    if rules.upcasts_norms:
        yield (
            "the quantised base is prepared as by peft: norms, embeddings and head in fp32, and "
            "hence the stream between layers (--with 16-bit-stream avoids that)"
        )
    if job.model.moe is not None and not rules.quantised_experts:
        yield (
            f"experts are not quantised: {job.framework.name} keeps a layer's experts in one "
            "tensor, which the library for quantised layers does not handle"
        )


def plan_assumptions(job: Job, degrees: Degrees) -> tuple[str, ...]:
    """Assumptions behind a prediction."""
    notes = [*framework_assumptions(job, degrees), *schedule_assumptions(job), *mtp_notes(job)]
    notes += beside_notes(job.beside)
    notes += tuning_notes(job)
    if job.model.moe is not None:
        load = "the mean load"
        if job.expert_imbalance != 1.0:
            load = f"{job.expert_imbalance:g} times {load}"
        notes.append(f"the busiest expert rank gets {load}")
        if degrees.etp == job.framework.usual_etp(experts=True, tp=degrees.tp, ep=degrees.ep) > 1:
            notes.append(f"etp {degrees.etp}, the default of {job.framework.name}")
    return tuple(notes)


# Smallest share of the step for which waiting for the CPU gets a note.
_WORTH_SAYING = 0.1


def waiting_notes(job: Job, at: Conditions) -> tuple[str, ...]:
    """A note on the share of the step in which the GPU waits for the CPU, the assumed speed of the
    host's core, and a way to avoid the waiting if the framework has one; empty if the share is
    negligible."""
    if at.waiting < _WORTH_SAYING:
        return ()
    graphs = job.framework.technique("cuda-graphs")
    cure = "; CUDA graphs (--with cuda-graphs) avoid that" if graphs else ""
    return (
        f"the GPU waits for the CPU to issue kernels in {share(at.waiting, 0)} of the step, on a "
        f"host core {job.cluster.host_speed:g} times as fast as a DGX A100's (host_speed of a "
        f"cluster file){cure}",
    )


# Facts of a cluster that do not affect a job on one node.
_BETWEEN_NODES = ("gpus_per_node", "nics_per_node", "nic_rate", "oversubscription")


class Assumption(BaseModel):
    """An assumption and the machine that it is about."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    text: str


def hardware_assumptions(job: Job) -> tuple[Assumption, ...]:
    """Assumed figures of the GPU and the nodes; a user's own file states no sources."""
    gpu, cluster = job.cluster.gpu.name, job.cluster.name
    facts = [(gpu, fact) for fact in (gpu_facts(gpu) if gpu in gpu_names() else ())]
    if cluster in cluster_names():
        inside = job.cluster.num_nodes == 1
        facts += [
            (cluster, fact)
            for fact in cluster_facts(cluster)
            if not (inside and fact.name in _BETWEEN_NODES)
        ]
    return tuple(
        Assumption(about=about, text=_fact_text(fact)) for about, fact in facts if fact.assumption
    )


def _fact_text(fact: Fact) -> str:
    unit = "" if fact.unit == "1" else f" {fact.unit}"
    note = f": {fact.note}" if fact.note else ""
    return f"{fact.name} {fact.value:g}{unit}{note}"


def assumption_lines(jobs: tuple[Job, ...]) -> tuple[str, ...]:
    """Assumptions about the machines of several jobs: `DGX H100: rail_latency_s 2e-06 s:
    reason`."""
    found = (item for job in jobs for item in hardware_assumptions(job))
    return tuple(dict.fromkeys(f"{item.about}: {item.text}" for item in found))
