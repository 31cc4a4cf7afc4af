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
