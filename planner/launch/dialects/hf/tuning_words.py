"""How a plan's way of training is expressed to programs of Hugging Face: the inverse of `tuned.py`,
with the names in `adapters.toml`. What no program supports is refused."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import EXPERTS, GROUPS, linear_layers
from planner.job.tuning import Tuning
from planner.launch.contract import Refusal
from planner.launch.dialects.hf.modules import (
    ALL_LINEAR,
    expert_names,
    fuses_experts,
    modules_of_family,
    named_modules,
)

# The usual ratio: twice the rank (peft's examples, LLaMA-Factory's default).
_ALPHA_PER_RANK = 2
# Frameworks whose shards of trained weights are in fp32.
_FP32_SHARDS = ("hf-fsdp2", "fsdp1")
_BITS = ("nf4", "nf4-double", "int8")
Names = tuple[str, ...]


def loaded_dtype(job: Job) -> str:
    """The dtype in which TRL is told to load the weights. FSDP trains fp32 shards
    (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model; accelerator.py, prepare_model), autocast
    fp32 weights. TRL loads fp32 unless told otherwise (trl/trainer/model_config.py, dtype;
    trainer/utils.py, create_model_from_path)."""
    shards = job.framework.name in _FP32_SHARDS and job.tuning.trains_all
    return "float32" if shards or job.framework.mode == "amp" else "bfloat16"


def alpha(tuning: Tuning) -> float:
    """The `alpha` of the adapters, which scales their output and does not affect cost: the plan's,
    else a fixed multiple of the rank."""
    return tuning.alpha if tuning.alpha is not None else _ALPHA_PER_RANK * tuning.rank


def target_modules(tuning: Tuning, model: ModelSpec, *, by_peft: bool = True) -> Names:
    """The modules that have adapters, by transformers' names; `all-linear` for all. `by_peft`: peft
    interprets that word, and includes experts and routers in some families."""
    adapted = _adapted(tuning, model)
    whole = {name for name in GROUPS[ALL_LINEAR] if name in linear_layers(model)} - {EXPERTS}
    if by_peft and fuses_experts(model):
        whole |= {EXPERTS, "router"}
    if adapted and adapted == whole:
        return (ALL_LINEAR,)
    experts = expert_names(model) if EXPERTS in adapted else ()
    return tuple(dict.fromkeys((*_names(adapted, model), *experts)))


def _adapted(tuning: Tuning, model: ModelSpec) -> set[str]:
    """The linear layers that get adapters. Experts are among them only if the plan's targets name
    them."""
    adapted = set(tuning.adapted(model))
    return adapted if EXPERTS in tuning.targets else adapted - {EXPERTS}


def whole_modules(tuning: Tuning, model: ModelSpec) -> Names:
    """The modules that are trained in full beside adapters, by transformers' names."""
    return _names(set(tuning.whole), model)


def frozen_text(tuning: Tuning) -> str:
    """The argument of `--freeze`, as one word of a command."""
    return ",".join(tuning.frozen)


def _names(words: set[str], model: ModelSpec) -> Names:
    """Names of the modules that hold at least one of the layers `words`."""
    known = modules_of_family(model)
    return tuple(name for name, held in known.items() if words & set(held.split()))


def adapter_arguments(job: Job) -> dict[str, object]:
    """peft's settings for adapters and the packed base, as words of a command; none without
    adapters. Switches that are off are written, too."""
    tuning, model = job.tuning, job.model
    if not tuning.has_adapters:
        return {}
    said: dict[str, object] = {
        "lora_r": tuning.rank,
        "lora_alpha": f"{alpha(tuning):g}",
        "lora_dropout": f"{tuning.dropout:g}",
        "lora_target_modules": ",".join(target_modules(tuning, model)),
    }
    if tuning.whole:
        said["modules_to_save"] = ",".join(whole_modules(tuning, model))
    switches = {"use_dora": True} if tuning.method == "dora" else {}
    switches |= {
        "load_in_4bit": tuning.base in ("nf4", "nf4-double"),
        "load_in_8bit": tuning.base == "int8",
        "bnb_4bit_use_double_quant": tuning.base == "nf4-double",
    }
    return said | {name: str(is_on).lower() for name, is_on in switches.items()}


def tuning_refusals(
    job: Job, *, freezes: bool, casts: bool = False, by_peft: bool = True
) -> Iterator[Refusal]:
    """Ways of training that a program does not support. `freezes`: it supports `--freeze`; `casts`:
    it can be told the format of adapters; `by_peft`: peft, not the program, decides which layers
    have adapters."""
    tuning, model = job.tuning, job.model
    if tuning.frozen and not freezes:
        yield Refusal(
            f"its settings have no word for --freeze {' '.join(tuning.frozen)}",
            "--framework accelerate or deepspeed, or no --freeze",
        )
    if not tuning.has_adapters:
        return
    if tuning.base is not None and tuning.base not in _BITS:
        yield Refusal(
            f"weights in {tuning.base} are published so, and no program packs them as it loads",
            "base=nf4-double",
        )
    if "norms" in tuning.whole:
        yield Refusal("norms have another name in every family of models", "whole=embeddings,head")
    if tuning.adapter not in (None, "fp32", job.precision) or (tuning.adapter and not casts):
        yield Refusal(
            f"the type of adapters is the library's, not adapter={tuning.adapter}", "no adapter="
        )
    if EXPERTS in _adapted(tuning, model) and tuning.dropout:
        yield Refusal("peft's adapters of experts have no dropout", "dropout=0")
    yield from _unnamed(tuning, model, by_peft)


def _unnamed(tuning: Tuning, model: ModelSpec, by_peft: bool) -> Iterator[Refusal]:
    """A refusal if no set of module names stands for exactly the layers that get adapters."""
    names = target_modules(tuning, model, by_peft=by_peft)
    adapted = _adapted(tuning, model)
    if names == (ALL_LINEAR,):
        return
    found = set(named_modules(names, model).words) if names else set()
    if found == adapted:
        return
    others = ", ".join(sorted(found ^ adapted))
    yield Refusal(
        f"no names of {model.name}'s modules stand for --train targets="
        f"{','.join(tuning.targets)} alone ({others})",
        "targets=all-linear,experts,router" if fuses_experts(model) else "targets=all-linear",
    )
