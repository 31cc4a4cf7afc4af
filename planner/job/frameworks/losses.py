"""How an objective changes a framework's profile: the logits that its loss stores and moves, and
whether the framework supports it at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.errors import UsageError
from planner.job.frameworks.profile import (
    FrameworkProfile,
    Tables,
    frameworks_with,
    with_tables,
)
from planner.job.objective import Objective

if TYPE_CHECKING:
    from constraints.condition import UserCondition

# Bytes per logit that the loss row of the op table moves, forward and backward, at a `loss_traffic`
# of 1 (`planner.predict.ops.table`).
LOSS_ROW_BYTES = 22.0
# A loss that multiplies by the head's weights itself, a chunk of tokens at a time: the logits and
# gradients of one chunk, as in Liger (`liger-kernels` of hf-transformers.toml).
_CHUNKED: Tables = {
    "saved": {
        "linear_loss": True,
        "logits_saved_bytes": 0.0,
        "logits_peak_bytes": 4.0,
        "logits_forward_bytes": 4.0,
    },
    "kernels": {"loss_traffic": 0.45},
}
# Liger's losses over sequences: logits and gradients of one pair (one row if unpaired), computed in
# forward. Counted operator by operator on the DPO, ORPO, SimPO and CPO losses of liger-kernel 0.6:
# 16.0 bytes per logit of a pair (DPO without a reference 14.0), whatever the number of pairs. They
# move as many bytes as torch's cross-entropy.
_OF_ROWS: Mapping[str, float] = {
    "linear_loss": True,
    "logits_saved_bytes": 0.0,
    "logits_peak_bytes": 16.0,
    "logits_forward_bytes": 16.0,
}
_OF_ROWS_TRAFFIC = 2.0
# One score per row instead of logits.
_SCORES: Tables = {
    "saved": {
        "linear_loss": True,
        "logits_saved_bytes": 0.0,
        "logits_peak_bytes": 0.0,
        "logits_forward_bytes": 0.0,
    },
}


# Logits as a loss receives them: in fp32 or 16 bits from a trainer, for a part of the vocabulary,
# or as the model returns them.
Handed = Literal["fp32", "half", "sharded", "whole"]


class LossBytes(Named):
    """Bytes per logit; the fields of `losses.toml`."""

    name: str
    saved: float
    peak: float
    beside: float
    moved: float
    read: float
    reading: float = 0.0


@cache
def loss_bytes(kind: str, logits: Handed, framework: str = "") -> LossBytes | None:
    """Bytes that a loss on logits of a type stores and moves; None if it uses the framework's
    cross-entropy. `framework`: the framework that brings its own implementation of the loss."""
    tables: Mapping[str, Any] = shipped_toml("planner.job", "losses.toml")
    found = {
        table.get("framework", ""): table[logits]
        for table in tables.values()
        if kind in table["objectives"] and logits in table
    }
    chosen = found.get(framework) or found.get("")
    return LossBytes(name=kind, **chosen) if chosen else None


def demand_adapters(profile: FrameworkProfile, objective: Objective, *, has_adapters: bool) -> None:
    """Raise UsageError if the framework supports an objective only with adapters and there are
    none."""
    if objective.kind in profile.adapter_objectives and not has_adapters:
        raise UsageError(
            f"--objective {objective}: {profile.name} has {objective.rules.words} only for "
            "adapters; give --train lora"
        )


def demand_objective(profile: FrameworkProfile, objective: Objective) -> None:
    """Raise UsageError if the framework does not support an objective."""
    kind = objective.kind
    if kind in ("lm", "policy") or kind in profile.objectives:
        return
    having = frameworks_with(lambda other: other.listed and kind in other.objectives)
    raise UsageError(
        f"--objective {objective}: {profile.name} does not support {objective.rules.words}; "
        f"frameworks that have it: {', '.join(having)}"
    )


def objective_conditions(
    profile: FrameworkProfile, objective: Objective
) -> tuple[UserCondition, ...]:
    """Conditions on the degrees that follow from an objective.

    KTO takes its mismatched answers from its own micro-batch. A micro-batch of one sample has none,
    and TRL refuses it (kto_trainer.py: "batch size must be > 1").
    """
    from constraints.condition import user_condition

    if objective.kind != "kto" or profile.loss_logits == "tokens":
        return ()
    return (replace(user_condition("require", "mbs > 1"), of=f"--objective {objective}"),)


@cache
def with_objective(profile: FrameworkProfile, objective: Objective) -> FrameworkProfile:
    """The profile as it trains for an objective; equal arguments give the same object. UsageError
    if the framework does not support it."""
    demand_objective(profile, objective)
    if objective.is_plain:
        return profile
    if objective.rules.scores:
        return _with_note(with_tables(profile, _SCORES), "one score per sample, and no logits")
    if objective.logits == "chunked":
        return _with_note(with_tables(profile, _CHUNKED), _OF_CHUNKS)
    found = _own_loss(profile, objective)
    if found is None:
        return _by_rows(profile, objective)
    peak = found.beside if objective.reference in ("none", "precomputed") else found.peak
    if objective.teacher is not None:
        peak = found.peak
    forward = 0.0 if handed_logits(profile, objective) in ("half", "whole") else _CAST_BYTES
    share = objective.answers
    saved = {
        "logits_saved_bytes": share * found.saved,
        "logits_peak_bytes": share * peak,
        "logits_forward_bytes": share * max(0.0, forward - found.saved),
    }
    moved = share * found.moved / LOSS_ROW_BYTES
    changed = with_tables(profile, {"saved": saved, "kernels": {"loss_traffic": moved}})
    if objective.kind == "policy":
        return changed
    return _with_note(changed, _note(profile, objective))


def _with_note(profile: FrameworkProfile, note: str) -> FrameworkProfile:
    """The profile with the assumption about this loss in place of the one about the usual loss."""
    kept = (text for text in profile.assumptions if text != _OF_TOKENS)
    return profile.model_copy(update={"assumptions": (*kept, note)})


def _by_rows(profile: FrameworkProfile, objective: Objective) -> FrameworkProfile:
    """The profile with Liger's loss over rows. Distillation keeps its own, because each token has a
    loss."""
    tokens = profile.loss_logits == "tokens" or objective.teacher is not None
    if tokens or objective.kind in ("lm", "policy"):
        return profile
    saved = {**_OF_ROWS, "loss_rows": objective.rules.rows}
    return with_tables(profile, {"saved": saved, "kernels": {"loss_traffic": _OF_ROWS_TRAFFIC}})


# Notes in profiles about losses other than this one.
_OF_TOKENS = "fp32 logits and an unfused cross-entropy"
_OF_CHUNKS = "the loss computes a chunk of logits at a time"


def _note(profile: FrameworkProfile, objective: Objective) -> str:
    """The assumption made about the logits."""
    if profile.name == "torchtune":
        return "the loss receives all logits of a micro-batch, and is not compiled"
    text = "the loss receives all logits of a micro-batch, as in TRL 1.10"
    if objective.kind in ("dpo", "ipo", "kto"):
        text += "; TRL 1.16 computes a chunk of them at a time: --objective with logits=chunked"
    return text


# 16-bit logits beside their fp32 copy, at the end of the model's forward pass.
_CAST_BYTES = 6.0


def _own_loss(profile: FrameworkProfile, objective: Objective) -> LossBytes | None:
    """The loss of an objective that makes logits but does not use the framework's cross-entropy;
    else None."""
    if profile.saved.linear_loss:
        return None
    if objective.kind == "policy":
        return loss_bytes("policy", handed_logits(profile, objective), objective.loss)
    if profile.loss_logits == "tokens":
        return None
    return loss_bytes(objective.kind, handed_logits(profile, objective), profile.name)


def handed_logits(profile: FrameworkProfile, objective: Objective) -> Handed:
    """Type of the logits that a sequence loss or policy loss works on."""
    if objective.kind == "policy" and loss_bytes("policy", "fp32", objective.loss) is None:
        return "sharded" if profile.parallelism.vocabulary_padded else "whole"
    wide = objective.logits == "fp32" or profile.loss_logits == "fp32"
    return "fp32" if wide else "half"


def read_bytes(profile: FrameworkProfile, objective: Objective) -> float:
    """Bytes per logit that the loss moves for a model that is only read."""
    found = _own_loss(profile, objective)
    if found is not None:
        return objective.answers * found.read
    return _FORWARD_BYTES * profile.kernels.loss_traffic


def reading_bytes(profile: FrameworkProfile, objective: Objective) -> float:
    """Bytes per logit in memory, besides what is kept for backward, while a reference or teacher is
    read; 0 if that happens before the policy's forward."""
    found = _own_loss(profile, objective)
    return found.reading if found is not None else 0.0


def reading_peak_bytes(profile: FrameworkProfile, objective: Objective) -> float:
    """Peak bytes per logit while a pass only reads the policy: the loss's own figure if it has one.
    For losses over chunks and the framework's own cross-entropy, the peak of a training forward
    pass."""
    found = _own_loss(profile, objective)
    if found is not None and found.reading:
        return objective.answers * found.reading
    return profile.saved.logits_forward_bytes + profile.saved.logits_saved_bytes


# For the framework's cross-entropy (`planner.predict.ops.table`).
_FORWARD_BYTES = 14.0
