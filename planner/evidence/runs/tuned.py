"""The trained weights of a measured run: all of them, a part, or adapters on frozen ones."""

from __future__ import annotations

import re

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow, named, words_of
from planner.evidence.runs.vision import frozen_parts
from planner.job.errors import UsageError
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import EXPERTS, GROUPS, linear_layers
from planner.job.tuning import Tuning, read_tuning
from planner.job.tuning_checks import checked

# peft's rank if a script gives none (src/peft/tuners/lora/config.py, LoraConfig.r).
_USUAL_RANK = 8
# Frameworks whose 4-bit weights have scales in 8 bits, whatever a row says
# (unsloth/models/llama.py, bnb_4bit_use_double_quant; torchtune's are torchao's NF4).
_DOUBLES = "unsloth|torchtune"
# Tools that adapt every linear layer unless told otherwise (LLaMA-Factory and ms-swift since 2024).
_ADAPTS_ALL = "llama-?factory|swift|unsloth"
_TABLES = ("embeddings", "head")
_TRAINS_TABLES = "unsloth"
_OF_BLOCKS = ("gate", "up", "down")
# Filler words between names of layers.
_FILLERS = ("and", "default", "layers", "modules", "the")


def tuning_of(row: MeasuredRow, model: ModelSpec) -> Tuning:
    """The row's way of training its weights. UnpredictableRowError if it is not modelled, or
    impossible for its model."""
    try:
        return checked(read_tuning(_method(row, model), _frozen(row, model)), model)
    except UsageError as error:
        raise UnpredictableRowError(str(error).partition(";")[0]) from None


def _method(row: MeasuredRow, model: ModelSpec) -> str:
    """The row's way of training, in the form of `--train`."""
    base = named("base_format", row.fact("base_format")) or ""
    if base == "nf4" and row.says("framework", _DOUBLES):
        base = "nf4-double"
    method = named("tuning_method", row.fact("tuning") or row.fact("framework")) or "full"
    if method == "full":
        return method
    if method == "lora" and base:
        method = "qlora"
    settings = {
        "rank": row.text("lora_rank") or str(_USUAL_RANK),
        "targets": _targets(row, model),
        "base": base,
        "adapter": row.fact("adapter_precision"),
        "dropout": _dropout(row),
        "whole": _whole(row),
    }
    return f"{method}:" + ",".join(f"{name}={said}" for name, said in settings.items() if said)


def _targets(row: MeasuredRow, model: ModelSpec) -> str:
    """Linear layers with adapters; those of attention if the row names none. A name of no layer in
    this model adds none (peft, tuners_utils.py, inject_adapter); an unknown name stays, so that it
    is refused by name later."""
    text = _targets_text(row)
    if not text and row.says("framework", _ADAPTS_ALL):
        return "all-linear"
    if whole := named("lora_targets", text):
        return whole
    known = {name for some in words_of("lora_target").values() for name in some.split("+")}
    absent = known - {*linear_layers(model), *GROUPS}
    if row.says("framework", _TRAINS_TABLES):
        absent |= set(_TABLES)
    of_blocks = [one for name in _names(text) for one in _in_mixture(name, row, model)]
    found = [name for name in of_blocks if name not in absent]
    return "+".join(dict.fromkeys(found)) or text


def _targets_text(row: MeasuredRow) -> str:
    return row.fact("lora_targets").partition(" of ")[0]


def _names(text: str) -> list[str]:
    """The planner's names for the layers in a cell."""
    called = words_of("lora_target")
    words = [word for word in re.findall(r"[\w.]+(?:-\w+)*", text) if word not in _FILLERS]
    meant = (called.get(word) or called.get(word.rpartition(".")[2], word) for word in words)
    return [name for some in meant for name in some.split("+")]


def _in_mixture(name: str, row: MeasuredRow, model: ModelSpec) -> tuple[str, ...]:
    """The layers that a name means in a model whose feed-forward blocks are experts: each expert's,
    unless the experts are one tensor, as in gpt-oss always and in others since transformers 5."""
    layers = linear_layers(model)
    if name not in _OF_BLOCKS or name in layers or model.moe is None:
        return (name,)
    shared = tuple(one for one in (f"shared-{name}",) if one in layers)
    one_tensor = model.moe.clamp is not None or row.says("model", "gpt-?oss")
    together = one_tensor or row.says("software", "transformers 5")
    return shared if together or EXPERTS not in layers else (*shared, EXPERTS)


def _whole(row: MeasuredRow) -> str:
    """Tables that are trained in full together with adapters. unsloth does so with tables named
    among its targets (unsloth/models/llama.py, get_peft_model)."""
    if row.says("frozen", "except embeddings and lm_head"):
        return "+".join(_TABLES)
    named_ones = _names(_targets_text(row)) if row.says("framework", _TRAINS_TABLES) else []
    return "+".join(name for name in _TABLES if name in named_ones)


def _dropout(row: MeasuredRow) -> str:
    found = re.search(r"lora ([\d.]+)", row.fact("dropout"))
    return found[1] if found else ""


def _frozen(row: MeasuredRow, model: ModelSpec) -> tuple[str, ...]:
    """Parts of a vision-language model, or modules of a fully tuned one, that were not trained."""
    if model.vision is not None:
        return frozen_parts(row)
    last = re.search(r"all but layers (\d+)-(\d+)", row.fact("frozen"))
    if last is None or int(last[2]) != model.layers - 1:
        return ()
    return ("embeddings", "head", f"layers:{last[1]}")
