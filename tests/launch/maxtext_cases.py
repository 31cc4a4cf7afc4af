"""The matrix of plans that MaxText's writer is tested on."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

LLAMA = "llama-3-8b"
LONG: dict[str, object] = {"seq": 32768}
BASE = case("base", LLAMA, "16xH100", zero=3, mbs=2, grad_acc=1, recompute="full")
MATRIX: tuple[Case, ...] = (
    BASE,
    case("accumulated", LLAMA, "8xH100", zero=3, grad_acc=4, recompute="minimal_with_context"),
    case("hsdp", LLAMA, "32xH100", zero=3, shard=8, mbs=2, grad_acc=1,
         recompute="save_dot_with_context_except_mlp"),
    case("tensor", LLAMA, "16xH100", zero=3, tp=4, recompute="full"),
    case("context", "llama-3.1-8b", "16xH100", zero=3, cp=4, grad_acc=1, recompute="full",
         more=LONG),
    case("ring", "llama-3.1-8b", "16xH100", zero=3, cp=4, grad_acc=1, recompute="full",
         more={**LONG, "cp_comm_type": "p2p"}),
    case("optimizer", "smollm2-1.7b", "8xH100", zero=1, recompute="full"),
    case("replicated", "smollm2-1.7b", "8xH100", zero=0, grad_acc=1, recompute="minimal"),
    case("pipeline", LLAMA, "16xH100", zero=3, pp=2, tp=2, grad_acc=8, recompute="full"),
    case("experts", "qwen3-30b-a3b", "16xH100", zero=3, ep=8, etp=1, grad_acc=1, recompute="full"),
    case("experts-tensor", "mixtral-8x7b", "32xH100", zero=3, ep=4, tp=2, etp=2,
         recompute="full"),
    case("latent", "deepseek-v3", "256xH100", zero=3, ep=64, etp=1, grad_acc=1, recompute="full"),
    case("biases", "qwen2.5-7b", "8xH100", zero=3, tp=4, grad_acc=1, recompute="full"),
    case("norms", "qwen3-8b", "8xH100", zero=3, mbs=4, grad_acc=1,
         recompute="save_dot_except_mlp"),
    case("eight-bits", "llama-3.1-70b", "64xH100", zero=3, grad_acc=1, recompute="full",
         more={"precision": "fp8"}),
    case("eager", "smollm2-1.7b", "8xH100", zero=3, grad_acc=1, recompute="full",
         more={"attention": "eager"}),
    # MaxText stretches rotary positions by 8 whatever the model says.
    case("stretched", "llama-3.2-1b", "8xH100", zero=3, grad_acc=1, recompute="full"),
    case("amd", LLAMA, "8xMI300X", zero=3, grad_acc=1, recompute="full"),
)  # fmt: skip
