"""What torchtitan's configuration can say: keys of each version and new names of old ones, the
schedules it can name, how it splits layers over pipeline stages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from planner.job.unmodelled import refuse_unmodelled
from planner.launch.read.document import Document, unknown_key
from planner.launch.read.found import Problem, is_slip, nearest
from planner.launch.read.names import known_names

KEYS = known_names("torchtitan")
NEWER_KEYS = known_names("torchtitan-newer")
# Keys of earlier releases -> those of 0.2; whole tables, where the names in them stayed.
_RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "validation.enabled": "validation.enable",
    "memory_estimation.enabled": "memory_estimation.enable",
    "model.tokenizer_path": "model.hf_assets_path",
    "float8": "quantize.linear.float8",
}
# Tables that held the degrees before there was one of them.
_HELD_DEGREES = ("training", "experimental")
_MOST_NAMED = 6


def is_known(key: str) -> bool:
    """Whether torchtitan 0.2.2 has the key, or the table that it belongs to."""
    return key in KEYS or any(key.startswith(f"{known}.") for known in KEYS)


def is_known_in_0_3(key: str) -> bool:
    """Whether 0.3 has it."""
    return key in NEWER_KEYS or is_known(key)


def _is_table(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in KEYS)


def unknown_keys(document: Document) -> Iterator[Problem]:
    """Keys that torchtitan 0.2.2 does not have, which its loader refuses.

    Misspelt ones are errors. Others are another release's or a fork's: those that were only renamed
    are read under their new names.
    """
    others = []
    for key, setting in [*document.settings.items()]:
        if is_known(key) or (setting.value == {} and _is_table(key)):
            continue
        new = _new_name(key)
        close = new or nearest(key, KEYS, 0.7)
        if document.has(new) if new else _is_misspelt(key, close):
            says = "torchtitan 0.2 has no such field and refuses it"
            yield unknown_key(document, key, says, close)
            continue
        others.append(key)
        if new:
            document.override(setting, new)
        elif key == "float8.enable_float8_linear" and setting.value:
            document.override(replace(setting, value=["float8"]), "model.converters")
        elif setting.value and isinstance(setting.value, int | float):
            # What a fork switches on that trains otherwise.
            asked = re.sub(r"\.enabled?$", "", key).rpartition(".")[2]
            refuse_unmodelled(asked, f"{document.path}: {key}")
    if others:
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        text = (
            "read as of another release of torchtitan, or of a fork; 0.2.2 refuses "
            f"{', '.join(others[:_MOST_NAMED])}{more}"
        )
        yield document.problem("dialect", text, others[0], severity="warning")


def _is_misspelt(key: str, close: str) -> bool:
    """Whether a key, and the name in its table, are so near to another's that it is a slip."""
    names = (key.rpartition(".")[2], close.rpartition(".")[2])
    return is_slip(close, key) and is_slip(*reversed(names))


def _new_name(key: str) -> str | None:
    """What 0.2 calls a key of earlier releases; None if it has none, or is not that old."""
    table, _, name = key.partition(".")
    moved = f"{_RENAMED[table]}.{name}" if table in _RENAMED else _RENAMED.get(key)
    if moved is None and table in _HELD_DEGREES:
        moved = f"parallelism.{name}"
    return moved if moved in KEYS else None


# torch.distributed.pipelining.schedules.get_schedule_class (torch 2.10), case ignored -> the
# planner's name; None: without a prediction. The second says how many stages a rank holds.
SCHEDULES: dict[str, tuple[str | None, int]] = {
    "1F1B": ("1f1b", 1),
    "GPipe": ("gpipe", 1),
    "Interleaved1F1B": ("interleaved", 2),
    "InterleavedZeroBubble": ("zb-h1", 2),
    "ZBVZeroBubble": ("zb-v", 2),
    "DualPipeV": ("dualpipev", 2),
    "LoopedBFS": (None, 2),
    "PipelineScheduleSingle": (None, 1),
    "PipelineScheduleMulti": (None, 2),
}


def schedule_of(text: str) -> tuple[str, str | None, int] | None:
    """(name as torch spells it, the planner's, least stages a rank); None if unknown."""
    for name, (item, stages) in SCHEDULES.items():
        if name.lower() == text.lower():
            return name, item, stages
    return None


def stage_count(
    layers: int, pp: int, per_stage: int | None, single: bool, less_layers: tuple[int, int]
) -> tuple[int, Problem | None]:
    """Stages a rank, and what torchtitan refuses.

    `less_layers`: layers that the embedding and the head count for. Source: torchtitan 0.2.2 and
    0.3, distributed/pipeline_parallel.py, pipeline_llm.
    """
    if per_stage is None:
        return (1 if single else 2), None
    stages = -(-(layers + sum(less_layers)) // max(1, per_stage))
    chunks, rest = divmod(stages, pp)
    counted = (
        f"{layers} layers and {sum(less_layers)} for the ends, {per_stage} a stage: {stages} stages"
    )
    if rest:
        return max(1, chunks), Problem(
            "layers-per-stage", f"{counted}, not a multiple of pipeline_parallel_degree {pp}"
        )
    if single and chunks != 1:
        return chunks, Problem(
            "layers-per-stage",
            f"{counted}, {chunks} a rank: this schedule takes one",
            fix=f"pipeline_parallel_layers_per_stage = {-(-(layers + sum(less_layers)) // pp)}",
        )
    if not single and chunks < 2:
        return chunks, Problem(
            "layers-per-stage", f"{counted}, {chunks} a rank: this schedule takes two or more"
        )
    return chunks, None


def stage_layers(layers: int, stages: int, less_layers: tuple[int, int]) -> tuple[int, ...] | None:
    """Layers of each stage in order; None where torchtitan refuses.

    The embedding counts as `ends[0]` layers of the first stage, norm and head as `ends[1]` of the
    last; what does not divide goes to the first stages. Source: torchtitan 0.2.2 and 0.3,
    generate_llm_fqn_per_model_part.
    """
    if stages == 1:
        return (layers,)
    each, extra = divmod(layers + sum(less_layers), stages)
    if each == 0 or max(less_layers) > each:
        return None
    counts = [each + (at < extra) for at in range(stages)]
    counts[0] -= less_layers[0]
    counts[-1] -= less_layers[1]
    return tuple(counts)


def named_parts(parts: object) -> tuple[int, ...] | None:
    """Layers of each part of `module_fqns_per_model_part`; None if it is no such list."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return None
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
