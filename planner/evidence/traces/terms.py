"""Which term of the cost model a GPU's kernel belongs to, by its name and what NCCL says of it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

# First match wins. Kernels of cuBLAS (nvjet, sm90_xmma, cutlass), hipBLASLt (Cijk), Triton;
# FlashAttention and cuDNN (flash, fmha, sdpa), Triton's (attn_fwd); multi-tensor optimizers.
_KERNELS = (
    ("communication", r"nccl|rccl|msccl|all_?reduce_?kernel|nvshmem|deep_?ep|symm_?mem"),
    ("copies", r"^mem(cpy|set)\b|copy_?engine"),
    ("attention", r"flash|fmha|attn|attention|sdpa"),
    ("optimizer", r"adam|lamb|sgd|muon|multi_tensor_apply|foreach"),
    (
        "matrix products",
        r"gemm|cutlass|nvjet|xmma|cublas|wgrad|dgrad|matmul|^cijk_|_mm_|\bmm\b|wgmma",
    ),
)
_COMPILED = tuple((term, re.compile(pattern, re.IGNORECASE)) for term, pattern in _KERNELS)
OTHER = "elementwise"
TERMS = ("matrix products", "attention", OTHER, "optimizer", "copies")

# First match wins: words of a process group's description (Megatron's names, torch's meshes).
_GROUPS = (
    ("dp", r"data_parallel|(^|_)dp(_|$)|fsdp|dp_shard|dp_replicate|ddp"),
    ("ep", r"expert_model|expert_tensor_and_model|(^|_)ep\b|mesh_ep"),
    ("cp", r"context|(^|_)cp\b|mesh_cp"),
    ("pp", r"pipeline|(^|_)pp\b|mesh_pp|embedding"),
    ("tp", r"tensor|(^|_)tp\b|mesh_tp"),
    ("dp", r"default_pg"),
)
_GROUP_PATTERNS = tuple((term, re.compile(pattern, re.IGNORECASE)) for term, pattern in _GROUPS)


@lru_cache(maxsize=10_000)
def kernel_term(name: str, category: str) -> str:
    """`communication`, `copies`, or one of `TERMS`."""
    if category in ("gpu_memcpy", "gpu_memset"):
        return "copies"
    return next((term for term, pattern in _COMPILED if pattern.search(name)), OTHER)


def collective_group(name: str, arguments: dict[str, Any]) -> str:
    """`tp`, `cp`, `ep`, `pp`, `dp` by the process group's description; else by the collective,
    which of an all-to-all says ep and of a send or receive pp. A kernel of sends and receives
    whose collective is not named may be of either."""
    described = str(arguments.get("Process Group Description", ""))
    for term, pattern in _GROUP_PATTERNS:
        if described and pattern.search(described):
            return term
    collective = str(arguments.get("Collective name", "")).lower()
    if re.search(r"all_?to_?all", f"{collective} {name.lower()}"):
        return "ep"
    return "pp" if re.search(r"send|recv", collective) else "unnamed group"
