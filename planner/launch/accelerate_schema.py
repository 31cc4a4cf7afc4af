"""What accelerate's own parser lets through: unknown keys inside fsdp_config, settings at odds.

Keys read by accelerate 1.15 (utils/launch.py, utils/dataclasses.py, commands/launch.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

# fmt: off
FSDP_KEYS = (
    "fsdp_version", "fsdp_reshard_after_forward", "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "fsdp_state_dict_type",
    "fsdp_offload_params", "fsdp_cpu_ram_efficient_loading", "fsdp_activation_checkpointing",
    "fsdp_activation_checkpointing_offload", "fsdp_ignored_modules",
    # FSDP1 only:
    "fsdp_sharding_strategy", "fsdp_backward_prefetch", "fsdp_forward_prefetch",
    "fsdp_use_orig_params", "fsdp_sync_module_states",
)
_FSDP1_ONLY = FSDP_KEYS[-5:]
PARALLELISM_KEYS = tuple(
    f"parallelism_config_{name}" for name in (
        "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend",
        "cp_comm_strategy", "sp_size", "sp_backend", "sp_seq_length",
        "sp_seq_length_is_variable", "sp_attn_implementation",
    )
)
# fmt: on
_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")


def accelerate_problems(config: Mapping[str, object]) -> tuple[str, ...]:
    """What is wrong with a file although accelerate loads it; empty if nothing."""
    fsdp = _table(config, "fsdp_config")
    mesh = _table(config, "parallelism_config")
    return (
        *_unknown(fsdp, "fsdp_config", FSDP_KEYS),
        *_unknown(mesh, "parallelism_config", PARALLELISM_KEYS),
        *_fsdp(config, fsdp),
        *_sizes(config, mesh),
    )


def _table(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _unknown(table: Mapping[str, object], name: str, known: tuple[str, ...]) -> Iterator[str]:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            yield f"unknown key {key!r} in {name}, which accelerate ignores{meant}"


def _fsdp(config: Mapping[str, object], fsdp: Mapping[str, object]) -> Iterator[str]:
    if fsdp and config.get("distributed_type") != "FSDP":
        yield f"fsdp_config is not used with distributed_type {config.get('distributed_type')}"
    if fsdp.get("fsdp_version") != 2:
        return
    for key in _FSDP1_ONLY:
        if key in fsdp:
            yield f"{key} is of FSDP1 and does nothing in version 2"
    if not isinstance(fsdp.get("fsdp_reshard_after_forward", True), bool):
        yield "fsdp_reshard_after_forward is true or false in version 2"


def _sizes(config: Mapping[str, object], mesh: Mapping[str, object]) -> Iterator[str]:
    """The sizes multiply to the number of processes."""
    if not mesh:
        return
    product = 1
    for name in _SIZES:
        size = mesh.get(f"parallelism_config_{name}", 1)
        product *= size if isinstance(size, int) else 1
    processes = config.get("num_processes")
    if processes != product:
        yield f"the sizes of parallelism_config multiply to {product}, num_processes is {processes}"
