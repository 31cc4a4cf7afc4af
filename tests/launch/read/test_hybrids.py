"""Hybrids of attention and state spaces in Megatron's options."""

from __future__ import annotations

import pytest

from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.launch.dialects.megatron.arguments import Arguments, parse_arguments
from planner.launch.dialects.megatron.details import hybrid_text
from planner.launch.dialects.megatron.layout import read_split
from planner.launch.dialects.megatron.model import read_model
from planner.launch.dialects.megatron.writer import model_refusals
from planner.launch.languages.text import Text, Word
from planner.launch.read.found import Hints

SMALL = (
    "--hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4"
)


def arguments(text: str) -> Arguments:
    return parse_arguments([Word(Text.made(word)) for word in text.split()])


def shape(text: str) -> ModelSpec:
    read, problems = read_model(arguments(f"{SMALL} {text}"), Hints(), [])
    assert problems == []
    assert read is not None
    return read


def test_a_pattern_of_megatrons_own_tests() -> None:
    """The parameters that tests/functional_tests/test_cases/hybrid prints steady memory of."""
    model = shape("--hybrid-layer-pattern M-M-M-M*-M-|M-M-M*-M-M-/*-/*-")
    assert [kind.parts for kind in model.kind_sequence[6:9]] == ["state", "full", "dense"]
    assert (model.layers, model.mtp_layers) == (22, 2)
    assert model.state_space is not None
    assert (model.state_space.heads, model.state_space.groups) == (32, 8)


def test_pipes_are_the_pipeline() -> None:
    split = read_split(arguments(f"{SMALL} --hybrid-layer-pattern M-M|-M*|-M-|M"), 10, 2)
    assert (split.vpp, split.blocks) == (2, (3, 3, 3, 1))
    wrong = read_split(arguments(f"{SMALL} --hybrid-layer-pattern M-M|-M*|-M-"), 9, 2)
    assert [problem.rule for problem in wrong.problems] == ["layout-stages"]


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ("--num-layers 10 --hybrid-attention-ratio 0.3", "MM*MM*M*MM"),
        ("--num-layers 8 --is-hybrid-model", "MMMMMMMM"),
        ("--num-layers 8 --hybrid-mlp-ratio 0.5", "M-M-M-M-"),
    ],
)
def test_older_ratios_spread_layers_evenly(options: str, pattern: str) -> None:
    assert hybrid_text(arguments(f"{SMALL} {options}")) == pattern


def test_a_pattern_that_is_none_is_a_problem() -> None:
    given = arguments(f"{SMALL} --num-layers 3 --hybrid-layer-pattern MXM")
    read_model(given, Hints(), [])
    assert ["'X'" in problem.text for problem in given.problems] == [True]


def test_gated_delta_nets_every_fourth_layer_attends() -> None:
    model = shape(
        "--num-layers 8 --experimental-attention-variant gated_delta_net --linear-attention-freq 4 "
        "--attention-output-gate"
    )
    kinds = [kind.attention for kind in model.kind_sequence]
    assert kinds == ["state", "state", "state", "full"] * 2
    assert model.attention_gate


@pytest.mark.parametrize(
    ("name", "reason"),
    [("jamba-v0.1", "mamba1 layers: it has Mamba-2 and gated delta nets")],
)
def test_what_megatron_lacks_is_refused_by_name(name: str, reason: str) -> None:
    (refusal,) = model_refusals(load_model(name).spec, 4096)
    assert reason in refusal.reason
    assert refusal.nearest
