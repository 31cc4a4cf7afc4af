"""Why a split of layers cannot be launched, in words, and the nearest split that can."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from constraints.layout import EXPRESSIBLE_RULES
from constraints.layout_context import LayoutContext
from constraints.rule import Layout
from planner.job.job import Job
from planner.predict.configuration import Configuration


def layout_problems(configuration: Configuration) -> list[str]:
    """A sentence for each rule that a layout breaks; a broken sum speaks for itself."""
    job, layout, ctx = configuration.job, configuration.layout, configuration.context
    broken = [rule.name for rule in EXPRESSIBLE_RULES if not rule.check(layout, ctx)]
    if "every-layer-once" in broken:
        broken = [name for name in broken if name != "split-expressible"]
    return [_sentence(name, job, layout, ctx) for name in broken]


def _sentence(name: str, job: Job, layout: Layout, ctx: LayoutContext) -> str:
    framework, blocks = job.framework.name, list(layout.block_layers)
    if name == "every-layer-once":
        return (
            f"layers {blocks}: they are {sum(blocks)}, {job.model.name} has {ctx.layers}; "
            f"{framework} would take {list(ctx.usual_split)}  [{name}]"
        )
    if name == "blocks-not-empty":
        but = " but the first and the last" if ctx.standalone_vocab else ""
        if layout.mtp_standalone and ctx.standalone_vocab:
            but = " but the first and the last two"
        return f"layers {blocks}: every block{but} holds at least one transformer layer  [{name}]"
    if name == "mtp-expressible":
        return f"multi-token prediction apart: {_standalone_refusal(job, layout, ctx)}  [{name}]"
    if name == "offload-chunk-layers":
        return (
            f"layers {blocks}: with activations of several modules on the host the "
            f"last chunk of every stage needs two layers or more; {framework} fails in the second "
            f"step with one  [{name}]"
        )
    if name == "split-expressible":
        near = list(nearest_split(layout.block_layers, ctx))
        return f"layers {blocks}: {framework} {_SPLITS[ctx.layouts]}; nearest: {near}  [{name}]"
    return (
        f"recomputed {_recomputed_text(layout)} of {list(layout.stage_layers)} layers by stage: "
        f"{framework} {_RECOMPUTES[ctx.recomputation]}  [{name}]"
    )


def _recomputed_text(layout: Layout) -> str:
    """Layers by stage: `[2, 4]`, of a mix `[2, 4] (full), [1, 0] (mlp)`."""
    rows = [(list(counts), mode) for mode, counts in layout.recomputed.items()]
    if len(rows) < 2:
        return str(rows[0][0] if rows else [0] * layout.pp)
    return ", ".join(f"{counts} ({mode})" for counts, mode in rows)


def _standalone_refusal(job: Job, layout: Layout, ctx: LayoutContext) -> str:
    """Why multi-token prediction cannot stand before the last block, and what could."""
    if job.model.mtp_layers == 0:
        return f"{job.model.name} has none"
    if not ctx.mtp_standalone:
        return f"{job.framework.name} keeps it with the head under {job.schedule or '1f1b'}"
    if not ctx.may_part:
        return (
            f"it would share a stage with the embedding on {ctx.pp} stages; give pp 3 or more, or "
            "leave it with the head"
        )
    blocks = list(layout.block_layers)
    return (
        f"layers {blocks} have {blocks[-1]} behind it; the last block holds head and loss alone, "
        f"as {[*blocks[:-2], blocks[-2] + blocks[-1], 0]}"
    )


_SPLITS = {
    "any": "takes any split",
    "even": "gives every stage the same number of layers",
    "even-or-ends": "sets the first and the last stage apart; all others hold equally many, and "
    "so do the chunks of a stage",
    "greedy": "places the layers itself, by cost with the LM head counted",
}
_RECOMPUTES = {
    "none": "recomputes no layer in this mode",
    "all": "recomputes all layers in this mode; leave the numbers out, or give another mode",
    "shared": "recomputes the same number of layers in every block; give --recompute "
    "full:block=N, or equal numbers",
    "free": "takes no more layers of a stage than it has, and at least one in all",
}


def split_sentence(framework: str, ctx: LayoutContext) -> str:
    """What the framework does with a split of layers: `deepspeed gives every stage ...`."""
    return f"{framework} {_SPLITS[ctx.layouts]}"


def nearest_split(wanted: tuple[int, ...], ctx: LayoutContext) -> tuple[int, ...]:
    """The split that the framework can write down with the fewest layers moved."""
    splits = list(_splits(ctx)) or [ctx.usual_split]

    def moved(numbers: tuple[int, ...]) -> tuple[int, int]:
        """Layers in another place; of equals the more even split."""
        return sum(abs(one - two) for one, two in zip(numbers, wanted, strict=True)), max(numbers)

    return min(splits, key=moved)


def _splits(ctx: LayoutContext) -> Iterator[tuple[int, ...]]:
    """Every split with ends of their own; none where the framework leaves no choice."""
    if ctx.layouts != "even-or-ends" or ctx.layers % ctx.vpp:
        return
    # Chunks of a stage are equal: what is split is the layers of one chunk of each stage.
    layers, middles = ctx.layers // ctx.vpp, max(0, ctx.pp - 2)
    for first, middle in product(range(1, layers), range(1, layers if middles else 2)):
        last = layers - first - middles * middle
        if last >= 1:
            yield (first, *(middle,) * middles, last) * ctx.vpp
