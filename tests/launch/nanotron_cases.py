"""The matrix of plans that nanotron's writer is tested on."""

from __future__ import annotations

from tests.launch.torch_plans import Case, case

LLAMA = "llama-3-8b"
BASE = case("base", LLAMA, "16xH100", zero=1, tp=4, grad_acc=4)
MATRIX: tuple[Case, ...] = (
    BASE,
    case("dp", "smollm2-1.7b", "8xH100", zero=1, mbs=2),
    case("replicated", "smollm2-1.7b", "8xH100", zero=0),
    case("recompute", LLAMA, "16xH100", zero=1, tp=2, recompute="full"),
    case("pipeline", LLAMA, "16xH100", zero=1, tp=2, pp=2, grad_acc=4),
    case(
        "all-forward", LLAMA, "16xH100", zero=1, tp=2, pp=4, grad_acc=4, more={"schedule": "gpipe"}
    ),
    case("biases", "qwen2.5-7b", "8xH100", zero=1, tp=4),
    case("one-by-one", "smollm2-1.7b", "8xH100", zero=1, more={"optimizer_kernel": "forloop"}),
)
