"""The matrix of plans that accelerate's writer is tested on."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

LLAMA = "llama-3.1-8b"
BASE = case("zero3", LLAMA, "8xH100", zero=3)
MATRIX: tuple[Case, ...] = (
    BASE,
    case("zero2", LLAMA, "8xH100", zero=2, mbs=2, recompute="full"),
    case("hsdp", LLAMA, "16xH100", zero=3, shard=8, grad_acc=4, recompute="full"),
    case("offload", LLAMA, "8xH100", zero=3, more={"optimizer_offload": 1.0}),
    case("foreach", LLAMA, "8xH100", zero=3, more={"optimizer_kernel": "foreach"}),
    case("8bit", LLAMA, "8xH100", zero=3, more={"optimizer": "adamw-8bit"}),
    case("4bit", LLAMA, "8xH100", zero=3, more={"optimizer": "adamw-4bit"}),
    case("sgd", LLAMA, "8xH100", zero=3, more={"optimizer": "sgd"}),
    case("eager", LLAMA, "8xH100", zero=3, more={"attention": "eager"}),
    case("liger", LLAMA, "8xH100", zero=3, more={"use": ("liger-kernels",)}),
    case("qwen3", "qwen3-8b", "8xH100", zero=3, recompute="full"),
    case("mixtral", "mixtral-8x7b", "32xH100", zero=3, recompute="full"),
    case("mla", "deepseek-v2-lite", "16xH100", zero=3, recompute="full"),
    case("gpt2", "gpt2-xl", "8xH100", zero=2, recompute="full", more={"seq": 1024}),
    case("gemma", "gemma-2-9b", "8xH100", zero=3, recompute="full"),
)
