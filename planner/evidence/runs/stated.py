"""Blocks, optimizer and host of a measured row, and checks for impossible rows.

A row that contradicts its GPUs, its batch or its model is refused with the reason, because its
prediction would show an absurd rate.
"""

from __future__ import annotations

import re

from hardware.errors import HardwareError
from planner.evidence.runs.lengths import states_lengths
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow, named, words_of
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.job import Job
from planner.predict.cost_tables import gpu_inputs
from planner.predict.plan import Degrees

# Fewest chunks of a stage under the interleaved schedule.
_FEWEST_CHUNKS = 2
# Profile whose recipes interleave every pipeline, and its layers per chunk.
_INTERLEAVING, _LAYERS_A_CHUNK = "megatron-bridge", 2


def unstated_chunks(row: MeasuredRow, profile: FrameworkProfile, pp: int) -> int:
    """The number of chunks per stage for a row that does not state it. If the row lists the layers
    of its blocks: the number of blocks per stage. Otherwise one, except in two cases, and only if
    the layers divide evenly among the stages.

    If the row says that it interleaves, or that p2p overlaps, which Megatron-LM does only under the
    interleaved schedule: the fewest chunks, more than one, that divide the stage's layers. In
    NeMo's tables every dense pipeline that gives chunks interleaves (144 of 144 rows), with one to
    four layers a chunk: two layers per chunk.
    """
    if (listed := _listed_blocks(row)) is not None:
        return max(1, len(listed) // pp)
    each, spare = divmod(row.integer("layers") or 0, max(1, pp))
    if spare or pp == 1:
        return 1
    if row.says("schedule", "interleaved") or "pp" in row.fact("overlap").split():
        return next((index for index in range(_FEWEST_CHUNKS, each + 1) if each % index == 0), 1)
    if profile.name == _INTERLEAVING and not row.text("moe"):
        chunks = each // _LAYERS_A_CHUNK
        return chunks if chunks and each % chunks == 0 else 1
    return 1


def block_layers(row: MeasuredRow, degrees: Degrees, layers: int) -> tuple[int, ...] | None:
    """The layers of each block; None if an even split is possible. UnpredictableRowError for a list
    that does not fit the row's stages, chunks or layers."""
    blocks = _listed_blocks(row)
    if blocks is None:
        return _beside_prediction(row, degrees, layers)
    if sum(blocks) != layers:
        raise UnpredictableRowError(f"layers_per_stage adds up to {sum(blocks)} of {layers} layers")
    if len(blocks) != degrees.pp * degrees.vpp:
        raise UnpredictableRowError(
            f"layers_per_stage lists {len(blocks)} blocks, but pp·vpp = {degrees.pp}·{degrees.vpp} "
            f"= {degrees.pp * degrees.vpp}; list one for each stage and chunk, or leave vpp out"
        )
    return blocks


def _listed_blocks(row: MeasuredRow) -> tuple[int, ...] | None:
    """Parse the list of layers: `6/5x2/0` = 6, 5, 5, 0; None if the row has no list."""
    text = row.text("layers_per_stage")
    if text is None:
        return None
    blocks: list[int] = []
    for part in text.split("/"):
        read = re.fullmatch(r"\s*(\d{1,4})(?:x(\d{1,4}))?\s*", part)
        if read is None:
            raise UnpredictableRowError(f"layers_per_stage {text!r} is not written as 6/5x2/0")
        blocks += [int(read[1])] * int(read[2] or 1)
    return tuple(blocks)


def _beside_prediction(row: MeasuredRow, degrees: Degrees, layers: int) -> tuple[int, ...] | None:
    """Layers of each block if multi-token prediction, which is in the last block, makes them
    uneven: as even as possible, counting it as a layer. None if an even split is possible."""
    blocks, predicted = degrees.pp * degrees.vpp, row.integer("mtp_layers") or 0
    if not predicted or layers % blocks == 0:
        return None
    each, spare = divmod(layers + predicted, blocks)
    counts = [each + (index < spare) for index in range(blocks)]
    return (*counts[:-1], max(0, counts[-1] - predicted))


def memory_gap(row: MeasuredRow, *, fetches: bool = False) -> str | None:
    """The reason why the row's memory cannot be predicted; None if it can. `fetches`: its framework
    is known to fetch weights from the host."""
    if row.says("offload", r"^parameters") and not fetches:
        return "parameters on the host are not modelled for its framework"
    if row.says("offload", r"layer"):
        return "single layers on the host, one after the other, are not modelled"
    if row.says("recompute", r"\bbut\b"):
        return "what full recomputation keeps by a policy is not modelled"
    return None


def time_gap(row: MeasuredRow) -> str | None:
    """The reason why the row's step time cannot be predicted (its samples are padded to an unstated
    length); None if it can. Its memory can still be: the longest samples fill the sequence length.
    """
    return None if states_lengths(row) else named("sequences", row.fact("sequences"))


def optimizer_share(row: MeasuredRow) -> float:
    """Share of the optimizer's states and update on the host."""
    stated = re.search(r"\boptimizer(?: (\d+) ?%)?", row.fact("offload"))
    return 0.0 if stated is None else float(stated[1] or 100.0) / 100.0


def offloaded_modules(row: MeasuredRow) -> tuple[str, ...]:
    """Modules whose activations are on the host, by their names in
    `planner.predict.ops.offload`."""
    offloaded = row.fact("offload")
    if offloaded.endswith("checkpoints") or row.says("grad_ckpt", "offload"):
        return ("checkpoints",) if row.says("recompute", "^full") else ()
    return tuple(offloaded.removeprefix("activations:").split()) if ":" in offloaded else ()


def states_dropout(row: MeasuredRow) -> bool | None:
    """Whether dropout is on; None if the row does not say."""
    if row.fact("dropout") == "none":
        return False
    hidden = re.search(r"hidden ([\d.]+)", row.fact("dropout"))
    return None if hidden is None else float(hidden[1]) > 0.0


# Words in `state_precision`, and the keys of an optimizer's spelling for them.
_STATE_KEYS = {
    "main_grads": "grad", "main_params": "master", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq",
}  # fmt: skip


# Makers of an Adam, which may precede its name.
_MAKERS = "distributed|fused|torch|apex|deepspeed|megatron|bnb|bitsandbytes"


def optimizer_name(row: MeasuredRow) -> str:
    """The optimizer, AdamW unless stated, with the stated types of its parts."""
    text = re.sub(rf"^({_MAKERS})[ -]+(?=\w*adam)", "", row.fact("optimizer"))
    stated = re.match(r"(paged )?([\w-]+)", text)
    name = "adamw" if stated is None else f"{(stated[1] or '').strip()}-{stated[2]}".strip("-")
    types = _stated_types(row) if name == "adamw" else ""
    return f"{name}:{types}" if types else name


def _stated_types(row: MeasuredRow) -> str:
    """`grad=bf16,exp_avg=bf16` from `main_grads bf16 exp_avg bf16`. If one moment is named, both
    have its type; `below fp32` means 16 bits."""
    fact = row.fact("state_precision")
    if "moments below fp32" in fact:
        return "exp_avg=bf16,exp_avg_sq=bf16"
    types = {
        _STATE_KEYS[part]: dtype
        for part, dtype in re.findall(r"([a-z_]+) ((?:bf|fp)\d+)", fact)
        if part in _STATE_KEYS and dtype != "fp32"
    }
    if "exp_avg" in types:
        types.setdefault("exp_avg_sq", types["exp_avg"])
    return ",".join(f"{key}={dtype}" for key, dtype in types.items())


def demand_counts(row: MeasuredRow) -> None:
    """Raise UnpredictableRowError for a count that is too small or too large."""
    for column, least in words_of("least").items():
        if (value := row.integer(column)) is not None and value < least:
            raise UnpredictableRowError(f"{column} is {value}, but must be {least} or more")
    for column, most in words_of("most").items():
        if (value := row.integer(column)) is not None and value > most:
            raise UnpredictableRowError(f"{column} is {value:,}, but must be {most:,} or less")


def demand_possible(row: MeasuredRow, job: Job, degrees: Degrees) -> None:
    """Raise UnpredictableRowError if the row is impossible with its GPUs, batch, heads, experts or
    kernels."""
    gpus = row.integer("num_gpus") or 1
    group = degrees.tp * degrees.pp * degrees.cp
    if gpus % group:
        raise UnpredictableRowError(f"tp·pp·cp = {group} does not divide {gpus} GPUs")
    gbs = row.integer("gbs")
    if gbs is not None and gbs < degrees.dp:
        raise UnpredictableRowError(
            f"gbs {gbs} is less than one sequence for each of dp {degrees.dp}"
        )
    if job.model.heads % degrees.tp:
        raise UnpredictableRowError(f"tp {degrees.tp} does not divide {job.model.heads} heads")
    # Embedding and loss may have their own stages.
    blocks, most = degrees.pp * degrees.vpp, job.model.layers + 2
    if blocks > most and row.text("layers_per_stage") is None:
        named = f"pp·vpp = {blocks}" if degrees.vpp > 1 else f"pp {degrees.pp}"
        raise UnpredictableRowError(f"{named} is too many for {job.model.layers} layers")
    experts = job.model.moe.experts if job.model.moe else None
    if experts is not None and experts % degrees.ep:
        raise UnpredictableRowError(f"ep {degrees.ep} does not divide {experts} experts")
    try:
        gpu_inputs(job.cluster.gpu, job.precision, job.fused_attention)
    except HardwareError as error:
        raise UnpredictableRowError(str(error)) from None
