"""Sentences with numbers: the memory of the lightest configuration, and why no split of it fits."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from constraints.layout import LAYOUT_RULES, stage_memory
from constraints.layout_context import LayoutContext
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.cost.terms import MEMORY_WORDS
from planner.job.job import Job
from planner.job.quantities import GIB, number_ranges
from planner.job.specs import ModelSpec
from planner.predict.costed_plan import configured_plan
from planner.predict.evaluate import split_sentence
from planner.predict.plan import Plan
from planner.search.explorer import Explorer
from planner.search.infeasibility import ConflictingRule
from planner.search.layout_model import layout_conflict

# Terms below this many GiB are shown together.
_SHOWN_GIB = 0.05


def lightest_row(explorer: Explorer) -> int:
    """The shape that needs least memory in its even layout."""
    return int(np.argmin(explorer.peak))


def lightest_plan(explorer: Explorer) -> Plan:
    """The configuration that needs least memory in its even layout, as a plan that does not fit."""
    row = lightest_row(explorer)
    configuration = explorer.configuration(row, explorer.even_point(row).layout)
    return configured_plan(configuration, explorer.cost_model, "evaluated")


def memory_rule(explorer: Explorer, dropped: tuple[str, ...] = ()) -> ConflictingRule:
    """Memory that the heaviest stage of the lightest configuration needs, compared with what is
    available.

    `dropped`: choices of the user that the job ignores here, because nothing fits either way.
    """
    row = lightest_row(explorer)
    stages = explorer.step_and_stages(row, explorer.even_point(row).layout)[1]
    place = explorer.cost_model.place(explorer.costed, row)
    scales = np.array(explorer.cost_model.memory_scales)[place]
    stage = int(np.argmax(stages[:, f.STAGE_PEAK] * scales))
    over = int((stages[:, f.STAGE_PEAK] * scales > explorer.limit_bytes).sum())
    others = f"; {over} of {len(stages)} stages are over" if len(stages) > 1 and over > 1 else ""
    needed = stages[stage, f.STAGE_PEAK] / GIB
    text = (
        f"stage {stage} needs {needed:.1f} GiB {_recompute(explorer, row)}; "
        f"{_available(explorer, place[stage])}{others}. That is the lightest of "
        f"{len(explorer.peak):,} legal configurations, {_degrees(explorer, row)}, in its even "
        f"layout, with {_parts(stages[stage])}"
    )
    if dropped:
        text += f". Left out here: {', '.join(dropped)}; nothing fits with them or without them"
    return ConflictingRule(name=stage_memory.name, text=text)


def _available(explorer: Explorer, machine: int) -> str:
    """`79.1 GiB are there`, and how much of it a prediction may use."""
    job = explorer.cost_model.job.machines[machine]
    limit, usable = job.hbm_limit_bytes, job.cluster.gpu.hbm_usable_bytes
    sure_bytes = explorer.limit_bytes / explorer.cost_model.memory_scales[machine]
    where = f" on {job.cluster.gpu.name}" if explorer.cost_model.job.pool else ""
    text = f"{limit / GIB:.1f} GiB{where} are available"
    if limit < usable:
        text += f" after the reserve ({usable / GIB:.1f} without)"
    if f"{sure_bytes / GIB:.1f}" != f"{limit / GIB:.1f}":
        chance = f"{job.fit_probability * 100:.0f} %"
        surely = f"{sure_bytes / GIB:.1f}"
        text += f" ({surely} to fit with a probability of {chance})"
    return text


def _recompute(explorer: Explorer, row: int) -> str:
    job, mode = explorer.cost_model.job, explorer.mode(row)
    text = "without recompute" if mode.name == "none" else f"with {mode.name} recompute"
    share, modules = job.optimizer_offload, job.activation_offload
    share_text = f"{share * 100:.0f} % of the optimizer on the CPU"
    if job.optimizer.paged:
        share_text = "optimizer states in host memory"
    text += f", {share_text}" if share else ""
    return f"{text}, {' + '.join(modules)} on the host" if modules else text


def _degrees(explorer: Explorer, row: int) -> str:
    columns = explorer.columns
    shown = " ".join(
        f"{name}{int(columns[name][row])}"
        for name in ("tp", "pp", "vpp", "cp", "ep", "dp")
        if name in ("tp", "pp", "dp") or columns[name][row] > 1
    )
    return f"{shown} z{int(columns['zero'][row])} mbs{int(columns['mbs'][row])}"


def _parts(stage: Array) -> str:
    """Every memory term of a stage, largest first; they add up to its peak."""
    columns = f.MEMORY_COLUMNS.items()
    sizes = {MEMORY_WORDS[name]: float(stage[column]) / GIB for name, column in columns}
    shown = {label: size for label, size in sizes.items() if size >= _SHOWN_GIB}
    small = sum(size for size in sizes.values() if size < _SHOWN_GIB)
    ordered = sorted(shown, key=lambda label: -shown[label])
    parts = [f"{label} {shown[label]:.1f}" for label in ordered]
    return ", ".join([*parts, *([f"others {small:.1f}"] if small >= _SHOWN_GIB else [])])


def layout_rules(explorer: Explorer) -> tuple[ConflictingRule, ...]:
    """A minimal set of rules that exclude every layout of the lightest shape; () if one is
    possible."""
    job = explorer.cost_model.job
    ctx = explorer.linear(lightest_row(explorer), explorer.limit_bytes)[1]
    if ctx.blocks == 1:
        return ()
    core = layout_conflict(ctx)
    stages = sorted(int(name.split("[")[1][:-1]) for name in core if "[" in name)
    found = [
        ConflictingRule(name=rule.name, text=_layout_sentence(rule.name, rule.sentence, job, ctx))
        for rule in LAYOUT_RULES
        if rule.name in core
    ]
    if stages:
        found.append(
            ConflictingRule(name=stage_memory.name, text=capacities_text(ctx, stages, job.model))
        )
    return tuple(found)


def _layout_sentence(name: str, sentence: str, job: Job, ctx: LayoutContext) -> str:
    if name == "every-layer-once":
        return f"each of the {ctx.layers} layers is placed on exactly one of {ctx.pp} stages"
    if name == "split-expressible":
        return split_sentence(job.framework.name, ctx)
    return sentence


def capacities_text(ctx: LayoutContext, stages: list[int], model: ModelSpec) -> str:
    """How many layers each stage's memory can hold: `stages 0-2 each hold at most 17`.

    It counts the layers of the kind for which the stages together lack most room, or layers of any
    kind if those are scarcer.
    """
    kind, most = _scarcest(ctx, stages)
    parts = []
    for count, members in groupby(zip(stages, most, strict=True), key=lambda pair: pair[1]):
        group = [stage for stage, _ in members]
        name = f"stage {group[0]}" if len(group) == 1 else f"stages {number_ranges(group)}"
        verb = "holds" if len(group) == 1 else "each hold"
        parts.append(f"{name} {verb} {f'at most {count}' if count else 'not even one'}")
    of = (
        "the layers" if kind is None else f"the {ctx.totals[kind]} {_kind_name(model, kind)} layers"
    )
    total = ctx.layers if kind is None else ctx.totals[kind]
    together = ""
    if len(stages) == ctx.pp > 1:
        short = sum(most) < total
        together = (
            f": together {sum(most)} of {total}" if short else (", but no split holds all of them")
        )
    return f"of {of}, {', '.join(parts)}{together}"


def _scarcest(ctx: LayoutContext, stages: list[int]) -> tuple[int | None, list[int]]:
    """(kind, its maximum on each stage) where the stages lack most room; kind None means runs of
    any layers."""
    found: list[tuple[int | None, list[int]]] = [(None, [capacity(ctx, stage) for stage in stages])]
    totals = [ctx.layers]
    if ctx.kind_count > 1:
        for kind in range(ctx.kind_count):
            found.append((kind, [kind_capacity(ctx, stage, kind) for stage in stages]))
            totals.append(ctx.totals[kind])
    fit_shares = [sum(most) / total for (_, most), total in zip(found, totals, strict=True)]
    return found[int(np.argmin(fit_shares))]


def _kind_name(model: ModelSpec, kind: int) -> str:
    """A name that distinguishes a kind of layer from the model's others: `MoE`,
    `sliding-attention`."""
    one_kind, kinds = model.piece_kinds[kind], model.piece_kinds
    if "none" in (one_kind.attention, one_kind.ffn):
        return one_kind.parts
    words = []
    if len({other.attention for other in kinds}) > 1:
        words.append(f"{one_kind.attention}-attention")
    if len({other.ffn for other in kinds}) > 1:
        words.append("MoE" if one_kind.ffn == "moe" else one_kind.ffn)
    return " ".join(words)


def capacity(ctx: LayoutContext, stage: int) -> int:
    """Most consecutive layers that a stage's memory can hold, with recomputation if it helps."""
    for count in range(ctx.layers, 0, -1):
        runs = {
            tuple(row[start + count] - row[start] for row in ctx.prefix)
            for start in range(ctx.layers - count + 1)
        }
        if any(_holds(ctx, stage, list(run)) for run in sorted(runs)):
            return count
    return 0


def kind_capacity(ctx: LayoutContext, stage: int, kind: int) -> int:
    """Most layers of one kind that a stage's memory can hold."""
    for count in range(ctx.totals[kind], 0, -1):
        if _holds(ctx, stage, [count if index == kind else 0 for index in range(ctx.kind_count)]):
            return count
    return 0


def _holds(ctx: LayoutContext, stage: int, layers: list[int]) -> bool:
    memory = ctx.memory
    if memory is None:
        return True
    none = [0] * ctx.kind_count
    choices = {"none": (none,), "all": (layers,)}.get(ctx.recomputation, (none, layers))
    return any(memory.peak(stage, layers, again) <= memory.limit for again in choices)
