"""What Megatron's options say of recomputation, the optimizer and the precision."""

from __future__ import annotations

from collections.abc import Mapping

from planner.launch.dialects.megatron.arguments import Arguments
from planner.launch.options import MEGATRON
from planner.launch.options import MEGATRON_RECOMPUTE as _RECOMPUTE
from planner.launch.read.found import Problem

_FSDP = MEGATRON["fsdp"].name
_OPTIMIZERS = {text: name for name, text in MEGATRON["optimizer"].written.items()} | {
    "dist_muon": "muon"
}
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATES = (*_MOMENTS, "master", "grad")
# Types of these -> the catalogue's name for them.
_ADAM_STATES: Mapping[tuple[str, ...], str] = {
    ("bf16", "bf16"): "adamw-bf16",
    ("fp8", "fp16"): "adamw-fp8",
    ("fp32", "fp32"): "adamw",
}


def recompute_of(arguments: Arguments) -> str:
    """The recompute mode, by the planner's name for it."""
    granularity = arguments.text(_RECOMPUTE["recompute"].name)
    short = (_RECOMPUTE["recompute-attention"].name, "checkpoint-activations")
    if any(map(arguments.has, short)):
        granularity = granularity or "selective"
    if granularity is None:
        return "none"
    if granularity == "selective":
        modules = arguments.many(_RECOMPUTE["recompute-modules"].name)
        return "selective" if set(modules) <= {"core_attn"} else "+".join(modules)
    layers = arguments.number(_RECOMPUTE["recompute-layers"].name)
    # Another method is refused by name, as every value that an option does not have.
    is_block = arguments.text(_RECOMPUTE["recompute-method"].name) == "block"
    if is_block and layers == 0:
        return "none"
    method, layers = "block" if is_block else "uniform", layers or 1
    return "full" if (method, layers) == ("uniform", 1) else f"full:{method}={layers}"


def optimizer_of(arguments: Arguments) -> str:
    """The optimizer, with the types of its states where they are not the usual ones."""
    kind = arguments.text("optimizer") or "adam"
    name = _OPTIMIZERS.get(kind)
    if name is None:
        places = (_FSDP, MEGATRON["sharding"].name, "optimizer")
        arguments.problems.append(
            arguments.unpredictable(f"optimizer {kind} is not modelled", *places)
        )
        return "adamw"
    if name == "sgd" and arguments.real(MEGATRON["momentum"].name) == 0.0:
        return "sgd:momentum=none"
    if name != "adamw" or not arguments.has(MEGATRON["state-types"].name):
        return name
    types = {ours: arguments.text(MEGATRON[ours].name) or "fp32" for ours in _STATES}
    base = _ADAM_STATES.get(tuple(types[ours] for ours in _MOMENTS))
    said = () if base is None else _MOMENTS
    others = {ours: dtype for ours, dtype in types.items() if dtype != "fp32"}
    changes = [f"{ours}={dtype}" for ours, dtype in others.items() if ours not in said]
    return (base or "adamw") + (":" + ",".join(changes) if changes else "")


def optimizer_offload_of(arguments: Arguments) -> float:
    """The share of the states that the host keeps."""
    share = arguments.real("optimizer-offload-fraction")
    return share if arguments.has(MEGATRON["optimizer_offload"].name) else 0.0


def precision_of(arguments: Arguments) -> str:
    """The type that products are computed in; where none is stated, what follows is said."""
    if arguments.has(MEGATRON["fp4"].name):
        name = "fp4-recipe"
        recipe = arguments.text(name) or "nvfp4"
        if recipe == "nvfp4":
            return "nvfp4"
        arguments.problems.append(
            arguments.unpredictable(f"--{name} {recipe} is not modelled", name)
        )
        return "bf16"
    if arguments.has(MEGATRON["fp8"].name):
        return "mxfp8" if arguments.text("fp8-recipe") == "mxfp8" else "fp8"
    arguments.has("accumulate-allreduce-grads-in-fp32")
    hidden = any(problem.rule == "unresolved" for problem in arguments.problems)
    if not arguments.has("bf16") and not arguments.has("fp16") and not hidden:
        text = "neither --bf16 nor --fp16: Megatron trains in fp32, which is not modelled"
        arguments.problems.append(Problem("not-predictable", text, "warning", fix="--bf16"))
    elif hidden and not arguments.has("bf16") and not arguments.has("fp16"):
        text = "neither --bf16 nor --fp16 is among the options that were read"
        arguments.problems.append(Problem("precision-unknown", text, "missing"))
    return "fp16" if arguments.has("fp16") else "bf16"
