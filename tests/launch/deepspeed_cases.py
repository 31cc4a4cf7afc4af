"""The matrix of plans that DeepSpeed's writer is tested on."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

LLAMA = "llama-3.1-8b"
BASE = case("zero3", LLAMA, "8xH100", zero=3)
MATRIX: tuple[Case, ...] = (
    BASE,
    case("zero2", LLAMA, "8xH100", zero=2, mbs=2, recompute="full"),
    case("zero1", LLAMA, "16xH100", zero=1, grad_acc=4, recompute="full"),
    case("zero0", "llama-3.2-1b", "8xH100", zero=0, recompute="full"),
    case("zero2-tp", LLAMA, "16xH100", zero=2, tp=4, recompute="full"),
    case("zero1-tp", LLAMA, "16xH100", zero=1, tp=2),
    case("fp16", LLAMA, "8xH100", zero=2, more={"precision": "fp16"}),
    case("offload", LLAMA, "8xH100", zero=2, more={"optimizer_offload": 1.0}),
    case("offload-part", LLAMA, "8xH100", zero=3, more={"optimizer_offload": 0.3}),
    case("weights", LLAMA, "8xH100", zero=3, more={"use": ("parameter-offload",)}),
    case(
        "nvme",
        LLAMA,
        "8xH100",
        zero=3,
        more={"optimizer_offload": 1.0, "use": ("parameter-nvme", "optimizer-nvme")},
    ),
    case("hpz", LLAMA, "16xH100", zero=3, more={"use": ("hpz",)}),
    case("paged", LLAMA, "8xH100", zero=3, more={"optimizer": "paged-adamw-8bit"}),
    case("foreach", LLAMA, "8xH100", zero=1, more={"optimizer_kernel": "foreach"}),
    case("8bit", LLAMA, "8xH100", zero=3, more={"optimizer": "adamw-8bit"}),
    case("lion", LLAMA, "8xH100", zero=2, more={"optimizer": "lion"}),
    case("sgd", LLAMA, "8xH100", zero=2, more={"optimizer": "sgd"}),
    case("eager", LLAMA, "8xH100", zero=3, more={"attention": "eager"}),
    case("liger", LLAMA, "8xH100", zero=3, more={"use": ("liger-kernels",)}),
    case("qwen3", "qwen3-8b", "8xH100", zero=3, recompute="full"),
    case("qwen2", "qwen2.5-7b", "8xH100", zero=3, recompute="full"),
    case("mixtral", "mixtral-8x7b", "32xH100", zero=3, recompute="full"),
    case("qwen3-moe", "qwen3-30b-a3b", "32xH100", zero=3, recompute="full"),
    case("mla", "deepseek-v2-lite", "16xH100", zero=3, recompute="full"),
    case("gpt2", "gpt2-xl", "8xH100", zero=2, recompute="full", more={"seq": 1024}),
    case("gemma", "gemma-2-9b", "8xH100", zero=3, recompute="full"),
)
