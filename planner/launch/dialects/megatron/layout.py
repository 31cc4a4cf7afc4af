"""How Megatron's options spread the layers over pipeline stages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.cost.layout import usual_split
from planner.launch.dialects.megatron.arguments import Arguments
from planner.launch.dialects.megatron.details import read_blocks
from planner.launch.dialects.megatron.flags import layout_text
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_LAYOUT
from planner.launch.dialects.megatron.table import PATTERN, option
from planner.launch.languages.text import digits
from planner.launch.read.found import Edit, Problem
from planner.launch.read.names import effect_of

_NAMES = {name: option.name for name, option in MEGATRON_LAYOUT.items()}
_PER_STAGE, _STAGES, _LAYOUT = _NAMES["chunk-layers"], _NAMES["chunks"], _NAMES["blocks"]
_FIRST, _LAST = _NAMES["first-layers"], _NAMES["last-layers"]
_EMBEDDING, _LOSS = _NAMES["counts-embedding"], _NAMES["counts-loss"]
_PREDICTORS, _LAYERS, _PP = option("mtp_layers"), option("layers"), MEGATRON["pp"].name
_MOST_BLOCKS = 4096


@dataclass
class Split:
    """The placement of layers on pipeline stages. `vpp`: chunks per stage; `blocks`: the number of
    layers of each pipeline block in order, None if not stated; `mtp_standalone`: multi-token
    prediction is in the block before the last."""

    vpp: int = 1
    blocks: tuple[int, ...] | None = None
    mtp_standalone: bool = False
    problems: list[Problem] = field(default_factory=list)


def read_split(arguments: Arguments, layers: int, pp: int) -> Split:
    """The placement of layers that the options ask for, and the problems that Megatron would
    refuse. A default `Split` if the number of layers is 0 (unknown)."""
    split = Split()
    if not layers:
        return split
    wrong = None
    if blocks := read_blocks(arguments):
        split.vpp, split.blocks = len(blocks) // pp, blocks
        if len(blocks) % pp:
            split.vpp, split.blocks = 1, None
            text = f"--{PATTERN} has {len(blocks)} segments, not a multiple of pp {pp}"
            wrong = arguments.problem("layout-stages", text, PATTERN)
    else:
        chunked = [name for name in (_PER_STAGE, _STAGES, _LAYOUT) if arguments.has(name)]
        if len(chunked) > 1:
            text = "give at most one of " + ", ".join(f"--{name}" for name in chunked)
            split.problems.append(arguments.problem("vpp-options", text, *chunked))
        has_ends = arguments.number(_FIRST) or arguments.number(_LAST)
        read = _read_edge_stages if has_ends else _read_even
        read = _read_layout if arguments.has(_LAYOUT) else read
        wrong = read(arguments, layers, pp, split)
    split.problems += [wrong] if wrong else []
    return split


def _read_even(arguments: Arguments, layers: int, pp: int, split: Split) -> Problem | None:
    """Read equal stages of equal chunks; embedding and loss may count as one layer each."""
    first, last = arguments.has(_EMBEDDING), arguments.has(_LOSS)
    layers += first + last
    per_stage, rest = divmod(layers, pp)
    if rest:
        nearest = [pp * item for item in (per_stage, per_stage + 1) if item]
        divisors = [index for index in range(1, layers + 1) if layers % index == 0]
        close = min(divisors, key=lambda divisor: abs(divisor - pp))
        text = (
            f"pp {pp} does not divide {layers} layers (those that count); Megatron then wants "
            f"--{_FIRST}, --{_LAST} or --{_LAYOUT}; pp {close} does, and so would "
            f"{' or '.join(map(str, nearest))} layers"
        )
        # Replace the split with stages that differ by at most one layer.
        even = layout_text(usual_split(layers, pp), arguments.number(_PREDICTORS) or 0)
        others = (_PER_STAGE, _STAGES, _EMBEDDING, _LOSS)
        gone = (Edit(f"--{name}", None) for name in others if arguments.has(name))
        edits = (Edit(f"--{_LAYOUT}", f'"{even}"'), *gone) if layers >= pp else ()
        return arguments.problem("layers-by-pp", text, _PP, _LAYERS, edits=edits)
    per_chunk, chunks = arguments.number(_PER_STAGE), arguments.number(_STAGES) or 1
    vpp = per_stage // per_chunk if per_chunk else chunks
    divides = vpp > 0 and not per_stage % vpp and not (per_chunk and per_stage % per_chunk)
    split.vpp = vpp if divides else 1
    blocks = [per_stage // split.vpp] * (pp * split.vpp)
    blocks[0] -= first
    blocks[-1] -= last
    split.blocks = tuple(blocks)
    if divides:
        return None
    name, wanted = (_PER_STAGE, per_chunk) if per_chunk else (_STAGES, chunks)
    text = f"--{name} {wanted} does not divide the {per_stage} layers of a stage"
    # The nearest number that divides a stage's layers; for a single chunk, remove the option.
    divisors = [number for number in range(1, per_stage + 1) if per_stage % number == 0]
    close = min(divisors, key=lambda number: abs(number - wanted), default=1)
    whole = close == (per_stage if name == _PER_STAGE else 1)
    edits = (Edit(f"--{name}", None if whole else str(close)),)
    return arguments.problem("layers-by-chunk", text, _PER_STAGE, _STAGES, edits=edits)


def _read_edge_stages(arguments: Arguments, layers: int, pp: int, split: Split) -> Problem | None:
    """Read stated numbers of layers of the first and last stage; the stages between share the
    rest."""
    stated = (arguments.number(_FIRST), arguments.number(_LAST))
    first, last = ([] if one is None else [one] for one in stated)
    left, inner = layers - sum((*first, *last)), pp - len(first) - len(last)
    each, rest = divmod(left, inner) if inner > 0 else (0, left)
    if rest or left < 0:
        text = f"{left} layers are left for {inner} stages between the ends; they must share them"
        return arguments.problem("layers-by-ends", f"{text} equally", _FIRST, _LAST)
    if arguments.has(_PER_STAGE):
        text = f"with uneven ends give --{_STAGES} instead of --{_PER_STAGE}"
        return arguments.problem("vpp-options", text, _PER_STAGE)
    stages, vpp = [*first, *[each] * inner, *last], arguments.number(_STAGES) or 1
    divides = not any(stage % vpp for stage in stages)
    split.vpp = vpp if divides else 1
    split.blocks = tuple(stage // split.vpp for stage in stages) * split.vpp
    text = f"--{_STAGES} {vpp} does not divide stages of {stages} layers"
    return None if divides else arguments.problem("layers-by-chunk", text, _STAGES)


def _read_layout(arguments: Arguments, layers: int, pp: int, split: Split) -> Problem | None:
    """Read a layout such as `Et*19|t*20|t*21|t*20L`."""
    text = arguments.text(_LAYOUT) or ""
    stages = expand_layout(text)
    if stages is None:
        return arguments.problem("layout-text", f"--{_LAYOUT} {text!r} cannot be read", _LAYOUT)
    counts = tuple(stage.count("t") for stage in stages)
    has_ends = stages[0][:1] == "E" and stages[-1][-1:] == "L" and "".join(stages).count("E") == 1
    ends = "wants the embedding (E) as its first letter and the loss (L) as its last, each once"
    rules: tuple[tuple[bool, str, str, tuple[str, ...]], ...] = (
        (len(stages) % pp == 0, "layout-stages",
         f"has {len(stages)} stages, not a multiple of pp {pp}", ()),
        (sum(counts) == layers, "layout-layers",
         f"has {sum(counts)} layers, --{_LAYERS} {layers}", (_LAYERS,)),
        (has_ends, "layout-ends", ends, ()),
    )  # fmt: skip
    for holds, rule, words, names in rules:
        if not holds:
            return arguments.problem(rule, f"--{_LAYOUT} {words}", _LAYOUT, *names)
    split.vpp, split.blocks = len(stages) // pp, counts
    return _read_predictors(arguments, stages, pp, split)


def _read_predictors(
    arguments: Arguments, stages: list[str], pp: int, split: Split
) -> Problem | None:
    """Check the place of multi-token prediction: `m` must come after all layers, in one stage, in
    the stated number (megatron-core 0.19.2, `PipelineParallelLayerLayout.validate_layer_layout`).
    In the last stage, or in the one before it and away from the embedding, it is costed there; any
    other place gives a warning."""
    wanted, found = arguments.number(_PREDICTORS) or 0, "".join(stages).count("m")
    if found != wanted:
        has = f"--{_LAYOUT} has {found} multi-token-prediction layers (m), --{_PREDICTORS} {wanted}"
        return arguments.problem("layout-mtp", has, _LAYOUT, _PREDICTORS)
    if not found:
        return None
    if refusal := _misplaced(stages, pp):
        return arguments.problem("layout-mtp", f"--{_LAYOUT} {refusal}", _LAYOUT)
    split.mtp_standalone = "m" not in stages[-1] and "m" in stages[-2] and pp > 2
    if "m" in stages[-1] or split.mtp_standalone:
        return None
    first = "beside the embedding's stage"
    where = first if pp == 2 else "with empty stages between it and the loss"
    text = (
        f"--{_LAYOUT}: multi-token prediction (m) {where} runs, but is costed on the last stage: "
        "that one has less memory and time, the one with m more"
    )
    return arguments.problem("not-modelled", text, _LAYOUT, severity="warning")


def _misplaced(stages: list[str], pp: int) -> str:
    """Why Megatron refuses the place of a layout's `m`; empty if it does not."""
    having = [index for index, stage in enumerate(stages) if "m" in stage]
    if len(having) > 1:
        return f"splits multi-token prediction (m) over {len(having)} stages; put all in one"
    if "t" in "".join(stages).partition("m")[2]:
        return "has a layer (t) behind multi-token prediction (m); put m behind all layers"
    if having[0] < len(stages) - pp:
        return "has multi-token prediction (m) in a stage that is not the last of its rank"
    return ""


