"""Chunks of a stage and layers of each block, as a measured row or its source gives them."""

from __future__ import annotations

import re

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow
from planner.job.frameworks import FrameworkProfile

_ENDS = ("first", "last")
# Ends of the model that Megatron may count as a layer when it splits layers over stages.
_COUNTED = ("embedding", "loss")

# Of a stage under the interleaved schedule.
_FEWEST_CHUNKS = 2
# Profile whose recipes interleave wherever they have pipelines, and layers of a chunk there.
_INTERLEAVING, _LAYERS_A_CHUNK = "megatron-bridge", 2
_FEWEST_STAGES = 3
# "In particular, we use the interleaved pipeline schedule": Narayanan et al. 2021, section 5.1.
_INTERLEAVED = r"Table 1 of arXiv 2104\.04473"
# "We reduce one Transformer layer each from the first and the last stages": the first chunk holds
# the embedding alone, the last the head and the loss (Llama 3, arXiv 2407.21783, section 3.3.2). So
# every other chunk holds one layer.
_LLAMA_3 = r"\b2407\.21783\b"


def unstated_chunks(row: MeasuredRow, profile: FrameworkProfile, pp: int) -> int:
    """Chunks of a stage where a row does not give them; they divide its layers, or there is one.

    Where it says that p2p overlaps, which Megatron-LM does under the interleaved schedule alone:
    two, the fewest. In NeMo's tables every dense pipeline that gives them interleaves (144 of 144
    rows), with one to four layers a chunk: two layers. Where its source says that it interleaves:
    the fewest, on at least three stages, as Megatron-LM of 2021 asks (arguments.py). Llama 3's
    layout gives its own.
    """
    if chunks := _chunks_of_llama_3(row, pp):
        return chunks
    each, spare = divmod(row.integer("layers") or 0, max(1, pp))
    if spare or pp == 1:
        return 1
    if re.search(r"\bPP overlap on\b", row.text("notes") or ""):
        return _FEWEST_CHUNKS if each % _FEWEST_CHUNKS == 0 else 1
    if profile.name == _INTERLEAVING and not row.text("moe"):
        chunks = each // _LAYERS_A_CHUNK
        return chunks if chunks and each % chunks == 0 else 1
    known = re.search(_INTERLEAVED, row.text("source_ref") or "") is not None
    if not known or pp < _FEWEST_STAGES:
        return 1
    return next((own for own in range(_FEWEST_CHUNKS, each + 1) if each % own == 0), 1)


def _chunks_of_llama_3(row: MeasuredRow, pp: int) -> int:
    """Chunks of a stage of Llama 3's pipelines, whose tables do not give them; 0 for other rows."""
    own = pp > 1 and re.search(_LLAMA_3, row.text("source_ref") or "") is not None
    if not own or row.text("vpp") or row.text("layers_per_stage"):
        return 0
    chunks, spare = divmod((row.integer("layers") or 0) + len(_ENDS), pp)
    return chunks if spare == 0 else 0


def _llama_3_blocks(row: MeasuredRow) -> tuple[int, ...] | None:
    """One layer in each chunk but the first and the last."""
    if not _chunks_of_llama_3(row, row.integer("pp") or 1):
        return None
    return (0, *[1] * (row.integer("layers") or 0), 0)


def block_layers(row: MeasuredRow) -> tuple[int, ...] | None:
    """`6/5x2/0` = 6, 5, 5, 0, or Megatron's options for uneven ends, or Llama 3's layout.

    None where the split is not stated.
    """
    text = row.text("layers_per_stage")
    if text is None:
        return _megatron_blocks(row) or _llama_3_blocks(row)
    blocks: list[int] = []
    for part in text.split("/"):
        read = re.fullmatch(r"\s*(\d{1,4})(?:x(\d{1,4}))?\s*", part)
        if read is None:
            raise UnpredictableRowError(f"layers_per_stage {text!r} is not written as 6/5x2/0")
        blocks += [int(read[1])] * int(read[2] or 1)
    if sum(blocks) != row.integer("layers"):
        raise UnpredictableRowError(
            f"layers_per_stage adds up to {sum(blocks)} of {row.integer('layers')} layers"
        )
    return tuple(blocks)


def _megatron_blocks(row: MeasuredRow) -> tuple[int, ...] | None:
    """Layers of each block where the first and last pipeline stage hold a stated number, or
    embedding and loss count as a layer."""
    notes = row.text("notes") or ""
    layers, stages = row.integer("layers") or 0, row.integer("pp") or 1
    ends = [re.search(rf"decoder-{end}-pipeline-num-layers=(\d+)", notes) for end in _ENDS]
    if all(ends) and stages > len(_ENDS):
        first, last = (int(match[1]) for match in ends if match)
        inner, spare = divmod(layers - first - last, stages - len(_ENDS))
        return (first, *[inner] * (stages - len(_ENDS)), last) if spare == 0 else None
    counted = [f"account-for-{part}-in-pipeline-split=True" in notes for part in _COUNTED]
    blocks = stages * (row.integer("vpp") or 1)
    each, spare = divmod(layers + sum(counted), blocks)
    if not any(counted) or spare:
        return None
    inner_blocks = [each] * (blocks - len(_ENDS))
    return (each - counted[0], *inner_blocks, each - counted[1])
