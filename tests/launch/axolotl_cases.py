"""Plans that axolotl runs: on one GPU, under DDP, FSDP2 and DeepSpeed."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

SMALL, LLAMA = "llama-3.2-1b", "llama-3.1-8b"
ONE, SHARDED = {"zero": 0, "mbs": 2}, {"zero": 3, "mbs": 2}
_STREAM = ("16-bit-stream",)

# Under the profile of transformers; FSDP2 keeps shards in the type of the weights.
MATRIX: tuple[Case, ...] = (
    case("full", SMALL, "1xH100", **ONE, recompute="full"),
    case("liger", SMALL, "1xH100", **ONE, more={"use": ("liger-kernels",)}),
    case("freeze", SMALL, "2xH100", **ONE, recompute="full",
         more={"freeze": ("embeddings", "layers:8", "o")}),
    case("lora-attention", LLAMA, "16xH100", **ONE, recompute="full",
         more={"train": "lora:rank=8,targets=q+v,dropout=0.05,whole=embeddings+head"}),
    case("lora-frozen", LLAMA, "1xH100", **ONE, recompute="full",
         more={"train": "lora", "freeze": ("layers:16", "o")}),
    case("lora-bf16", LLAMA, "1xH100", **ONE, recompute="full",
         more={"train": "lora:adapter=bf16", "use": ("fused-adapters",)}),
    case("dora", LLAMA, "1xH100", **ONE, recompute="full", more={"train": "dora:rank=32"}),
    case("qlora", LLAMA, "1xRTX4090", **ONE, recompute="full",
         more={"train": "qlora", "use": _STREAM}),
    case("qlora-nf4", LLAMA, "1xRTX4090", **ONE, recompute="full",
         more={"train": "qlora:base=nf4", "use": (*_STREAM, "fused-adapters")}),
    case("qlora-int8", LLAMA, "1xH100", **ONE, recompute="full",
         more={"train": "qlora:base=int8", "optimizer": "adamw-8bit", "use": _STREAM}),
    case("paged", LLAMA, "1xRTX4090", **ONE, recompute="full",
         more={"train": "qlora", "optimizer": "paged-adamw-8bit", "use": _STREAM}),
    case("experts", "qwen3-30b-a3b", "1xH200", **ONE, recompute="full",
         more={"train": "lora:targets=attention+experts"}),
    case("no-experts", "qwen3-30b-a3b", "1xH200", **ONE, recompute="full",
         more={"train": "lora:targets=all-linear"}),
    case("fp16", SMALL, "1xT4", zero=0, mbs=1, recompute="full",
         more={"train": "lora", "precision": "fp16", "seq": 1024}),
    case("fsdp", LLAMA, "8xH100", zero=2, mbs=1, recompute="full",
         more={"optimizer": "adamw-8bit"}),
    case("hsdp", LLAMA, "16xH100", zero=3, shard=8, mbs=1, recompute="full"),
    case("offload", LLAMA, "8xH100", **SHARDED, recompute="full",
         more={"optimizer_offload": 1.0}),
    case("fsdp-qlora", LLAMA, "8xH100", **SHARDED, recompute="full",
         more={"train": "qlora", "use": _STREAM}),
    case("reward", SMALL, "1xH100", **ONE, recompute="full", more={"objective": "reward"}),
)  # fmt: skip
# Preferences, whose pairs are padded.
PAIRS: tuple[Case, ...] = (
    case("dpo", LLAMA, "8xH100", zero=3, mbs=1, recompute="full", more={"objective": "dpo"}),
    case("ipo", LLAMA, "1xH100", **ONE, recompute="full",
         more={"objective": "ipo:reference=precomputed", "train": "lora"}),
    case("kto", LLAMA, "1xH100", **ONE, recompute="full",
         more={"objective": "kto", "train": "lora"}),
    case("orpo", SMALL, "1xH100", **ONE, recompute="full", more={"objective": "orpo"}),
    case("simpo", LLAMA, "8xH100", **SHARDED, recompute="full",
         more={"objective": "simpo", "train": "lora:adapter=bf16"}),
)  # fmt: skip
ENGINE: tuple[Case, ...] = (
    case("zero3", LLAMA, "8xH100", **SHARDED, recompute="full"),
    case("zero2-lora", LLAMA, "8xH100", zero=2, mbs=1, recompute="full", more={"train": "lora"}),
    case("offload", LLAMA, "8xH100", **SHARDED, recompute="full",
         more={"optimizer_offload": 1.0, "precision": "fp16"}),
)  # fmt: skip
_PARTS = ("vision_tower", "projector")
# Vision-language models: adapters on the language model, or all weights.
SEEN: tuple[Case, ...] = (
    case("qwen", "qwen2.5-vl-7b", "1xH100", **ONE, recompute="full",
         more={"train": "lora", "freeze": _PARTS, "images": "1x1024x768"}),
    case("gemma", "gemma-3-4b", "1xRTX4090", zero=0, mbs=1, recompute="full",
         more={"train": "qlora:targets=q+v", "freeze": _PARTS, "images": "1x896x896",
               "use": _STREAM}),
    case("whole", "qwen2-vl-2b", "8xH100", **SHARDED, more={"images": "1x640x480"}),
)  # fmt: skip
