"""How the weights of a measured run were trained, from its columns: all of them, a part, or
adapters beside frozen ones."""

from __future__ import annotations

import re

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow, named, words_of
from planner.job.errors import UsageError
from planner.job.specs import ModelSpec
from planner.job.tuning import Tuning, read_tuning

# peft's rank where a script gives none (src/peft/tuners/lora/config.py, LoraConfig.r).
_USUAL_RANK = 8


def tuning_of(row: MeasuredRow, model: ModelSpec) -> Tuning:
    """How the row's weights were trained. UnpredictableRowError for what is not modelled, or what
    its model cannot have."""
    try:
        return read_tuning(_method(row), _frozen(row, model)).checked(model)
    except UsageError as error:
        raise UnpredictableRowError(str(error).partition(";")[0]) from None


def _method(row: MeasuredRow) -> str:
    """The row's way of training, as `--train` takes it."""
    base = named("base_format", row.fact("base_format")) or ""
    method = named("tuning_method", row.fact("tuning") or row.fact("framework")) or "full"
    if method == "full":
        return method
    if method == "lora" and base:
        method = "qlora"
    settings = {
        "rank": row.text("lora_rank") or str(_USUAL_RANK),
        "targets": _targets(row),
        "base": base,
        "adapter": row.fact("adapter_precision"),
        "dropout": _dropout(row),
        "whole": "embeddings+head" if row.says("frozen", "except embeddings and lm_head") else "",
    }
    return f"{method}:" + ",".join(f"{name}={said}" for name, said in settings.items() if said)


def _targets(row: MeasuredRow) -> str:
    """Linear layers with adapters; those of attention where the row names none."""
    text = row.fact("lora_targets").partition(" of ")[0]
    if whole := named("lora_targets", text):
        return whole
    called = words_of("lora_target")
    return "+".join(called.get(word, word) for word in re.split(r"[,\s]+", text))


def _dropout(row: MeasuredRow) -> str:
    found = re.search(r"lora ([\d.]+)", row.fact("dropout"))
    return found[1] if found else ""


def _frozen(row: MeasuredRow, model: ModelSpec) -> tuple[str, ...]:
    """Modules of a fully tuned model that the row says nothing trained."""
    last = re.search(r"all but layers (\d+)-(\d+)", row.fact("frozen"))
    if last is None or int(last[2]) != model.layers - 1:
        return ()
    return ("embeddings", "head", f"layers:{last[1]}")
