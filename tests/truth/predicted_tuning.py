"""Models that are trained in part, against counts made with peft and bitsandbytes.

The planner's profile of transformers is the Trainer with `bf16=True`: autocast over weights in 16
bits. Rows that were counted without autocast, or on a base that was or was not prepared for
training, change its rules for adapters accordingly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.cost.keys import weight_elements
from planner.job.frameworks.adapters import tuned_profile
from planner.job.frameworks.profile import DtypeModeName, load_framework, with_tables
from planner.job.job import Job
from planner.job.parameter_classes import parameter_classes
from planner.job.recompute import Module
from planner.job.tuning import Tuning, read_tuning
from planner.job.tuning_checks import checked
from planner.predict.cost_tables import class_names, held_classes, job_pieces
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Piece
from planner.predict.ops.table import pieces
from planner.predict.saved import Key, rank_key, saved_bytes
from tests.truth.predicted import Compared, Row, counted_job, figures_of, reference_model
from tests.truth.tuning_counts import PARAMETERS, tuning_counts, tuning_label

_MODES: dict[str, DtypeModeName] = {"bf16": "bf16", "bf16-amp": "bf16", "amp": "amp"}
_CHECKPOINTING = {"none": Module.NOTHING, "full": Module.FULL}
# Cells that a row of parameters shares with those of the runs of the same model.
_SHARED = ("model", "mode", "method", "rank", "targets", "dropout", "adapter", "base", "whole",
           "prepared", "freeze")  # fmt: skip
HELD = ("frozen_bytes", "quantised_bytes", "trained_bytes", "gradient_bytes", "state_bytes")


def is_planned(row: Row) -> bool:
    """Whether the planner has what was counted.

    Left out: weights in 16 bits that are trained as a whole under autocast, of models whose
    LayerNorms it computes in fp32 (`--train full` is without autocast there).
    """
    spec = reference_model(row["model"])
    autocast = row["method"] == "full" and row["mode"] == "bf16-amp"
    return not (autocast and spec.norm == "layernorm")


def tuning_of(row: Row) -> Tuning:
    """What `--train` and `--freeze` say of a row."""
    cells = ("rank", "targets", "dropout", "adapter", "base", "whole")
    moe = reference_model(row["model"]).moe is not None
    # peft makes so much of the word for models whose experts are one tensor.
    row = (
        row | {"targets": "all-linear experts router"}
        if moe and row["targets"] == "all-linear"
        else row
    )
    said = ",".join(f"{name}={row[name].replace(' ', '+')}" for name in cells if row[name])
    return read_tuning(f"{row['method']}:{said}".removesuffix(":"), row["freeze"].split())


def tuned_job(row: Row) -> Job:
    """The job of a row, on one device."""
    tuning = tuning_of(row)
    model = reference_model(row["model"]).with_mtp(0).with_frozen(tuning.frozen_layers)
    prepared = row["prepared"] == "1"
    rules: dict[str, Any] = {"upcasts_norms": prepared, "upcasts_tables": prepared}
    if row["mode"] == "bf16":
        rules["cast_bytes"] = 4.0
    profile = with_tables(load_framework("hf-transformers"), {"adapters": rules})
    mode = _MODES[row["mode"]]
    job = counted_job(
        model, profile, int(row.get("seq") or 2048), mode,
        attention="eager" if row.get("attention") == "eager" else "flash",
        tuning=checked(tuning, model),
    )  # fmt: skip
    return replace(job, framework=tuned_profile(job.framework, tuning, model))


def tuned_context(row: Row) -> tuple[OpContext, Key]:
    """Context and key of a row."""
    job, mbs = tuned_job(row), int(row.get("mbs") or 1)
    context = OpContext(
        job.model, job.framework, job.seq, attention=job.attention, mode=job.dtype,
        one_sequence=mbs == 1, tuning=job.tuning,
    )  # fmt: skip
    modules = _CHECKPOINTING[row.get("checkpointing") or "none"]
    return context, rank_key(mbs=mbs, recompute=modules)


def compare_tuned_activations(row: Row) -> Iterator[Compared]:
    """What one more layer keeps for backward, with casts of weights, and the whole model with all
    that it holds besides."""
    context, key = tuned_context(row)
    kinds, table = context.model.kind_indices, pieces(context)
    layers = [_kept(table[index], context, key) for index in range(len(context.model.kinds))]
    ends = sum(_kept(piece, context, key) for piece in table[len(layers) :])
    counted = _number(row, "per_layer") + _number(row, "weight_casts_per_layer")
    yield Compared(tuning_label(row), "layer", counted, layers[kinds[-1]])
    trained = zip(context.model.kinds, layers, strict=True)
    if len({size for kind, size in trained if not kind.frozen}) > 1:
        return
    held = held_bytes(row)
    whole = sum(_number(row, name) for name in ("non_layer", "weight_casts_non_layer"))
    if context.tuning.has_adapters:
        # The profile of the planner has embeddings whose outputs need gradients.
        whole += _number(row, "first_layer")
    predicted = held + ends + sum(layers[index] for index in kinds)
    counted = held + whole + counted * context.model.layers
    yield Compared(tuning_label(row), "whole", counted, predicted)


def _number(row: Row, column: str) -> float:
    return float(row[column])


def held_bytes(row: Row) -> float:
    """Weights, gradients and states of the model of a run, as they were counted."""
    [found] = [
        one for one in tuning_counts(PARAMETERS) if all(one[cell] == row[cell] for cell in _SHARED)
    ]
    return sum(float(found[name]) for name in HELD)


def _kept(piece: Piece, context: OpContext, key: Key) -> float:
    """Bytes that a piece keeps for backward, casts of weights included."""
    rows = [row for op in piece.ops for row in op.saved if row.kept_under(Module(key.modules))]
    casts = 0.0 if key.modules and piece.name.startswith("layer") else _casts(piece, context, key)
    return sum(saved_bytes(row, context, key) for row in rows) + casts


def _casts(piece: Piece, context: OpContext, key: Key) -> float:
    elements = sum(weight_elements(op, key) for op in piece.ops if op.autocasts)
    return context.saved.weight_cast_bytes * elements


def compare_tuned_parameters(row: Row) -> Iterator[Compared]:
    """Parameters that are held and trained, and bytes of weights, gradients and AdamW's states."""
    job = tuned_job(row)
    table, kinds = job_pieces(job), job.model.kind_indices
    counts = [*(kinds.count(index) for index in range(len(job.model.kinds))), 1, 1]
    ops = [(op, count) for piece, count in zip(table, counts, strict=True) for op in piece.ops]
    trained = [(op, count) for op, count in ops if op.trains]
    figures = {
        "total": sum(count * op.parameter_count for op, count in ops),
        "trained": sum(count * op.parameter_count for op, count in trained),
        "trained_per_layer": sum(op.parameter_count for op in table[kinds[-1]].ops if op.trains),
    }  # fmt: skip
    yield from figures_of(row, tuning_label(row), (figures | _bytes_by_use(job)).items())


def _bytes_by_use(job: Job) -> dict[str, float]:
    """Bytes of a job's parameters by what they are for, as the compiled core is told of classes."""
    found, state = dict.fromkeys(HELD, 0.0), job.framework.state
    moment = state.optimizer_state_element_bytes if job.optimizer.follows_weights else 4.0
    held = held_classes(job, job.framework)
    for name, (one, count) in zip(class_names(job_pieces(job)), held, strict=False):
        known = parameter_classes()[name]
        use = "trained" if known.trained else "quantised" if known.packed else "frozen"
        found[f"{use}_bytes"] += one.weights * state.weight_bytes * count
        found["gradient_bytes"] += one.gradients * state.gradient_bytes * count
        found["state_bytes"] += 2.0 * one.states * moment * count
    return found