def expand_layout(text: str) -> list[str] | None:
    """The stages of a layout as letters (E, t, m, L): `t*3|(tt|)*2L` becomes ttt, tt, tt, L. None
    if it cannot be read.

    Megatron's notation: `x*n` and `(…)*n` repeat, `|` ends a stage, commas may separate.
    """
    plain = text.replace(",", "").replace(" ", "")
    while (match := re.search(r"\(([^()]*)\)\*(\d+)", plain)) is not None:
        times = digits(match[2])
        if times is None or times * max(len(match[1]), 1) > _MOST_BLOCKS:
            return None
        plain = plain[: match.start()] + match[1] * times + plain[match.end() :]
    plain = re.sub(
        r"([EtmL|])\*(\d+)", lambda item: item[1] * min(int(item[2][:9]), _MOST_BLOCKS), plain
    )
    return None if re.search(r"[^EtmL|]", plain) else plain.split("|")


def unusual_splits(
    arguments: Arguments, split: Split, layers: int, pp: int, dialect: str
) -> list[Problem]:
    """Problems with splits that run but are not modelled: uneven stages in Megatron-DeepSpeed, an
    option of a fork that splits layers, and chunks without layers. Each has the name of the rule
    that such a split would otherwise break."""
    forks = [item.key for item in arguments.unknown if effect_of(item.key) == "splits"]
    uneven = dialect == "deepspeed" and layers % pp
    if uneven or (forks and pp > 1):
        text = "uneven stages of DeepSpeed's pipeline are not modelled"
        if forks:
            text = f"{forks[0]}: its split of the layers is not modelled"
        return [Problem(rule, text, "missing") for rule in ("layers-split", "chunks-have-layers")]
    counted = arguments.has(_EMBEDDING) or arguments.has(_LOSS)
    if counted and split.blocks and 0 in split.blocks:
        text = "chunks without layers are not modelled"
        names = (_EMBEDDING, _LOSS)
        return [arguments.problem("chunks-have-layers", text, *names, severity="missing")]
    return []


def grouped_micro_batches(
    arguments: Arguments, degrees: Mapping[str, Any], dp: int | None
) -> list[Problem]:
    """A problem if the size of micro-batch groups is one that the schedule accepts but the cost
    model does not."""
    name = "microbatch-group-size-per-virtual-pipeline-stage"
    group, gbs = arguments.number(name), degrees["gbs"]
    micro_batches = gbs // (degrees["mbs"] * dp) if group and gbs and dp else 0
    if not group or micro_batches % degrees["pp"] == 0 or micro_batches % group:
        return []
    text = f"--{name} {group}: only groups of pp micro-batches are modelled"
    return [arguments.problem("interleaving-microbatches", text, name, severity="missing")]
