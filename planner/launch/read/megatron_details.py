"""What Megatron's options say of a model beside its shape: rotary positions, router, norms.

The way back of `planner.launch.megatron_table`, which has the options' names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel

from planner.job.specs import MlaSpec, RopeScaling, RopeSpec
from planner.launch import megatron_positions as positions
from planner.launch.megatron_row import MegatronRow
from planner.launch.megatron_table import BALANCING, LOSSES, option
from planner.launch.read.megatron_arguments import Arguments

_LOSSES = {name: over for over, name in LOSSES.items()} | {"global_aux_loss": "batch"}


def plain_fields(
    arguments: Arguments, rows: Sequence[MegatronRow], kind: type[BaseModel], table: str
) -> dict[str, Any]:
    """Fields of a table of the model that an option says as they are, as `moe.top_k`.

    What nothing states, and no default of Megatron's, is left to the table's own default; 0 where
    it has none, which the table refuses.
    """
    found: dict[str, Any] = {}
    for entry in rows:
        before, _, name = entry.fields[0].rpartition(".")
        if not entry.plain or not entry.key or before != table:
            continue
        field = kind.model_fields[name]
        value = _plain(arguments, entry.name, field.annotation)
        if value or field.is_required():
            found[name] = value or 0
    return found


def _plain(arguments: Arguments, name: str, annotation: Any) -> object:
    """The value of an option as the type of its field."""
    types = _types(annotation)
    if bool in types:
        return arguments.has(name)
    return arguments.real(name) if float in types else arguments.number(name)


def _types(annotation: Any) -> set[Any]:
    """The types of a union, without what annotates them."""
    inner = get_args(annotation)
    return set().union(*map(_types, inner)) if inner else {annotation}


def read_rope(arguments: Arguments, mla: MlaSpec | None) -> RopeSpec:
    """Base, and how frequencies are stretched."""
    found = _scaling(arguments, mla)
    return RopeSpec(
        theta=arguments.real(option("rope.theta")) or 10000.0,
        scaling=RopeScaling.model_validate(found) if found else None,
    )


def _scaling(arguments: Arguments, mla: MlaSpec | None) -> dict[str, Any] | None:
    number, real = arguments.number, arguments.real
    factor = real(option("rope.scaling.factor"))
    if mla is not None:
        if arguments.text(positions.LATENT_STRETCH.name) == "rope" or factor <= 1.0:
            return None
        return {
            "kind": "yarn",
            "factor": factor,
            "original_positions": positions.MLA_YARN[0],
            **_scores(arguments),
        }
    if arguments.text(option("position")) == "yarn" and factor > 1.0:
        scores = _scores(arguments)
        return {
            "kind": "yarn",
            "original_positions": positions.MLA_YARN[0],
            **plain_fields(arguments, positions.POSITIONS, RopeScaling, "rope.scaling"),
            **({} if tuple(scores.values()) == (1.0, 0.0) else scores),
            "truncate": not arguments.has(option("rope.scaling.truncate")),
        }
    if arguments.has(positions.LLAMA3_STRETCH.name):
        # Megatron-LM's flags hand no factor on; Bridge's field is one.
        states = arguments.has(option("rope.scaling.factor"))
        stretched = factor if states else positions.LLAMA3_FACTOR
        return {"kind": "llama3", "factor": stretched, "original_positions": positions.LLAMA3[0]}
    if interpolation := number(positions.LINEAR_STRETCH.name):
        return {"kind": "linear", "factor": interpolation}
    return None


def _scores(arguments: Arguments) -> dict[str, float]:
    """How yarn scales scores."""
    names = ("mscale", "mscale_all_dim")
    return {name: arguments.real(option(f"rope.scaling.{name}")) for name in names}


def read_router(arguments: Arguments) -> dict[str, Any]:
    """Fields of MoeSpec that say how experts are weighed and balanced, beside the plain ones."""
    sigmoid = arguments.text(option("moe.score")) == "sigmoid"
    bias = arguments.has(option("moe.score_correction_bias"))
    balancing, *_ = arguments.many(BALANCING.name) or (LOSSES["batch"],)
    coefficients = arguments.many(option("moe.aux_loss"))
    loss = float(coefficients[0]) if coefficients and balancing in _LOSSES else 0.0
    return {
        "score": "sigmoid" if sigmoid else "softmax",
        "normalised": not arguments.has(option("moe.normalised")),
        "router_fp32": arguments.text(option("moe.router_fp32")) is not None,
        "bias_update_rate": arguments.real(option("moe.bias_update_rate")) if bias else 0.0,
        "aux_loss": loss,
        "aux_loss_over": _LOSSES[balancing] if loss else "batch",
    }
