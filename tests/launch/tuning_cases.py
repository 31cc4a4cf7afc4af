"""Plans that train a part of the weights, for the writers that can say so."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

WRITERS = ("deepspeed", "accelerate")
LLAMA = "llama-3.1-8b"
_NODE = {"zero": 3, "mbs": 2}
SHARDED: tuple[Case, ...] = (
    case("lora", LLAMA, "8xH100", **_NODE, more={"train": "lora"}),
    case("lora-attention", LLAMA, "8xH100", **_NODE, recompute="full",
         more={"train": "lora:rank=8,targets=q+v,dropout=0.05,whole=embeddings+head"}),
    case("qlora", LLAMA, "8xH100", **_NODE, more={"train": "qlora"}),
    case("qlora-nf4", LLAMA, "8xH100", **_NODE, more={"train": "qlora:base=nf4"}),
    case("dora", LLAMA, "8xH100", **_NODE, more={"train": "dora:rank=32"}),
    case("freeze", LLAMA, "8xH100", **_NODE,
         more={"train": "full", "freeze": ("embeddings", "layers:8")}),
    case("lora-frozen", LLAMA, "8xH100", **_NODE,
         more={"train": "lora", "freeze": ("layers:16", "o")}),
)  # fmt: skip

# Megatron-Bridge: adapters and samples under every axis.
_TP = {"tp": 2, "dp": 4, "zero": 1, "grad_acc": 4}
_PIPE = {"tp": 2, "pp": 2, "cp": 2, "dp": 2, "zero": 1, "grad_acc": 8}
_MOE = {"tp": 1, "ep": 8, "dp": 8, "zero": 1, "grad_acc": 4}
_LENGTHS = {"lengths": "mean=450", "seq": 4096}
BRIDGE: tuple[Case, ...] = (
    case("lora", LLAMA, "8xH100", **_TP, more={"train": "lora"}),
    case("lora-attention", LLAMA, "16xH100", **_PIPE, recompute="full",
         more={"train": "lora:rank=8,alpha=32,targets=attention,dropout=0.05"}),
    case("dora", LLAMA, "8xH100", **_TP, recompute="full", more={"train": "dora:rank=32"}),
    case("experts", "qwen3-30b-a3b", "8xH100", **_MOE, more={"train": "lora"}),
    case("latent", "deepseek-v2-lite", "8xH100", **_MOE,
         more={"train": "lora:rank=8,targets=attention"}),
    case("fp8", LLAMA, "8xH100", **_TP, more={"train": "lora", "precision": "fp8"}),
    case("packs", LLAMA, "16xH100", **_PIPE,
         more={"train": "lora", "packing": "pack-varlen"} | _LENGTHS),
    case("full-packs", LLAMA, "8xH100", **_TP, recompute="full",
         more={"packing": "pack-varlen"} | _LENGTHS),
    case("longest", LLAMA, "8xH100", tp=2, pp=2, dp=2, zero=1, mbs=4,
         more={"train": "lora", "packing": "longest"} | _LENGTHS),
    case("limit", LLAMA, "8xH100", **_TP, more={"train": "dora", "packing": "limit"} | _LENGTHS),
    case("rows", LLAMA, "8xH100", **_TP, more={"packing": "pack"} | _LENGTHS),
)  # fmt: skip

_ONE = {"zero": 0, "mbs": 2}
_STREAM = {"use": ("16-bit-stream",)}
_PARTS = ("vision_tower", "projector")
# Vision-language models, with what of them is frozen.
VISION: tuple[Case, ...] = (
    case("qlora", "qwen2.5-vl-7b", "1xRTX4090", zero=0, mbs=1, recompute="full",
         more={"train": "qlora", "freeze": _PARTS, "images": "1x1024x768"} | _STREAM),
    case("lora", "internvl3-1b", "1xH100", **_ONE, more={"train": "lora", "freeze": _PARTS}),
    case("whole", "qwen3-vl-4b", "1xH100", **_ONE, recompute="full",
         more={"train": "lora", "images": "2x640x480"}),
    case("padded", "llava-1.5-7b", "1xH100", **_ONE, recompute="full",
         more={"train": "lora", "freeze": _PARTS, "lengths": "mean=900", "packing": "longest"}),
    case("projector", "gemma-3-4b", "1xH100", **_ONE,
         more={"freeze": ("vision_tower", "language_model"), "images": "1x640x480"}),
    case("tokens", "qwen2-vl-2b", "1xH100", **_ONE, recompute="full",
         more={"freeze": _PARTS, "image_tokens": 600}),
)  # fmt: skip
# On one GPU, or several that hold all weights each.
WHOLE: tuple[Case, ...] = (
    case("full", "llama-3.2-1b", "1xH100", **_ONE, recompute="full"),
    case("amp", "llama-3.2-1b", "2xH100", **_ONE, recompute="full", more={"dtype": "amp"}),
    case("liger", "llama-3.2-1b", "1xH100", **_ONE, more={"use": ("liger-kernels",)}),
    case("freeze", "llama-3.2-1b", "1xH100", **_ONE, recompute="full",
         more={"freeze": ("embeddings", "head", "layers:12"), "dtype": "amp"}),
    case("lora", LLAMA, "1xH100", **_ONE, more={"train": "lora"}),
    case("lora-attention", LLAMA, "16xH100", **_ONE, recompute="full",
         more={"train": "lora:rank=8,targets=q+v,dropout=0.05,whole=embeddings+head"}),
    case("dora", LLAMA, "1xH100", **_ONE, recompute="full", more={"train": "dora:rank=32"}),
    case("qlora", LLAMA, "1xRTX4090", **_ONE, recompute="full", more={"train": "qlora"} | _STREAM),
    case("qlora-int8", LLAMA, "1xH100", **_ONE, recompute="full",
         more={"train": "qlora:base=int8", "optimizer": "adamw-8bit"} | _STREAM),
)  # fmt: skip
