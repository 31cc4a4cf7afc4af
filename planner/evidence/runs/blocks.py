"""Chunks of a stage and layers of each block, as a measured row gives them."""

from __future__ import annotations

import re

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow
from planner.job.frameworks import FrameworkProfile

# Of a stage under the interleaved schedule.
_FEWEST_CHUNKS = 2
# Profile whose recipes interleave wherever they have pipelines, and layers of a chunk there.
_INTERLEAVING, _LAYERS_A_CHUNK = "megatron-bridge", 2


def unstated_chunks(row: MeasuredRow, profile: FrameworkProfile, pp: int) -> int:
    """Chunks of a stage where a row does not give them; they divide its layers, or there is one.

    Where it says that it interleaves, or that p2p overlaps, which Megatron-LM does under the
    interleaved schedule alone: the fewest. In NeMo's tables every dense pipeline that gives them
    interleaves (144 of 144 rows), with one to four layers a chunk: two layers.
    """
    each, spare = divmod(row.integer("layers") or 0, max(1, pp))
    if spare or pp == 1:
        return 1
    if row.says("schedule", "interleaved") or "pp" in row.fact("overlap").split():
        return next((index for index in range(_FEWEST_CHUNKS, each + 1) if each % index == 0), 1)
    if profile.name == _INTERLEAVING and not row.text("moe"):
        chunks = each // _LAYERS_A_CHUNK
        return chunks if chunks and each % chunks == 0 else 1
    return 1


def block_layers(row: MeasuredRow) -> tuple[int, ...] | None:
    """`6/5x2/0` = 6, 5, 5, 0; None where an even split is not ruled out."""
    text = row.text("layers_per_stage")
    if text is None:
        return _beside_prediction(row)
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


def _beside_prediction(row: MeasuredRow) -> tuple[int, ...] | None:
    """Layers that do not divide evenly beside multi-token prediction, which the last block holds:
    as even as it gets with that counted as a layer."""
    blocks = (row.integer("pp") or 1) * (row.integer("vpp") or 1)
    layers, predicted = row.integer("layers") or 0, row.integer("mtp_layers") or 0
    if not predicted or layers % blocks == 0:
        return None
    each, spare = divmod(layers + predicted, blocks)
    counts = [each + (index < spare) for index in range(blocks)]
    return (*counts[:-1], max(0, counts[-1] - predicted))
