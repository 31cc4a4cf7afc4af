"""Reads details of a model from Megatron's options: rotary positions, router, states, hybrid
layers.

The inverse of `planner.launch.dialects.megatron.table`, which has the options' names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel

from planner.job.errors import ModelError
from planner.job.models.layout import hybrid_kinds
from planner.job.quantities import stated
from planner.job.rope import RopeScaling, RopeSpec
from planner.job.specs import LayerKind, MlaSpec, StateSpaceSpec
from planner.launch.dialects.megatron import table
from planner.launch.dialects.megatron.arguments import Arguments
from planner.launch.dialects.megatron.table import BALANCING, LOSSES, MegatronRow, option

_LOSSES = {name: over for over, name in LOSSES.items()} | {"global_aux_loss": "batch"}


def plain_fields(
    arguments: Arguments, rows: Sequence[MegatronRow], kind: type[BaseModel], table: str
) -> dict[str, Any]:
    """The fields of one table of the model, such as `moe`, whose value is simply the value of an
    option.

    If an option has neither a stated value nor a Megatron default, the field keeps the table's
    default; a required field becomes 0 or None, which the table refuses.
    """
    found: dict[str, Any] = {}
    for entry in rows:
        before, _, name = entry.fields[0].rpartition(".")
        if not entry.plain or not entry.key or before != table:
            continue
        field = kind.model_fields[name]
        types = _types(field.annotation)
        read = arguments.stated_real if float in types else arguments.number
        value = arguments.has(entry.name) if bool in types else read(entry.name)
        if value is not None or field.is_required():
            found[name] = value
    return found


def _types(annotation: Any) -> set[Any]:
    """The plain types in an annotation, such as int and None in `int | None`."""
    inner = get_args(annotation)
    return set().union(*map(_types, inner)) if inner else {annotation}


def read_rope(arguments: Arguments, mla: MlaSpec | None) -> RopeSpec:
    """Base of the rotary positions, and the scaling of their frequencies."""
    found = _scaling(arguments, mla)
    return RopeSpec(
        theta=stated(arguments.stated_real(option("rope.theta")), 10000.0),
        scaling=RopeScaling.model_validate(found) if found else None,
    )


def _scaling(arguments: Arguments, mla: MlaSpec | None) -> dict[str, Any] | None:
    factor = arguments.real(option("rope.scaling.factor"))
    if mla is not None:
        if arguments.text(table.LATENT_STRETCH.name) == "rope" or factor <= 1.0:
            return None
        yarn = {"kind": "yarn", "factor": factor, "original_positions": table.MLA_YARN[0]}
        return yarn | _scores(arguments)
    if arguments.text(option("position")) == "yarn" and factor > 1.0:
        scores = _scores(arguments)
        return {
            "kind": "yarn",
            "original_positions": table.MLA_YARN[0],
            **plain_fields(arguments, table.POSITIONS, RopeScaling, "rope.scaling"),
            **({} if tuple(scores.values()) == (1.0, 0.0) else scores),
            "truncate": not arguments.has(option("rope.scaling.truncate")),
        }
    if arguments.has(table.LLAMA3_STRETCH.name):
        # Megatron-LM's flags do not pass a factor on; Bridge has a field for it.
        states = arguments.has(option("rope.scaling.factor"))
        stretched = factor if states else table.LLAMA3_FACTOR
        return {"kind": "llama3", "factor": stretched, "original_positions": table.LLAMA3[0]}
    if interpolation := arguments.number(table.LINEAR_STRETCH.name):
        return {"kind": "linear", "factor": interpolation}
    return None


def _scores(arguments: Arguments) -> dict[str, float]:
    """The two factors by which yarn scales attention scores, by field: `mscale` and
    `mscale_all_dim`."""
    names = ("mscale", "mscale_all_dim")
    return {name: arguments.real(option(f"rope.scaling.{name}")) for name in names}


def read_router(arguments: Arguments) -> dict[str, Any]:
    """Fields of MoeSpec for scoring and balancing experts, in addition to the plain ones."""
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


_OLDER = "hybrid-override-pattern"
_VARIANT = option("state_space.kind")


def hybrid_text(arguments: Arguments) -> str:
    """The layer pattern of a hybrid, with `|` between blocks and without the prediction layers;
    empty if there is none."""
    arguments.has(table.SPEC)
    found = arguments.text(table.PATTERN) or arguments.text(_OLDER) or _from_ratios(arguments)
    return found.split(table.PREDICTORS)[0]


def predictors(arguments: Arguments) -> int:
    """The number of multi-token-prediction layers, from an option or from the layer pattern."""
    arguments.has("mtp-hybrid-override-pattern")
    stated = arguments.number(option("mtp_layers")) or 0
    return stated or (arguments.text(table.PATTERN) or "").count(table.PREDICTORS)


def _from_ratios(arguments: Arguments) -> str:
    """The layer pattern of the ratio options that core had until 0.16: attention layers spread
    evenly, with mixers at both ends, then feed-forward blocks spread evenly over the mixers
    (mamba_hybrid_layer_allocation.py). Empty without those options."""
    shares = [arguments.real(f"hybrid-{part}-ratio") for part in ("attention", "mlp")]
    if not arguments.has("is-hybrid-model") and not any(shares):
        return ""
    layers = arguments.number(option("layers")) or 0
    marks = ["M"] * layers
    for symbol, share, sections in (("*", shares[0], 1), ("-", shares[1], 0)):
        count = round(layers * share)
        free = [index for index, mark in enumerate(marks) if mark == "M"]
        step = left = (len(free) - count) / (count + sections) if count else len(free) + 1.0
        for index in free:
            if left < 0.5:
                marks[index], left = symbol, left + step
            else:
                left -= 1.0
    return "".join(marks)


def read_kinds(arguments: Arguments) -> tuple[LayerKind, ...]:
    """Kinds of a hybrid's layers. If the pattern cannot be read, a problem is added and the result
    is empty."""
    text = hybrid_text(arguments).replace(table.BLOCKS, "")
    if not text:
        return ()
    try:
        return hybrid_kinds(text, f"--{table.PATTERN}")
    except ModelError as error:
        arguments.refuse("option-value", str(error), table.PATTERN, _OLDER)
        return ()


def read_blocks(arguments: Arguments) -> tuple[int, ...]:
    """Layers of each pipeline block if the pattern has `|` marks; otherwise empty."""
    text = hybrid_text(arguments)
    return tuple(map(len, text.split(table.BLOCKS))) if table.BLOCKS in text else ()


def is_delta(arguments: Arguments) -> bool:
    """Whether some layers are gated delta nets. Any other attention variant is reported as not
    modelled."""
    variant = arguments.text(_VARIANT)
    said = any(f"--{_VARIANT}" in item.text and item.rule == "not-predictable"
               for item in arguments.problems)  # fmt: skip
    if variant not in (None, table.DELTA_NET) and not said:
        text = f"--{_VARIANT} {variant}: that attention is not modelled"
        arguments.beyond(text, _VARIANT)
    return variant == table.DELTA_NET


def read_states(arguments: Arguments, hidden: int) -> StateSpaceSpec:
    """Sizes of gated delta nets or of Mamba-2 layers. By default Mamba-2 has enough heads for an
    inner width of twice the hidden size."""
    if is_delta(arguments):
        found = plain_fields(arguments, table.DELTA, StateSpaceSpec, "state_space")
        more = {"kind": "gated_delta", "conv_bias": False, "chunk": table.DELTA_CHUNK}
        return StateSpaceSpec(**found | more)
    found = plain_fields(arguments, table.MAMBA, StateSpaceSpec, "state_space")
    usual = max(1, 2 * hidden // max(1, found["head_dim"]))
    return StateSpaceSpec(**found | {"heads": stated(found["heads"], usual)})
