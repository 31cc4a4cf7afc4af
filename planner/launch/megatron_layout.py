"""Where layers live, as Megatron-LM spells it: nothing, first and last counts, or a layout."""

from __future__ import annotations

from itertools import groupby

from planner.launch.megatron_flags import Flag, flag
from planner.launch.options import MEGATRON_LAYOUT
from planner.predict.plan import LayerLayout


def layout_flags(layout: LayerLayout, pp: int, vpp: int, mtp_layers: int) -> tuple[Flag, ...]:
    """The shortest spelling that gives every block its layers.

    Even blocks need no flag, or the layers of a virtual stage; stages that differ only at the
    ends their counts; everything else the layout string.
    """
    blocks = layout.block_layers
    if pp == 1:
        return ()
    if layout.is_even and blocks[0] > 0:
        return (flag(MEGATRON_LAYOUT["chunk-layers"].key, blocks[0]),) if vpp > 1 else ()
    if vpp == 1 and _only_edge_stages_differ(blocks):
        return (
            flag(MEGATRON_LAYOUT["first-layers"].key, blocks[0]),
            flag(MEGATRON_LAYOUT["last-layers"].key, blocks[-1]),
        )
    text = layout_text(blocks, mtp_layers, layout.mtp_standalone)
    return (flag(MEGATRON_LAYOUT["blocks"].key, text),)


def _only_edge_stages_differ(blocks: tuple[int, ...]) -> bool:
    """Whether all stages between the first and the last hold the same, and none is empty."""
    return len(blocks) > 2 and len(set(blocks[1:-1])) == 1 and min(blocks) > 0


def layout_text(blocks: tuple[int, ...], mtp_layers: int, mtp_standalone: bool = False) -> str:
    """`Et*19|(t*20|)*2t*21L`: E embedding, t a layer, m multi-token prediction, L head and loss.

    `mtp_standalone`: m in the block before the last, as in `Et*30|t*31m|L`. One entry a block in
    pipeline order: block b is chunk b // pp of stage b mod pp. Repeats in brackets are unrolled
    before those of a letter (`PipelineParallelLayerLayout`).
    """
    texts = [("t" * count if count < 3 else f"t*{count}") for count in blocks]
    texts[0] = "E" + texts[0]
    texts[-2 if mtp_standalone else -1] += "m" * mtp_layers
    texts[-1] += "L"
    parts: list[str] = []
    for text, run in groupby(texts[:-1]):
        count = len(list(run))
        parts.append(f"{text}|" if count == 1 else f"({text}|)*{count}")
    return "".join(parts) + texts[-1]
