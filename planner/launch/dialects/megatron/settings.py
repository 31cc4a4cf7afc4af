"""Settings that several Megatron options state together: the exchange of context parallelism,
offloading, SHARP (gradient reduction in switches), the batch ramp, recomputation, optimizer and
precision.

Source of all: megatron-core 0.19.2, training/arguments.py (validate_args), parallel_state.py
(initialize_model_parallel), core/num_microbatches_calculator.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt, prod
from typing import Any, get_args

from constraints.axes import LARGEST_DEGREE, ContextKind
from planner.job.batch_ramp import read_ramp
from planner.job.errors import UsageError
from planner.job.quantities import parse_tokens
from planner.launch.dialects.megatron.arguments import Arguments, choices_of_many
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.dialects.megatron.options import MEGATRON_RECOMPUTE as _RECOMPUTE
from planner.launch.languages.text import digits
from planner.launch.read.found import Edit, Problem

# --- context parallelism --------------------------------------------------------------------------

_TYPE, _SIZES = MEGATRON["cp_comm_type"].name, MEGATRON["cp_sizes"].name
_KINDS: tuple[ContextKind, ...] = get_args(ContextKind)
_TWO_LEVELS, _LEVELS = "a2a+p2p", 2


def read_exchange(arguments: Arguments, cp: int) -> dict[str, Any]:
    """The exchange of keys and values between `cp` context ranks, by field of `Found`:
    `cp_comm_type`, and `cp_sizes` if the exchange has two levels. Empty if `cp` is 1. Wrong values
    are reported and count as `p2p`."""
    given = arguments.many(_TYPE) or ("p2p",)
    kind, sizes = given[0], tuple[int, ...]()
    if wrong := sorted(set(given) - set(_KINDS)):
        text = f"--{_TYPE} {wrong[0]}: one of {', '.join(_KINDS)}"
        kind = "p2p"
        arguments.refuse("option-value", text, _TYPE, edits=(Edit(f"--{_TYPE}", kind),))
    else:
        sizes = _level_sizes(arguments, kind, cp)
        setting = arguments.setting(_TYPE)
        if len(set(given)) > 1 and setting is not None:
            why = f"layers exchange in different ways: costed as {kind}"
            arguments.left_out.append((setting, why))
    two = {"cp_sizes": sizes} if kind == _TWO_LEVELS else {}
    return {"cp_comm_type": kind} | two if cp > 1 else {}


def _level_sizes(arguments: Arguments, kind: str, cp: int) -> tuple[int, ...]:
    """Ranks on each level. Wrong sizes are replaced by the nearest valid ones, so that checking
    goes on."""
    texts = arguments.many(_SIZES)
    given, sizes = f"--{_SIZES} {' '.join(texts)}", tuple(digits(text) or 0 for text in texts)
    if not texts and (kind != _TWO_LEVELS or cp == 1):
        return ()
    if not texts:
        text = f"--{_TYPE} {_TWO_LEVELS}: --{_SIZES} is missing (the ranks of its two levels)"
    elif 0 in sizes:
        arguments.refuse("option-value", f"{given}: whole numbers of at least 1", _SIZES)
        return ()
    elif prod(sizes) != cp:
        text = f"{given} make {prod(sizes)} ranks, not cp = {cp}"
    elif kind == _TWO_LEVELS and len(sizes) != _LEVELS:
        text = f"{given}: Transformer Engine has two levels"
    else:
        return sizes
    most = isqrt(min(max(cp, 1), LARGEST_DEGREE))
    inner = max(cp, 1) // max(index for index in range(1, most + 1) if max(cp, 1) % index == 0)
    edits = (Edit(f"--{_SIZES}", f"{inner} {cp // inner}"),)
    arguments.refuse("context-levels", text, _SIZES, _TYPE, edits=edits)
    return inner, cp // inner


# --- activations on the host ----------------------------------------------------------------------

FINE_GRAINED, MODULES = "fine-grained-activation-offloading", "offload-modules"
FRACTION = "activation-offload-fraction"
# Modules of --offload-modules (transformer_config.py).
_OFFLOADED = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    "fused_group_mlp",
)  # fmt: skip


def read_offload(arguments: Arguments) -> dict[str, Any]:
    """The names of the modules whose activations are offloaded (`off` for none) and the fraction of
    them, by field of `Found`. Empty unless fine-grained offloading is on; a fraction outside 0 to 1
    counts as 1."""
    if not arguments.has(FINE_GRAINED):
        return {}
    modules = choices_of_many(arguments, MODULES, _OFFLOADED)
    if "fused_group_mlp" in modules:
        text = f"--{MODULES} fused_group_mlp: less memory than predicted"
        arguments.beyond(text, MODULES)
    given = arguments.real(FRACTION)
    fraction = given if 0.0 <= given <= 1.0 else 1.0
    kept = ",".join(name for name in modules if name != "fused_group_mlp") or "off"
    return {
        "activation_offload": kept if fraction else "off",
        "activation_offload_fraction": fraction or 1.0,
    }


# --- SHARP ----------------------------------------------------------------------------------------

_USE, _GROUP, _INSTANCES = (MEGATRON[ours].name for ours in ("sharp", "sharp-group", "groups"))
COLLNET = "NCCL_COLLNET_ENABLE"


def read_sharp(arguments: Arguments, environment: Mapping[str, str], command_place: str) -> bool:
    """Whether the SHARP options make switches reduce gradients."""
    on, group = arguments.has(_USE), arguments.text(_GROUP)
    instances = arguments.number(_INSTANCES) or 1

    def refuse(text: str, option: str, value: str, **more: Any) -> None:
        edits = (Edit(f"--{option}", value),)
        arguments.refuse("sharp-group", text, _USE, _GROUP, edits=edits, **more)

    if group and not on:
        refuse(f"--{_GROUP} needs --{_USE}", _USE, "")
    elif group == "dp_replica" and instances == 1:
        refuse(f"--{_GROUP} dp_replica needs --{_INSTANCES} above 1", _GROUP, "dp")
    elif on and instances > 1 and group != "dp_replica":
        text = (
            f"--{_USE} for the group dp: with {instances} instances of the distributed optimizer "
            "gradients go over other groups, and the switches reduce nothing"
        )
        refuse(text, _GROUP, "dp_replica", severity="warning")
    if not on and environment.get(COLLNET) == "1":
        text = (
            f"{COLLNET}=1: Megatron removes it before the first communicator is made, so SHARP is "
            "not used"
        )
        edits = (Edit(f"--{_USE}", ""),)
        note = Problem("sharp-collnet", text, "warning", (command_place,), edits=edits)
        arguments.problems.append(note)
    return on and (group or "dp") == ("dp_replica" if instances > 1 else "dp")


# --- a batch that grows ---------------------------------------------------------------------------

_STEPS, _BATCH = MEGATRON["batch_ramp"].name, MEGATRON["gbs"].name
# Ignored by core 0.19.2; thresholds are in samples.
_LINEAR = "rampup-batch-size"
RAMPS = (_STEPS, _LINEAR)
_MAY_SHRINK = "decrease-batch-size-if-needed"
_GROWING = "growing batches and thresholds"


def read_megatron_ramp(arguments: Arguments, gbs: int | None, seq: int | None) -> dict[str, Any]:
    """The batch ramp in the form that `planner.job.batch_ramp` reads, with its final batch; empty
    without a ramp. `gbs`, `seq`: those of the options."""
    if arguments.settings.get(_STEPS) is not None:
        return _steps(arguments, gbs)
    # Python also reads numbers such as `1_000`; keep only the digits.
    given = arguments.many(_LINEAR)
    words = [word.replace("_", "") if word[:1].isdecimal() else word for word in given]
    if not words or gbs is None or seq is None or arguments.has(_MAY_SHRINK):
        return {}
    try:
        if len(words) != 3:
            raise UsageError("takes three numbers: start, increment, samples")
        read_ramp(" ".join(words), gbs)
    except UsageError as error:
        text = f"--{_LINEAR} {' '.join(words)}: {error}"
        arguments.refuse("option-value", text, _LINEAR, fix=_GROWING)
        return {}
    text = f"--{_LINEAR} is deprecated; megatron-core 0.19.2 ignores it and takes --{_BATCH} from"
    more = {"severity": "note", "fix": f"--{_STEPS} in its place"}
    arguments.refuse("batch-ramp-ignored", f"{text} the start", _LINEAR, **more)
    return {"batch_ramp": " ".join(words)}


def _steps(arguments: Arguments, gbs: int | None) -> dict[str, Any]:
    text = arguments.text(_STEPS) or ""
    pairs = [item.partition(":") for item in text.replace(",", " ").split()]
    try:
        starts = [0 if at == "0" else parse_tokens(at) for at, _, _ in pairs]
        sizes = [parse_tokens(size) for _, _, size in pairs]
        if not starts or starts[0] != 0:
            raise UsageError("the first threshold is 0")
        steps = [f"{size}:{end}" for size, end in zip(sizes, starts[1:], strict=False)]
        ramp = ",".join((*steps, str(sizes[-1]))) if steps else None
        if ramp:
            read_ramp(ramp)
    except UsageError as error:
        arguments.refuse("option-value", f"--{_STEPS} {text}: {error}", _STEPS, fix=_GROWING)
        return {}
    if gbs is not None:
        both = f"--{_STEPS} with --{_BATCH}: Megatron takes one of them"
        more = {"fix": f"no --{_BATCH}", "edits": (Edit(f"--{_BATCH}", None),)}
        arguments.refuse("batch-twice", both, _BATCH, **more)
    return {"batch_ramp": ramp, "gbs": sizes[-1]}


_FSDP = MEGATRON["fsdp"].name
_OPTIMIZERS = {text: name for name, text in MEGATRON["optimizer"].written.items()} | {
    "dist_muon": "muon"
}
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATES = (*_MOMENTS, "master", "grad")
# The catalogue's optimizer for each pair of moment types.
_ADAM_STATES: Mapping[tuple[str, ...], str] = {
    ("bf16", "bf16"): "adamw-bf16",
    ("fp8", "fp16"): "adamw-fp8",
    ("fp32", "fp32"): "adamw",
}


def recompute_of(arguments: Arguments) -> str:
    """The recompute mode, under the planner's name for it."""
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
    # Any other method is reported as a wrong value of the option.
    is_block = arguments.text(_RECOMPUTE["recompute-method"].name) == "block"
    if is_block and layers == 0:
        return "none"
    method, layers = "block" if is_block else "uniform", layers or 1
    return "full" if (method, layers) == ("uniform", 1) else f"full:{method}={layers}"


