"""The many ways in which tables spell one setting, and what each means here.

Every function returns None for a text that it does not know: the caller then takes a stated default
or refuses the row, and never guesses in silence.
"""

from __future__ import annotations

import re

_YES = frozenset({"y", "yes", "true", "on", "1", "enabled"})
_NO = frozenset({"n", "no", "false", "off", "0", "disabled", "-", "none"})

# First match wins: a pattern in the precision cell, and the arithmetic of linear layers.
_PRECISIONS = (
    (r"nv_?fp4", "nvfp4"),
    (r"mxfp8", "mxfp8"),
    (r"fp8|float8|e4m3|e5m2", "fp8"),
    (r"tf32", "tf32"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|\bhalf\b|\bamp\b|\bo[12]\b", "fp16"),
    (r"fp32|float32|\bfull\b|\b32\b", "fp32"),
)

# First match wins: a pattern in the sharding cell, and the ZeRO stage. PyTorch's names are those of
# torch.distributed.fsdp.ShardingStrategy; HSDP shards everything inside its groups.
_ZERO = (
    (r"no_?shard|^ddp", 0),
    (r"no reshard|shard_grad_op|hybrid_shard_zero2|zero[- _]?2|optim_grads$", 2),
    (r"zero[- _]?1|dist(ributed)?[- _]?opt|overlapped-dist", 1),
    (r"zero[- _]?3|fsdp|hsdp|full_?shard|hybrid_?shard|optim_grads_params", 3),
    (r"zero[- _]?0", 0),
)
_STAGE = re.compile(r"^(?:zero|stage)?[- _=]*([0-3])$")


def yes_or_no(text: str | None) -> bool | None:
    """`y`, `True`, `on`, `1` and their opposites; None for anything else."""
    word = (text or "").strip().lower()
    if word in _YES:
        return True
    return False if word in _NO else None


def precision_named(text: str) -> str | None:
    """Arithmetic that a precision cell names: `amp_bf16`, `bfloat16` and `bf16-mixed` are bf16."""
    lower = text.lower()
    return next((name for pattern, name in _PRECISIONS if re.search(pattern, lower)), None)


def zero_stage_named(text: str) -> int | None:
    """ZeRO stage that a sharding cell names: `3`, `ZeRO-3`, `FULL_SHARD` and `HSDP` are stage 3."""
    lower = text.strip().lower()
    if stage := _STAGE.match(lower):
        return int(stage[1])
    if lower.startswith("none") or yes_or_no(lower) is False:
        return 0
    return next((stage for pattern, stage in _ZERO if re.search(pattern, lower)), None)


def recompute_named(text: str) -> str:
    """A recompute cell with a bare yes or no, and checkpointing of whole blocks by other names,
    in this project's words (`full`, `none`); other texts as they are."""
    lower = text.strip().lower()
    said = yes_or_no(lower)
    if said is not None:
        return "full" if said else "none"
    whole = r"^(uniform|block|(gradient|activation)[- _]checkpoint(ing)?|checkpoint(ing)?|ac)\b"
    return "full" if re.search(whole, lower) else lower
