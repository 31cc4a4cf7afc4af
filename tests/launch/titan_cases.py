"""The matrix of plans that torchtitan's writers are tested on."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

LLAMA, SMALL, QWEN_MOE = "llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b"

DENSE = (
    case("fsdp", LLAMA, "8xH100", zero=3, recompute="selective"),
    case("zero2", LLAMA, "8xH100", zero=2, recompute="full"),
    case("hsdp", LLAMA, "16xH100", zero=3, shard=8),
    case("hsdp-cp", LLAMA, "16xH100", zero=3, shard=8, cp=2, recompute="full"),
    case("tp", LLAMA, "16xH100", zero=3, tp=4, mbs=2),
    case("cp", LLAMA, "16xH100", zero=3, cp=4, recompute="full"),
    case("pp", LLAMA, "16xH100", zero=3, pp=4, grad_acc=8),
    case("pp-uneven", LLAMA, "16xH100", zero=2, pp=4, grad_acc=8, blocks=(9, 8, 8, 7)),
    case("interleaved", LLAMA, "16xH100", zero=3, pp=4, vpp=2, grad_acc=8, tp=2),
    case("gpipe", LLAMA, "8xH100", zero=2, pp=2, grad_acc=4, more={"schedule": "gpipe"}),
    case("four-dimensions", LLAMA, "64xH100", zero=3, tp=2, pp=2, cp=2, grad_acc=4),
    case("budget", LLAMA, "8xH100", zero=3, recompute="budget=0.5"),
    case("fp8", LLAMA, "8xH100", zero=3, recompute="full", more={"precision": "fp8"}),
    case("mxfp8", LLAMA, "8xB200", zero=3, recompute="full", more={"precision": "mxfp8"}),
    case("bf16-states", LLAMA, "8xH100", zero=3, more={"optimizer": "adamw-bf16"}),
    case("foreach", LLAMA, "8xH100", zero=3, more={"optimizer_kernel": "foreach"}),
    case("offload", LLAMA, "8xH100", zero=3, more={"optimizer_offload": 1.0}),
    case("unregistered", "llama-2-7b", "8xH100", zero=3, recompute="full"),
    case("tied", "smollm2-1.7b", "8xH100", zero=3),
    case("qkv-bias", "qwen2.5-7b", "8xH100", zero=3, tp=4),
    case("qk-norm", SMALL, "8xH100", zero=3, tp=2),
    case("replicated", "qwen3-0.6b", "8xH100", zero=0),
)
EXPERTS = (
    case("ep", QWEN_MOE, "32xH100", zero=3, ep=8, recompute="full"),
    case("ep-tp", QWEN_MOE, "32xH100", zero=3, ep=8, tp=4, recompute="full"),
    case("ep-pp", QWEN_MOE, "32xH100", zero=3, ep=4, pp=2, grad_acc=4, recompute="selective"),
    case("ep-fp8", QWEN_MOE, "32xH100", zero=3, ep=8, recompute="full",
         more={"precision": "fp8"}),
    case("mixtral", "mixtral-8x7b", "32xH100", zero=3, ep=8, recompute="full"),
    case("mla", "deepseek-v2-lite", "16xH100", zero=3, ep=8, recompute="full"),
    case("mla-pp", "deepseek-v2-lite", "16xH100", zero=3, ep=4, pp=2, grad_acc=4,
         blocks=(14, 13)),
    case("mla-unregistered", "moonlight-16b-a3b", "16xH100", zero=3, ep=8, recompute="full"),
)  # fmt: skip
MATRIX: tuple[Case, ...] = (*DENSE, *EXPERTS)
SINKS = case("sinks", "gpt-oss-20b", "16xH100", zero=3, ep=8, recompute="full")
