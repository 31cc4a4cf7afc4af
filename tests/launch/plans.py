"""Plans that cover what a launch writer must express: cheap to cost, one thing each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from string import Template

from planner import Degrees, Request
from planner.launch.contract import Launch, NodesAs, RunCommand
from planner.predict.evaluate import evaluate


@dataclass(frozen=True)
class Case:
    """A configuration: request fields, degrees, recompute, layers."""

    model: str
    gpus: str
    degrees: Mapping[str, int]
    recompute: str = "none"
    blocks: tuple[int, ...] | None = None
    recomputed: tuple[int, ...] | None = None
    request: Mapping[str, object] = field(default_factory=dict)
    mtp_standalone: bool = False


def _dense(**more: object) -> Case:
    """An 8B model on one node."""
    degrees = {"tp": 2, "dp": 4, "zero": 1, "grad_acc": 4}
    return replace(Case("llama-3-8b", "8xH100", degrees), **more)  # type: ignore[arg-type]


def _with(**request: object) -> Case:
    return _dense(request=request)


_PIPE = {"tp": 4, "pp": 4, "cp": 2, "dp": 2, "zero": 1, "grad_acc": 16}
_FSDP = {"framework": "megatron-fsdp"}
_MTP = {"mtp_layers": 1}
_V3 = {"tp": 1, "pp": 16, "ep": 64, "dp": 64, "zero": 1, "grad_acc": 32}

MEGATRON: Mapping[str, Case] = {
    "one-gpu": Case("smollm2-1.7b", "1xH100", {"zero": 0, "grad_acc": 4}),
    "dense": _dense(),
    "without-zero": _dense(degrees={"tp": 8, "zero": 0, "grad_acc": 4}),
    "shards-of-8": Case(
        "llama-3-8b", "32xH100", {"tp": 2, "dp": 16, "zero": 1, "grad_acc": 4, "shard": 8}
    ),
    "switches": Case(
        "llama-3-8b", "32xH100", {"tp": 8, "dp": 4, "zero": 0, "grad_acc": 4},
        request={"sharp": True},
    ),
    "switches-between-shards": Case(
        "llama-3-8b", "32xH100", {"tp": 2, "dp": 16, "zero": 1, "grad_acc": 4, "shard": 8},
        request={"sharp": True},
    ),
    "long-context": Case(
        "qwen3-8b", "16xH100", {"tp": 2, "cp": 4, "dp": 2, "zero": 1, "grad_acc": 8},
        request={"seq": 32768},
    ),
    "packs": Case(
        "llama-3-8b", "16xH100", {"tp": 2, "pp": 2, "cp": 2, "dp": 2, "zero": 1, "grad_acc": 8},
        request={"seq": 8192, "lengths": "600:8,6000:2", "packing": "pack-varlen"},
    ),
    "hybrid-context": Case(
        "llama-3-8b", "16xH100", {"tp": 2, "cp": 4, "dp": 2, "zero": 1, "grad_acc": 8},
        request={
            "seq": 32768, "lengths": "600:8,6000:2,32000:1", "packing": "pack-varlen",
            "balance": "hybrid-cp", "cp_comm_type": "p2p",
        },
    ),
    **{
        f"context-{kind.replace('+', '-')}": Case(
            "llama-3-8b", "16xH100", {"tp": 2, "cp": 4, "dp": 2, "zero": 1, "grad_acc": 8},
            request={"seq": 32768, "cp_comm_type": kind},
        )
        for kind in ("all_gather", "a2a", "a2a+p2p")
    },
    "context-levels": Case(
        "llama-3-8b", "16xH100", {"cp": 16, "zero": 1, "grad_acc": 8},
        request={"seq": 131072, "cp_comm_type": "a2a+p2p", "cp_sizes": (2, 8)},
    ),
    "pipeline": Case("70b", "64xH100", _PIPE),
    "ends-differ": Case("70b", "64xH100", _PIPE, blocks=(19, 21, 21, 19)),
    "uneven": Case("70b", "64xH100", _PIPE, blocks=(18, 21, 20, 21)),
    "head-alone": Case("70b", "64xH100", _PIPE, blocks=(26, 27, 27, 0)),
    "embedding-alone": Case("70b", "64xH100", _PIPE, blocks=(0, 27, 27, 26)),
    "interleaved": Case("70b", "64xH100", _PIPE | {"vpp": 5}),
    "interleaved-uneven": Case("70b", "64xH100", _PIPE | {"vpp": 5}, blocks=(3, *(4,) * 18, 5)),
    "full": Case("70b", "64xH100", _PIPE, "full"),
    "full-some-layers": Case("70b", "64xH100", _PIPE, "full", recomputed=(5, 5, 5, 5)),
    "full-groups": Case("70b", "64xH100", _PIPE, "full:uniform=4"),
    **{f"recompute-{name}": _dense(recompute=name) for name in ("layernorm", "mlp", "core_attn")},
    "ramp": _with(batch_ramp="4:1B,8:2500000000,16"),
    "fp16": _with(precision="fp16"),
    "fp8": _with(precision="fp8"),
    "mxfp8": _dense(gpus="8xB200", request={"precision": "mxfp8"}),
    "nvfp4": _dense(gpus="8xB200", request={"precision": "nvfp4"}),
    "bf16-states": _with(optimizer="adamw-bf16"),
    "fp8-states": _with(optimizer="adamw-fp8"),
    "fp16-master": _with(optimizer="adamw:exp_avg=bf16,master=fp16"),
    "bf16-gradients": _with(optimizer="adamw:grad=bf16"),
    "sgd": _with(optimizer="sgd:momentum=none"),
    "lion": _with(optimizer="lion"),
    "muon": _with(optimizer="muon"),
    "offload": _with(optimizer_offload=0.5),
    "graphs": _with(use=("cuda-graphs",)),
    "activations": _with(activation_offload="qkv_linear,core_attn,attn_proj"),
    "activations-share": Case(
        "70b", "64xH100", _PIPE | {"vpp": 5},
        request={"activation_offload": "core_attn,attn_proj", "activation_offload_fraction": 0.375},
    ),
    "activations-of-experts": Case(
        "mixtral-8x7b", "64xH100",
        {"tp": 2, "pp": 4, "ep": 8, "dp": 8, "zero": 1, "grad_acc": 8}, "layernorm",
        request={"activation_offload": "core_attn,attn_proj,mlp_norm,expert_fc1,moe_act"},
    ),
    "fsdp": _dense(degrees={"dp": 8, "zero": 3, "grad_acc": 2}, request=_FSDP),
    "fsdp-tensor": _dense(degrees={"tp": 2, "dp": 4, "zero": 3}, recompute="full", request=_FSDP),
    "fsdp-gradients": _dense(degrees={"dp": 8, "zero": 2, "mbs": 2}, request=_FSDP),
    "fsdp-experts": Case(
        "mixtral-8x7b", "32xH100", {"ep": 8, "dp": 32, "zero": 3}, "full", request=_FSDP
    ),
    "no-overlap": _with(framework="megatron-core-no-overlap"),
    "local": Case(
        "gpt3-1.3b", "8xA100", {"tp": 2, "dp": 4, "zero": 1, "grad_acc": 2},
        request={"framework": "megatron-local", "seq": 2048, "attention": "eager"},
    ),
    "gpt3": Case(
        "gpt3-1.3b", "8xA100", {"tp": 2, "dp": 4, "zero": 1, "grad_acc": 2}, "core_attn",
        request={"attention": "eager", "seq": 2048, "dropout": True},
    ),
    "squared-relu": Case("nemotron-4-15b", "16xH100", {"tp": 8, "dp": 2, "grad_acc": 8}),
    "biases-of-qkv": Case("qwen2.5-7b", "8xH100", {"tp": 4, "dp": 2, "zero": 1, "grad_acc": 8}),
    "window": Case("mistral-7b", "8xH100", {"tp": 2, "dp": 4, "zero": 1, "grad_acc": 8}),
    "experts": Case(
        "mixtral-8x7b", "64xH100",
        {"tp": 2, "pp": 4, "ep": 8, "dp": 8, "zero": 1, "grad_acc": 8}, "moe",
    ),
    "split-experts": Case(
        "mixtral-8x7b", "64xH100",
        {"tp": 2, "pp": 2, "ep": 4, "etp": 2, "dp": 16, "zero": 1, "grad_acc": 8},
        "layernorm+moe_act", request={"precision": "fp8"},
    ),
    "shared-experts": Case(
        "qwen1.5-moe-a2.7b", "8xH100", {"tp": 2, "ep": 4, "dp": 4, "zero": 1, "grad_acc": 8}
    ),
    "experts-with-biases": Case("gpt-oss-20b", "16xH100", {"ep": 8, "dp": 16, "zero": 1}),
    "latent": Case("deepseek-v2-lite", "8xH100", {"ep": 8, "dp": 8, "zero": 1}, "shared_experts"),
    "latent-pipeline": Case(
        "deepseek-v3", "1024xH100", _V3, "mla_up_proj+layernorm+moe_act",
        blocks=(4,) * 15 + (1,), request=_MTP,
    ),
    "mtp-standalone": Case("deepseek-v3", "1024xH100", _V3, "mla_up_proj+layernorm+moe_act",
                      blocks=(5, *(4,) * 14, 0), mtp_standalone=True, request=_MTP),
    "mtp-standalone-alone": Case(
        "glm-4.5-air", "64xH100",
        {"tp": 1, "pp": 8, "vpp": 2, "ep": 8, "dp": 8, "zero": 1, "grad_acc": 16}, "full",
        blocks=(4, *(3,) * 12, 6, 0, 0), mtp_standalone=True, request=_MTP,
    ),
    "hybrid": Case(
        "nemotron-h-8b", "64xH100",
        {"tp": 2, "pp": 4, "vpp": 2, "cp": 2, "dp": 4, "zero": 1, "grad_acc": 8}, "mlp",
        blocks=(6, 7, 6, 7, 7, 6, 7, 6),
    ),
    "hybrid-experts": Case(
        "nemotron-3-nano-30b", "16xH100", {"ep": 8, "dp": 16, "zero": 1, "grad_acc": 4}, "moe"
    ),
    "hybrid-mtp": Case(
        "nemotron-3-super-120b", "128xH100",
        {"tp": 2, "pp": 4, "ep": 16, "dp": 16, "zero": 1, "grad_acc": 8}, "full", request=_MTP,
    ),
    "linear-attention": Case(
        "qwen3-next-80b", "64xH100",
        {"tp": 2, "pp": 4, "ep": 8, "dp": 8, "zero": 1, "grad_acc": 8},
    ),
    "latent-head-alone": Case("deepseek-v3", "1024xH100", _V3, "mla_up_proj+layernorm+moe_act",
                              blocks=(5, *(4,) * 14, 0), request=_MTP),
}  # fmt: skip

# As the writer for Megatron-Bridge takes them.
BRIDGE = {
    name: replace(case, request={**case.request, "framework": "megatron-bridge"})
    for name, case in MEGATRON.items()
    if name
    not in (
        "packs",
        "hybrid-context",
        "no-overlap",
        "local",
        "lion",
        "muon",
        "fp8-states",
        "gpt3",
        "ramp",
    )
    and not name.startswith(("hybrid", "linear"))
    and case.request.get("framework") != "megatron-fsdp"
}


def costed(case: Case, target: str = "megatron-core", nodes_as: NodesAs = "torchrun") -> Launch:
    """The case's plan as a launch."""
    degrees = Degrees(**case.degrees)
    fields = {"seq": 4096, "gbs": degrees.gbs, **case.request}
    request = Request(model=case.model, gpus=case.gpus, **fields)  # type: ignore[arg-type]
    plan = evaluate(
        request,
        degrees,
        case.recompute,
        case.blocks,
        case.recomputed,
        mtp_standalone=case.mtp_standalone,
    )
    return Launch(plan, request, request.resolve(), target, nodes_as)


@cache
def megatron(name: str) -> Launch:
    """A case of MEGATRON."""
    return costed(MEGATRON[name])


@cache
def bridge(name: str) -> Launch:
    """A case of BRIDGE."""
    return costed(BRIDGE[name], "megatron-bridge")


def sharded(launch: Launch, zero: int) -> Launch:
    """The launch with a ZeRO stage that its profile is not costed for."""
    degrees = launch.plan.degrees.model_copy(update={"zero": zero})
    return replace(launch, plan=launch.plan.model_copy(update={"degrees": degrees}))


def changed(launch: Launch, **fields: object) -> Launch:
    """The launch with other fields of its plan."""
    return replace(launch, plan=launch.plan.model_copy(update=fields))


Cases = Callable[[str], Launch]


def default_argv(command: RunCommand) -> tuple[str, ...]:
    """Program and arguments as they are where the user has set nothing."""
    # A default that names others is empty where these are.
    defaults = {
        entry.name: "" if "$" in entry.default else entry.default for entry in command.variables
    }
    words = [*command.argv]
    for entry in command.branches:
        words += entry.given if defaults.get(entry.variable) else entry.otherwise
    return tuple(Template(word).safe_substitute(defaults) for word in words)
