"""NeMo 2's recipes and helpers that are not beside the files that call them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hardware.files import shipped_text
from planner.launch.languages.python import Record
from planner.launch.registry import package_of

RELEASE = "NeMo of 2025-11"
# What every pretraining recipe of NeMo 2 sets (nemo/collections/llm/recipes, optim/adam.py), where
# the recipe itself is not there.
USUAL = {
    "ddp.use_distributed_optimizer": "true", "ddp.overlap_grad_reduce": "true",
    "ddp.overlap_param_gather": "true", "ddp.grad_reduce_in_fp32": "true",
}  # fmt: skip
_CALL = re.compile(r"^nemo\.(?:\w+\.)*(\w+)\.pretrain_recipe$")


@dataclass(frozen=True)
class NemoRecipe:
    """One of NeMo's own recipes: its name, a model of the catalogue, GPUs where nobody states
    them, and fields as Megatron-Bridge names them."""

    name: str
    model: str
    gpus: int
    values: Mapping[str, str]


@cache
def _recipes() -> Mapping[str, NemoRecipe]:
    text = shipped_text(package_of("megatron"), "nemo_recipes.tsv")
    rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    return {
        name: NemoRecipe(name, model, int(gpus), dict(item.split("=") for item in fields.split()))
        for name, model, gpus, fields in rows
    }


def nemo_recipe(called: str) -> NemoRecipe | None:
    """NeMo's own recipe by the function that is called; None for any other."""
    match = _CALL.search(called)
    return _recipes().get(match[1]) if match else None


def set_primary(recipe: Any = None, *_given: Any, **named: Any) -> Any:
    """NeMo's scripts/performance/helpers.py: degrees, batch, precision and recomputation."""
    if not isinstance(recipe, Record):
        return recipe
    trainer = _made_in(recipe, "trainer")
    strategy, data = _made_in(trainer, "strategy"), _made_in(recipe, "data")
    places = {
        "num_nodes": (trainer, "num_nodes"), "num_gpus_per_node": (trainer, "devices"),
        "mbs": (data, "micro_batch_size"), "gbs": (data, "global_batch_size"),
        "tp_size": (strategy, "tensor_model_parallel_size"),
        "pp_size": (strategy, "pipeline_model_parallel_size"),
        "cp_size": (strategy, "context_parallel_size"),
        "vp_size": (strategy, "virtual_pipeline_model_parallel_size"),
        "ep_size": (strategy, "expert_model_parallel_size"),
        "etp_size": (strategy, "expert_tensor_parallel_size"),
    }  # fmt: skip
    for name, (record, field) in places.items():
        if name in named:
            record.fields[field] = named[name]
    if isinstance(named.get("tp_size"), int):
        strategy.fields["sequence_parallel"] = named["tp_size"] > 1
    if named.get("compute_dtype") == "fp8":
        precision = {"mxfp8": "bf16_with_mxfp8_mixed"}.get(
            str(named.get("fp8_recipe")), "bf16_with_fp8_mixed"
        )
        trainer.fields["plugins"] = Record(precision)
    ddp, config = _made_in(strategy, "ddp"), _made_in(_made_in(recipe, "model"), "config")
    if named.get("compute_dtype"):
        ddp.fields["grad_reduce_in_fp32"] = False
    if named.get("use_mcore_fsdp") is True:
        ddp.fields["use_megatron_fsdp"] = True
    layers = named.get("recompute_layers")
    if isinstance(layers, int) and layers > 0:
        config.fields |= {
            "recompute_granularity": "full", "recompute_method": "block",
            "recompute_num_layers": layers,
        }  # fmt: skip
    return recipe


def _made_in(record: Record, name: str) -> Record:
    """A field that is an object, made where it is not known."""
    held = record.fields.get(name)
    if not isinstance(held, Record):
        held = Record(f"{record.name}.{name}", of=record, made=False)
        record.fields[name] = held
    return held


def _unchanged(recipe: Any = None, *_given: Any, **_named: Any) -> Any:
    """A helper that changes nothing of the degrees and the batch."""
    return recipe


# Helpers of NeMo's scripts/performance, which are not beside the recipes that call them.
SPECIAL: Mapping[str, Any] = {
    "set_primary_perf_configs": set_primary,
    "set_exp_logging_configs": _unchanged,
    "set_perf_optimization_configs": _unchanged,
}
