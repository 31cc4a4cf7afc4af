"""Plans that TRL trains, by what shards them; each as TRL runs it."""

from __future__ import annotations

from functools import cache

from planner.job.samples import Packing
from planner.launch.contract import Launch
from planner.launch.plans import launch_of as written_for
from planner.launch.registry import target_named
from tests.launch.torch_plans import Case, case, launch_of

LLAMA = "llama-3.1-8b"
SMALL = "llama-3.2-1b"
_ONE = {"zero": 0, "mbs": 2}
_NODE = {"zero": 3, "mbs": 2}
_ATTENTION = "lora:rank=8,targets=q+v,dropout=0.05,whole=embeddings+head"
PREFERENCES = ("dpo", "ipo", "kto", "orpo", "simpo", "cpo")


def _lengths(packing: Packing, **more: object) -> dict[str, object]:
    return {"lengths": "mean=450", "packing": packing, **more}


# By profile: every way of training, recomputation and packing that its files say.
ALONE: tuple[Case, ...] = (
    case("full", SMALL, "1xH100", **_ONE, recompute="full"),
    case("amp", SMALL, "2xH100", **_ONE, more={"dtype": "amp", "optimizer": "adamw-8bit"}),
    case("paged", SMALL, "1xH100", **_ONE, recompute="full",
         more={"optimizer": "paged-adamw-8bit"}),
    case("liger", SMALL, "1xH100", **_ONE, more={"use": ("liger-kernels",)}),
    case("eager", SMALL, "1xH100", **_ONE, more={"attention": "eager", "seq": 1024}),
    case("freeze", SMALL, "1xH100", **_ONE, recompute="full",
         more={"freeze": ("embeddings", "layers:4")}),
    case("lora", LLAMA, "1xH100", **_ONE, more={"train": "lora"}),
    case("lora-attention", LLAMA, "16xH100", **_ONE, recompute="full",
         more={"train": _ATTENTION}),
    case("lora-frozen", LLAMA, "1xH100", **_ONE, recompute="full",
         more={"train": "lora", "freeze": ("layers:4", "o")}),
    case("dora", LLAMA, "1xH100", **_ONE, recompute="full", more={"train": "dora:rank=32"}),
    case("qlora", LLAMA, "1xRTX4090", **_ONE, recompute="full", more={"train": "qlora"}),
    case("qlora-int8", LLAMA, "1xH100", **_ONE, recompute="full",
         more={"train": "qlora:base=int8", "optimizer": "adamw-8bit"}),
    case("qdora", LLAMA, "1xH100", **_ONE, recompute="full", more={"train": "dora:base=nf4"}),
)  # fmt: skip
FSDP: tuple[Case, ...] = (
    case("full", LLAMA, "8xH100", **_NODE, recompute="full"),
    case("zero2", LLAMA, "8xH100", zero=2, more={"optimizer": "adamw-4bit"}),
    case("hsdp", LLAMA, "16xH100", **_NODE, shard=8),
    case("offload", LLAMA, "8xH100", **_NODE, recompute="full", more={"optimizer_offload": 1.0}),
    case("freeze", LLAMA, "8xH100", **_NODE, more={"freeze": ("embeddings", "layers:8")}),
    case("lora", LLAMA, "8xH100", **_NODE, more={"train": "lora"}),
    case("qlora", LLAMA, "8xH100", **_NODE, recompute="full", more={"train": "qlora"}),
    case("dora", LLAMA, "8xH100", **_NODE, more={"train": "dora:rank=32"}),
)  # fmt: skip
DEEPSPEED: tuple[Case, ...] = (
    case("zero0", SMALL, "8xH100", **_ONE, recompute="full"),
    case("zero2", LLAMA, "8xH100", zero=2, recompute="full", more={"optimizer": "adamw-8bit"}),
    case("full", LLAMA, "8xH100", **_NODE, recompute="full"),
    case("offload", LLAMA, "8xH100", **_NODE, recompute="full", more={"optimizer_offload": 1.0}),
    case("lion", LLAMA, "8xH100", **_NODE, more={"optimizer": "lion"}),
    case("lora", LLAMA, "8xH100", **_NODE, recompute="full", more={"train": "lora"}),
    case("qlora", LLAMA, "8xH100", zero=2, recompute="full", more={"train": "qlora"}),
    case("freeze", LLAMA, "8xH100", **_NODE, more={"freeze": ("embeddings", "layers:8")}),
)  # fmt: skip
PACKED: tuple[Case, ...] = tuple(
    case(f"packed-{packing}", LLAMA, "1xH100", **_ONE, recompute="full",
         more=_lengths(packing, train="lora"))
    for packing in ("longest", "limit", "pack", "pack-varlen")
)  # fmt: skip
PAIRS: tuple[Case, ...] = (
    *(
        case(kind, SMALL, "1xH100", **_ONE, recompute="full", more={"objective": kind})
        for kind in (*PREFERENCES, "reward")
    ),
    *(
        case(f"{kind}-lora", LLAMA, "2xH100", **_ONE, recompute="full",
             more={"objective": kind, "train": "lora"})
        for kind in ("dpo", "kto", "orpo", "reward")
    ),
    case("dpo-precomputed", SMALL, "1xH100", **_ONE,
         more={"objective": "dpo:reference=precomputed"}),
    case("dpo-qlora", LLAMA, "1xH100", **_ONE, recompute="full",
         more={"objective": "dpo", "train": "qlora"}),
    case("orpo-qlora", LLAMA, "1xH100", **_ONE, recompute="full",
         more={"objective": "orpo", "train": "qlora"}),
    case("cpo-limit-of-samples", SMALL, "1xH100", **_ONE,
         more=_lengths("longest", objective="cpo")),
)  # fmt: skip
SHARDED_PAIRS: tuple[Case, ...] = tuple(
    case(kind, SMALL, "8xH100", **_NODE, recompute="full", more={"objective": kind})
    for kind in ("dpo", "kto", "orpo", "reward")
)
MATRIX = {
    "hf-transformers": (*ALONE, *PACKED, *PAIRS),
    "hf-fsdp2": (*FSDP, *SHARDED_PAIRS),
    "deepspeed": (*DEEPSPEED, *SHARDED_PAIRS),
}
CASES = [(profile, one) for profile, cases in MATRIX.items() for one in cases]
NAMES = [f"{profile}-{one.name}" for profile, one in CASES]


@cache
def as_run(profile: str, item: Case) -> Launch:
    """The case's plan as `planner launch --framework trl` writes it."""
    planned = launch_of(item, profile, "trl")
    return written_for(planned.plan, planned.request, target_named("trl"), "torchrun")


def named(profile: str, name: str) -> Launch:
    """The plan of a case by its name."""
    return as_run(profile, next(one for one in MATRIX[profile] if one.name == name))
