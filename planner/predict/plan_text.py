"""Words for one plan: degrees, layout, recompute, error bars. Shared by every report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from planner.job.job import SURE_TO_FIT
from planner.job.optimizers import load_optimizer
from planner.job.quantities import (
    DAY_S,
    gib,
    number_ranges,
    percent_sure,
    run_lengths,
    seconds,
    share,
    short_count,
    signed_share,
)
from planner.job.samples import BALANCE_WORDS, PACKING_WORDS
from planner.predict.plan import Degrees, Interval, Plan

FitVerdict = Literal[
    "fits", "probably fits", "cannot tell", "probably does not fit", "does not fit"
]
# A plan probably fits from this probability on, and probably does not below one minus this.
PROBABLE = 0.6


def fit_verdict(probability: float) -> FitVerdict:
    """The verdict in words for the probability that a plan fits into memory: `fits` from 80 % on,
    as a search demands; `does not fit` at 20 % or less; `cannot tell` around 50 %; between these
    `probably fits` or `probably does not fit`."""
    if probability >= SURE_TO_FIT:
        return "fits"
    if probability >= PROBABLE:
        return "probably fits"
    if probability > 1.0 - PROBABLE:
        return "cannot tell"
    return "probably does not fit" if probability > 1.0 - SURE_TO_FIT else "does not fit"


# Below this probability of fitting, tables mark a plan's peak memory.
LIKELY_TO_FIT = 0.9
# Longest list of a ramp's batches.
_MOST_SHOWN = 4
# Difference in percentage points up to which both sides of an error bar are printed as one.
_ALIKE = 2


def degrees_text(degrees: Degrees) -> str:
    """Degrees in short, without those of 1 that say nothing: `tp4 pp4 vpp5 cp2 dp2 z1`."""
    return str(degrees)


# Degrees in a plan's name, as people write them.
_NAMED_DEGREES = {"tp": "TP", "pp": "PP", "cp": "CP", "ep": "EP", "dp": "DP"}


def plan_name(plan: Plan) -> str:
    """A plan's name for people: `TP 8 × PP 2 × DP 4`, `DP 8, ZeRO-3, recomputing`; batch and layout
    are in `configuration_text`."""
    found = [
        f"{word} {getattr(plan.degrees, axis)}"
        for axis, word in _NAMED_DEGREES.items()
        if getattr(plan.degrees, axis) > 1
    ]
    more = [" × ".join(found) or "one GPU"]
    if plan.degrees.zero > 1:
        more.append(f"ZeRO-{plan.degrees.zero}")
    if plan.recompute != "none" or plan.layout.recomputed:
        more.append("recomputing")
    if plan.optimizer_offload or plan.activation_offload:
        more.append("offloading")
    return ", ".join(more)


def batch_text(degrees: Degrees) -> str:
    """Micro-batch size and micro-batches per step: `1×32`."""
    return f"{degrees.mbs}×{degrees.grad_acc}"


def batch_difference(plan: Plan, target_sequences: float) -> float:
    """Relative difference of the plan's global batch from the target; negative if the batch is
    smaller."""
    return plan.gbs / target_sequences - 1


def batch_sentence(plan: Plan, target_sequences: float) -> str:
    """`512 sequences of 8,192 = 4,194,304 tokens (+4.9 %)`."""
    difference = batch_difference(plan, target_sequences)
    away = "" if abs(difference) < 1e-9 else f" ({signed_share(difference)} of the target)"
    return f"{_rows_text(plan)} = {plan.gbs_tokens:,} tokens{away}"


def _rows_text(plan: Plan) -> str:
    """`512 sequences of 8,192`, `64 samples of 450 on average`, `64 packs of 8,192`."""
    samples = plan.samples
    each = f"{plan.rows} × " if plan.rows > 1 else ""
    if samples is None:
        return f"{plan.gbs:,} {'pairs' if each else 'sequences'} of {each}{plan.seq:,}"
    if samples.packing in ("pack", "pack-varlen"):
        return f"{plan.gbs:,} packs of {each}{plan.seq:,}, {samples.samples:,.0f} samples"
    return f"{plan.gbs:,} samples of {each}{samples.mean_tokens:,.0f} on average"


def batch_rows(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Rows of facts shown with the batch of a plan: its ramp and its samples."""
    return (*ramp_rows(plan), *sample_rows(plan))


