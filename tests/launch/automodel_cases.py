"""Plans for AutoModel's writer: one thing each, cheap to cost."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

LLAMA = "llama-3.1-8b"
_NODE = {"zero": 3, "mbs": 2}
_LORA: dict[str, object] = {"train": "lora"}
_KERNELS = {"use": ("liger-kernels", "memory-efficient-lora")}
_LENGTHS = {"lengths": "mean=450", "seq": 4096}
_PIPE = {"pp": 4, "zero": 2, "grad_acc": 8}
MATRIX: tuple[Case, ...] = (
    case("full", LLAMA, "8xH100", **_NODE, recompute="full"),
    case("full-hsdp", LLAMA, "16xH100", zero=3, shard=8, recompute="full"),
    case("full-gathered", "qwen3-1.7b", "8xH100", zero=2, mbs=1),
    case("full-offload", LLAMA, "8xH100", **_NODE, recompute="full",
         more={"optimizer_offload": 1.0}),
    case("full-foreach", "llama-3.2-1b", "8xH100", **_NODE,
         more={"optimizer_kernel": "foreach"}),
    case("full-context", LLAMA, "16xH100", zero=3, cp=4, recompute="full", more={"seq": 32768}),
    case("lora", LLAMA, "8xH100", **_NODE, more=_LORA | _KERNELS),
    case("full-liger", LLAMA, "8xH100", **_NODE, more={"use": ("liger-kernels",)}),
    case("lora-attention", LLAMA, "8xH100", **_NODE, recompute="full",
         more={"train": "lora:rank=8,targets=q+v,dropout=0.05"}),
    case("lora-tensor", "llama-3-70b", "8xH100", tp=2, zero=3, mbs=2, recompute="full", more=_LORA),
    case("lora-pipeline", "llama-3-70b", "16xH100", tp=2, **_PIPE, recompute="full", more=_LORA),
    case("lora-interleaved", "qwen2.5-32b", "8xH100", **_PIPE, vpp=8, recompute="full",
         more=_LORA),
    case("lora-uneven", "llama-3-70b", "16xH100", tp=2, **_PIPE, recompute="full",
         blocks=(19, 21, 21, 19), more=_LORA),
    case("lora-ddp", LLAMA, "8xH100", zero=0, mbs=1, more=_LORA),
    case("lora-one-gpu", LLAMA, "1xH100", zero=0, mbs=2, recompute="full", more=_LORA),
    case("lora-experts", "qwen3-30b-a3b", "8xH100", zero=3, recompute="full",
         more={"train": "lora:targets=attention"}),
    case("dora", LLAMA, "8xH100", **_NODE, recompute="full", more={"train": "dora:rank=32"}),
    case("qlora", LLAMA, "8xH100", **_NODE, recompute="full", more={"train": "qlora"}),
    case("qlora-nf4", LLAMA, "1xRTX4090", zero=0, mbs=1, recompute="full",
         more={"train": "qlora:base=nf4"}),
    case("qlora-int8", LLAMA, "1xH100", zero=0, mbs=1, recompute="full",
         more={"train": "qlora:base=int8"}),
    case("plain", LLAMA, "8xH100", **_NODE, recompute="full",
         more=_LORA | {"without": ("parallel-loss",)}),
    case("packs", LLAMA, "8xH100", **_NODE, recompute="full",
         more=_LORA | _LENGTHS | {"packing": "pack-varlen"}),
    case("longest", LLAMA, "8xH100", zero=3, mbs=4, recompute="full",
         more=_LENGTHS | {"packing": "longest"}),
    case("limit", LLAMA, "8xH100", tp=2, zero=3, mbs=2, recompute="full",
         more=_LORA | _LENGTHS | {"packing": "limit"}),
)  # fmt: skip