def optimizer_of(arguments: Arguments) -> str:
    """The optimizer, with the types of its states if they are unusual."""
    kind = arguments.text("optimizer") or "adam"
    name = _OPTIMIZERS.get(kind)
    if name is None:
        places = (_FSDP, MEGATRON["sharding"].name, "optimizer")
        arguments.beyond(f"optimizer {kind} is not modelled", *places)
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


def precision_of(arguments: Arguments) -> str:
    """The precision of matrix products; a problem is added if no option states it."""
    if arguments.has(MEGATRON["fp4"].name):
        name = "fp4-recipe"
        recipe = arguments.text(name) or "nvfp4"
        if recipe == "nvfp4":
            return "nvfp4"
        arguments.beyond(f"--{name} {recipe} is not modelled", name)
        return "bf16"
    if arguments.has(MEGATRON["fp8"].name):
        return "mxfp8" if arguments.text("fp8-recipe") == "mxfp8" else "fp8"
    arguments.has("accumulate-allreduce-grads-in-fp32")
    stated = [name for name in ("bf16", "fp16") if arguments.has(name)]
    if not stated:
        text = "neither --bf16 nor --fp16: Megatron trains in fp32, which is not modelled"
        problem = Problem("not-predictable", text, "warning", fix="--bf16")
        if any(problem.rule == "unresolved" for problem in arguments.problems):
            text = "neither --bf16 nor --fp16 is among the options that were read"
            problem = Problem("precision-unknown", text, "missing")
        arguments.problems.append(problem)
    return "fp16" if "fp16" in stated else "bf16"
