"""A zero that somebody states is a zero, and no sign that nothing was said."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import model_of
from planner.job.errors import ModelError
from planner.job.models.hf_config import model_from_hf_config
from planner.job.recompute import Module
from planner.job.specs import ModelSpec
from planner.launch.dialects.megatron.arguments import options, parse_arguments
from planner.launch.dialects.megatron.model import read_model
from planner.launch.dialects.megatron.table import MEGATRON
from planner.launch.languages.text import Text, Word
from planner.launch.read.found import Hints, Problem
from tests.evidence.runs.rows_for_tests import row

ROOT = Path(__file__).parents[1]


# --- the code ------------------------------------------------------------------------------------


# What is annotated as `float | None`, and as another optional: fields, properties, functions.
_REAL, _OTHER = (
    re.compile(rf"(?:def (\w+)\([^()]*\)[^:]*-> |^\s+(\w+): )[^=\n]*\b{kind} \| None", re.MULTILINE)
    for kind in ("float", "(?:int|str|bool)")
)


def _called(node: ast.expr) -> tuple[str, str]:
    """(of what, name) of what is called or read."""
    node = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Attribute):
        return getattr(node.value, "id", ""), node.attr
    return "", getattr(node, "id", "")


def _swallowed(text: str, names: set[str]) -> Iterator[int]:
    """Lines with `number or 1.0`, where the number may be 0 or None."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            number, instead = node.values[-2:]
            is_number = isinstance(instead, ast.Constant) and isinstance(instead.value, int | float)
            called = _called(number)
            if is_number and instead.value and (called[1] in names or called == ("row", "number")):
                yield node.lineno


def test_no_default_but_zero_stands_for_a_zero() -> None:
    """`or` with another number than 0, after what is annotated as `float | None`. (Where 0 is no
    count that anything has, as of nodes, another default of an `int | None` is right.)"""
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for room in ("planner", "constraints", "hardware")
        for path in sorted((ROOT / room).rglob("*.py"))
    }
    reals, others = (
        {"".join(found) for text in texts.values() for found in kind.findall(text)}
        for kind in (_REAL, _OTHER)
    )
    names = reals - others | {"real"}  # which gives 0 for none
    assert {"stated_real", "optional_number", "step_time_s"} <= names
    for swallows in ("row.number('share') or 1.0", "options.real('x') or 2", "a.step_time_s or 1"):
        assert [*_swallowed(swallows, names)] == [1]
    suspects = {path: text for path, text in texts.items() if re.search(r"\bor \d", text)}
    assert [
        f"{path}:{line}" for path, text in suspects.items() for line in _swallowed(text, names)
    ] == []


# --- Megatron's options --------------------------------------------------------------------------

DENSE = (
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --position-embedding-type rope "
    "--group-query-attention --num-query-groups 4"
)
BASES = {
    "dense": DENSE,
    "yarn": DENSE.replace("type rope", "type yarn") + " --rotary-scaling-factor 4",
    "experts": f"{DENSE} --num-experts 8 --moe-ffn-hidden-size 512 --moe-router-topk 2 --swiglu "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias",
    "latent": DENSE.partition("--position")[0] + "--multi-latent-attention --q-lora-rank 64 "
    "--rotary-scaling-factor 4",
    "states": "--hybrid-layer-pattern M-M* " + DENSE.partition("--num-layers 4 ")[2],
    "delta": f"{DENSE} --experimental-attention-variant gated_delta_net --linear-attention-freq 2",
}
"""Launches in which every option has something to say."""


def _read(text: str) -> tuple[ModelSpec | None, list[Problem]]:
    arguments = parse_arguments([Word(Text.made(word)) for word in text.split()])
    model, problems = read_model(arguments, Hints(), [])
    return model, [*problems, *arguments.problems]


def _value(model: ModelSpec, field: str) -> Any:
    return reduce(lambda part, name: getattr(part, name, None), field.split("."), model)


# A vocabulary of 0 is the tokenizer's in Megatron too; the others are no numbers of the model that
# is read.
ELSEWHERE = {"vocab-size", "glu-linear-offset", "moe-expert-capacity-factor"}
NUMBERS = {
    entry.name: entry.fields[0]
    for entry in MEGATRON
    if len(entry.fields) == 1 and entry.key and entry.name not in ELSEWHERE
    if (option := options().get(entry.name)) and option.type in ("int", "float")
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_zero_in_megatrons_options(name: str) -> None:
    """It is refused, or it is the model's value, wherever another number is."""
    differs = 0
    for base in BASES.values():
        given, problems = _read(f"{base} --{name} 3")
        plain, _ = _read(base)
        if not problems and given == plain:
            continue  # nothing of this model
        differs += 1
        model, problems = _read(f"{base} --{name} 0")
        assert problems or (model is not None and not _value(model, NUMBERS[name]))
    assert differs


# --- Hugging Face configs ------------------------------------------------------------------------

LLAMA = {
    "model_type": "stablelm", "num_hidden_layers": 2, "hidden_size": 256, "hidden_act": "silu",
    "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000,
    "num_key_value_heads": 4, "max_position_embeddings": 512,
}  # fmt: skip
V3 = json.loads((Path(__file__).parent / "job/models/configs/deepseek-v3.json").read_text())


@pytest.mark.parametrize(
    ("config", "key", "field"),
    [
        (LLAMA, "partial_rotary_factor", "rotary_share"),
        (LLAMA, "rope_parameters.partial_rotary_factor", "rotary_share"),
        (LLAMA, "layer_norm_eps", "norm_eps"),
        (LLAMA, "initializer_range", "init_std"),
        (LLAMA, "rope_theta", "rope.theta"),
        (V3, "n_group", "moe.groups"),
        (V3, "topk_group", "moe.top_groups"),
        (V3, "moe_layer_freq", ""),
        (V3, "n_shared_experts", "moe.shared_ffn"),
        (V3, "routed_scaling_factor", "moe.weight_scale"),
        (V3, "num_nextn_predict_layers", "mtp_layers"),
        (V3, "q_lora_rank", "mla.q_lora_rank"),
        *((LLAMA, key, "") for key in LLAMA if isinstance(LLAMA[key], int)),
        (LLAMA, "head_dim", "head_dim"),
    ],
)
def test_a_zero_in_a_config(config: dict[str, Any], key: str, field: str) -> None:
    """It is the model's value, or refused with its key."""
    table, _, inner = key.rpartition(".")
    given = config | ({table: {inner: 0}} if table else {key: 0})
    try:
        model = model_from_hf_config(given, "config.json")
    except (ModelError, ValueError) as error:
        assert inner in str(error) or field.rpartition(".")[2] in str(error)
    else:
        assert _value(model, field) == 0


# --- measured runs -------------------------------------------------------------------------------


def test_a_zero_in_a_measured_row() -> None:
    """No layer that recomputes, no shared expert, no rank of queries."""
    assert map_row(row(recompute_share="0")).mode.mask == Module.NOTHING
    experts = "8 experts top2 + {} shared; expert ffn 512; MLA, q_lora {}"
    none, one = (model_of(row(moe=experts.format(*pair))) for pair in ((0, 0), (1, 64)))
    assert none.moe is not None and one.moe is not None and none.mla and one.mla
    assert (none.moe.shared_ffn, none.mla.q_lora_rank) == (0, None)
    assert (one.moe.shared_ffn, one.mla.q_lora_rank) == (512, 64)
