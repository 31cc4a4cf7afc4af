"""What rows of Megatron's table are made of, and hybrids: models by a pattern of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from constraints.rule import Layout
from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    ArchitectureRow,
    as_it_is,
    has_mla,
    has_rope,
    has_table_of,
    nothing,
    scaling_kind,
)
from planner.launch.architecture import without as absent
from planner.launch.dialects.megatron.flags import Flag, flag
from planner.launch.quoting import Value


@dataclass(frozen=True, slots=True)
class MegatronRow(ArchitectureRow):
    """`key`: the flag; `field`: Bridge's, below `model.`; `bridge`: its value there if another.

    `plain`: the flag has the value of our field, and is read back as it.
    """

    field: str = ""
    bridge: Callable[[ModelSpec], Value] | None = None
    # Why the command line has not what Bridge has.
    no_flag: Callable[[ModelSpec], str | None] = nothing
    plain: bool = False

    @property
    def name(self) -> str:
        """The flag without its dashes."""
        return self.key.removeprefix("--")

    def override(self, model: ModelSpec) -> Value:
        """Bridge's value."""
        return (self.bridge or self.value)(model)


def row(
    fields: str,
    flag: str = "",
    field: str = "",
    value: Callable[[ModelSpec], Value] | None = None,
    default: Value = ...,  # type: ignore[assignment]
    **more: object,
) -> MegatronRow:
    """A row, its fields as words; without a value as `planner.launch.architecture.row` has it."""
    names = tuple(fields.split())
    if (flag or field) and value is None:
        value = as_it_is(names[0])
        more = {"when": has_table_of(names[0]), "plain": True} | more
    return MegatronRow(names, flag, value or nothing, default, field=field, **more)  # type: ignore[arg-type]


def switch(
    fields: str,
    flag: str,
    field: str = "",
    is_on: Callable[[ModelSpec], object] | None = None,
    **more: object,
) -> MegatronRow:
    """A flag that is there, and true for Bridge, where `is_on` holds: without it, where the field
    itself is true."""
    first = fields.partition(" ")[0]
    holds = is_on or as_it_is(first)
    if is_on is None:
        more = {"when": has_table_of(first), "plain": True} | more
    bridge = {"bridge": lambda model: bool(holds(model))}
    return row(fields, flag, field, lambda model: yes(bool(holds(model))), None, **bridge, **more)


def without(name: str, phrase: str) -> MegatronRow:
    """A field that Megatron does not know."""
    absence = absent(name, phrase)
    return MegatronRow(absence.fields, refuses=absence.refuses)


def yes(value: bool) -> bool | None:
    """A switch: present or not."""
    return True if value else None


def unless(right: Callable[[ModelSpec], bool], phrase: str) -> Callable[[ModelSpec], str | None]:
    """The phrase where a model is not right."""
    return lambda model: None if right(model) else phrase


def pattern(marks: list[bool]) -> str:
    """A mark a layer as Megatron evaluates it: `([0]*3+[1]*58)`."""
    runs = [(int(mark), len(list(run))) for mark, run in groupby(marks)]
    period = _period(marks)
    if period is not None:
        unit = ",".join(str(int(mark)) for mark in marks[:period])
        return f"([{unit}]*{len(marks) // period})"
    return "(" + "+".join(f"[{mark}]*{count}" for mark, count in runs) + ")"


def _period(marks: list[bool]) -> int | None:
    """Smallest number of layers after which all marks repeat, if they do so exactly."""
    for period in range(2, len(marks) // 2 + 1):
        if len(marks) % period == 0 and marks == marks[:period] * (len(marks) // period):
            return period
    return None


# Factor and lengths that `_apply_scaling` of rotary_pos_embedding.py has, and that no flag reaches.
LLAMA3 = (8192, 1.0, 4.0)
LLAMA3_FACTOR = 8.0
# MLATransformerConfig's length and rotations, which have no flag.
MLA_YARN = (4096, 32.0, 1.0)


def rotates_plainly(model: ModelSpec) -> bool:
    """Latent attention with rotary positions that nothing stretches: Megatron's fused kernel of
    latent attention takes yarn's alone (transformer_config.py, MLATransformerConfig)."""
    return has_mla(model) and has_rope(model) and scaling_kind(model) != "yarn"


PATTERN = "hybrid-layer-pattern"
SPEC = "spec"
PREDICTORS, BLOCKS = "/", "|"
DELTA_NET = "gated_delta_net"
_HYBRID = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
CHUNK, DELTA_CHUNK = 128, 64


def is_hybrid(model: ModelSpec) -> bool:
    """Whether Megatron trains it as a hybrid, by a pattern of layers."""
    separate = any("none" in (kind.attention, kind.ffn) for kind in model.kinds)
    return (model.has_states and not is_delta(model)) or separate


def is_delta(model: ModelSpec) -> bool:
    """Whether its states are gated delta nets'."""
    return model.state_space is not None and model.state_space.kind == "gated_delta"


def hybrid_flags(model: ModelSpec, layout: Layout) -> tuple[Flag, ...]:
    """The pattern of layers, `|` between the blocks of a pipeline, `/` before each prediction."""
    pattern, start, blocks = layer_pattern(model), 0, []
    for count in layout.block_layers if layout.pp > 1 else (len(pattern),):
        blocks.append(pattern[start : start + count])
        start += count
    predictors = (PREDICTORS + ("*E" if model.moe else "*-")) * model.mtp_layers
    return flag(f"--{SPEC}", *_HYBRID), flag(f"--{PATTERN}", BLOCKS.join(blocks) + predictors)