def sample_rows(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Rows of facts about samples of different lengths; empty without them."""
    samples = plan.samples
    if samples is None:
        return ()
    cut = f"; {share(samples.cut)} of them cut at {plan.seq:,}" if samples.cut > 5e-4 else ""
    balance = f", {BALANCE_WORDS[samples.balance]}" if samples.balance != "none" else ""
    counted = plan.tokens_per_s / samples.computed_tokens_per_s
    return (
        ("samples", f"{samples.lengths}; {samples.mean_tokens:,.0f} tokens on average{cut}"),
        ("packing", f"{samples.packing}: {PACKING_WORDS[samples.packing]}{balance}"),
        (
            "rate",
            f"{samples.samples_per_s:,.3g} samples/s; {plan.tokens_per_s:,.0f} tokens/s that "
            f"count, {share(counted)} of {samples.computed_tokens_per_s:,.0f} that are computed",
        ),
        ("MFU that counts", f"{share(samples.mfu_counted)}, of the tokens of samples alone"),
    )


def ramp_rows(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Rows of facts about a batch ramp; empty without one."""
    if not plan.ramp:
        return ()
    steps = [
        f"{batch.gbs:,} sequences until {short_count(batch.until_tokens)} tokens "
        f"({seconds(batch.step_time_s)} a step)"
        for batch in plan.ramp
    ]
    if len(steps) > _MOST_SHOWN:
        steps = [*steps[: _MOST_SHOWN - 1], "…", steps[-1]]
    end = plan.ramp[-1].until_tokens
    days = plan.training_s(end) / DAY_S
    alone = end / plan.gbs_tokens * plan.step_time_s / DAY_S
    last = f"then {plan.gbs:,} ({seconds(plan.step_time_s)} a step)"
    return (
        ("batch ramp", f"{', '.join(steps)}, {last}"),
        ("ramp takes", f"{days:.3g} days; at the last batch its tokens would take {alone:.3g}"),
    )


def layers_text(plan: Plan) -> str:
    """Layers of each pipeline stage if they differ, else an empty text."""
    stages = plan.layout.stage_layers
    return run_lengths(stages) + _standalone_mark(plan) if len(set(stages)) > 1 else ""


def _standalone_mark(plan: Plan) -> str:
    return " m|L" if plan.layout.mtp_standalone else ""


def blocks_text(plan: Plan) -> str:
    """Layers of each virtual-pipeline block if they differ, else an empty text."""
    if plan.layout.is_even:
        return ""
    return run_lengths(plan.layout.block_layers) + _standalone_mark(plan)


def stage_gpus_text(plan: Plan) -> str:
    """GPU types of the stages of a plan on several types: `stages 0-1 H100, 2 A100`. Types are
    named by the part before the first hyphen, or in full if that part is ambiguous."""
    kinds = set(plan.stage_gpus)
    short = {gpu: gpu.partition("-")[0] for gpu in kinds}
    names = short if len(set(short.values())) == len(kinds) else {gpu: gpu for gpu in kinds}
    parts = []
    for gpu, members in groupby(range(plan.degrees.pp), key=lambda index: plan.stage_gpus[index]):
        parts.append(f"{number_ranges(list(members))} {names[gpu]}")
    return "stages " + ", ".join(parts)


def recompute_text(plan: Plan) -> str:
    """The modes, and the number of layers unless it is all of them: `full 8/20, mlp 4/20`."""
    layers = sum(plan.layout.stage_layers)
    counts = plan.layout.recomputed or {plan.recompute: ()}
    if plan.recompute == "none" or sum(counts.get(plan.recompute, ())) == layers:
        return _mode_text(plan.recompute)
    return ", ".join(f"{_mode_text(mode)} {sum(count)}/{layers}" for mode, count in counts.items())


def _mode_text(mode: str) -> str:
    return mode.replace("+", " + ")


def schedule_text(plan: Plan) -> str:
    """Name of the pipeline schedule; empty for 1F1B and interleaved 1F1B, which the degrees
    imply."""
    return "" if plan.schedule in ("1f1b", "interleaved") else plan.schedule


def exchange_text(plan: Plan) -> str:
    """`cp a2a+p2p 2·4`: the exchange of context parallelism; empty for a plain ring."""
    if plan.cp_comm_type in ("", "p2p"):
        return ""
    sizes = "·".join(str(size) for size in plan.cp_sizes)
    return f"cp {plan.cp_comm_type}" + (f" {sizes}" if sizes else "")


def offload_text(
    share_on_cpu: float,
    modules: Sequence[str] = (),
    fraction: float = 1.0,
    optimizer_name: str = "",
) -> str:
    """`optimizer 25 % on the CPU, core_attn + attn_proj on the host`; empty if nothing is
    offloaded. `fraction`: share of the activations of `modules` that is on the host."""
    optimizer = f"optimizer {share(share_on_cpu, 0)} on the CPU" if share_on_cpu else ""
    if share_on_cpu and optimizer_name and load_optimizer(optimizer_name).paged:
        optimizer = "optimizer states in host memory"
    of = f"{share(fraction)} of " if fraction < 1.0 else ""
    activations = f"{of}{' + '.join(modules)} on the host" if modules else ""
    return ", ".join(filter(None, (optimizer, activations)))


def techniques_text(plan: Plan, but: Sequence[str] = ()) -> str:
    """`ep-overlap, no tp-overlap`: the techniques of the plan except those in `but`, then `no` with
    each technique in `but` that the plan could use and does not."""
    more = [name for name in plan.techniques if name not in but]
    return ", ".join((*more, *(f"no {name}" for name in but if does_without(plan, name))))


def does_without(plan: Plan, technique: str) -> bool:
    """Whether a plan could use a technique and does not: `tp-overlap` needs tp above 1."""
    degree = technique.partition("-")[0]
    return technique not in plan.techniques and getattr(plan.degrees, degree, 2) > 1


def shared_techniques(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Techniques that more than half of the plans use."""
    names = dict.fromkeys(name for plan in plans for name in plan.techniques)
    return tuple(
        name for name in names if 2 * sum(name in plan.techniques for plan in plans) > len(plans)
    )


def configuration_text(plan: Plan) -> str:
    """Degrees, batch, recompute and offload of a plan in a line."""
    parts = (degrees_text(plan.degrees), batch_text(plan.degrees), recompute_text(plan))
    fraction = plan.activation_offload_fraction
    offloaded = offload_text(
        plan.optimizer_offload, plan.activation_offload, fraction, plan.optimizer
    )
    more = (exchange_text(plan), techniques_text(plan), offloaded)
    return ", ".join(part for part in (*parts, *more) if part)


def optimizer_text(plan: Plan) -> str:
    """`adamw-bf16, fused, 50 % on the CPU`."""
    offload = f", {share(plan.optimizer_offload)} on the CPU" if plan.optimizer_offload else ""
    if load_optimizer(plan.optimizer).paged:
        offload = f", states in {'host memory' if plan.optimizer_offload else 'unified memory'}"
    kernel = f", {plan.optimizer_kernel}" if plan.optimizer_kernel else ""
    return f"{plan.optimizer}{kernel}{offload}"


def activations_text(plan: Plan) -> str:
    """`60 % of the activations of core_attn, attn_proj, up to 5.6 GiB a GPU`."""
    most = max(stage.offloaded for stage in plan.stages)
    named = fraction_text(plan.activation_offload, plan.activation_offload_fraction)
    return f"{named}, up to {gib(most)} GiB a GPU"


def fraction_text(modules: Sequence[str], fraction: float) -> str:
    """`60 % of the activations of core_attn, attn_proj`."""
    of = f"{share(fraction)} of the " if fraction < 1.0 else ""
    return f"{of}activations of {', '.join(modules)}"


def error_text(value: float, interval: Interval) -> str:
    """`±8 %` for the larger side, or `-4/+9 %` if the other side is smaller by a third or more."""
    if not value:
        return "±0 %"
    below, above = (round(abs(end / value - 1.0) * 100) for end in (interval.low, interval.high))
    small, large = sorted((below, above))
    alike = large - small <= _ALIKE or large <= 1.5 * small
    return f"±{large} %" if alike else f"-{below}/+{above} %"


def fit_text(peak_bytes: float, limit_bytes: float, probability: float) -> str:
    """`fits (probability 98 %)`, `PROBABLY FITS (…)`, `DOES NOT FIT: 21.3 GiB too much (…)`."""
    verdict: str = fit_verdict(probability)
    if verdict != "fits":
        verdict = verdict.upper()
    if peak_bytes > limit_bytes:
        verdict += f": {gib(peak_bytes - limit_bytes)} GiB too much"
    return f"{verdict} (probability {percent_sure(probability)})"


def step_time_text(plan: Plan) -> str:
    """`9.84 s ±8 %`."""
    return f"{seconds(plan.step_time_s)} {error_text(plan.step_time_s, plan.step_time)}"


def status_text(plan: Plan) -> str:
    """`optimal`, `evaluated`, or `feasible, within 0.8 %`: of the cost model's optimum."""
    if plan.status != "feasible":
        return plan.status
    return f"feasible, within {share(plan.gap)}"
