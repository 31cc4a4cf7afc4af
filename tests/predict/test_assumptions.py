"""What a plan takes for granted never contradicts what was asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from constraints.rule import Layout
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.recompute import RecomputeMode
from planner.job.request import Request
from planner.predict.assumptions import (
    choice_notes,
    framework_assumptions,
    plan_assumptions,
)
from planner.predict.configuration import Configuration
from planner.predict.plan import Degrees


@pytest.mark.parametrize("name", framework_names())
def test_no_profile_states_what_an_option_decides(name: str) -> None:
    """Dropout and the kind of attention are options of a job: a fixed text would be wrong beside
    one of their values."""
    for text in load_framework(name).assumptions:
        assert "dropout" not in text and "flash" not in text.replace("flash-attention", ""), text


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_is_told_as_it_was_asked(dropout: bool) -> None:
    for name in ("textbook", "nanogpt", "megatron-core"):
        request = Request(
            model="gpt2", gpus="1xA100", gbs=1, framework=name, dropout=dropout, seq=1024
        )
        said = [
            one for one in framework_assumptions(request.resolve(), Degrees()) if "dropout" in one
        ]
        assert all(one.startswith("dropout on" if dropout else "dropout off") for one in said), name
        assert bool(said) == (dropout or name == "textbook")


def test_a_note_about_another_precision_is_left_out() -> None:
    request = Request(model="gpt2", gpus="1xA100", gbs=1, framework="megatron-deepspeed", seq=1024)
    job = request.resolve()
    assert any(one.startswith("bf16:") for one in framework_assumptions(job, Degrees()))
    other = framework_assumptions(replace(job, precision="fp16"), Degrees())
    assert not any(one.startswith("bf16:") for one in other)
    assert any(one.startswith("fp16:") for one in other)


def test_a_technique_ends_the_assumptions_that_it_makes_wrong() -> None:
    request = Request(
        model="8b", gpus="1xH100", gbs=1, framework="hf-transformers", use=("liger-kernels",)
    )
    said = framework_assumptions(request.resolve(), Degrees())
    assert not any("unfused cross-entropy" in one or "RMSNorm in torch" in one for one in said)


def test_what_a_technique_ends_stands_in_a_profile() -> None:
    profiles = [load_framework(name) for name in framework_names()]
    stated = {text for profile in profiles for text in profile.assumptions}
    ended = {text for one in profiles for technique in one.techniques for text in technique.ends}
    assert ended and ended <= stated


def test_a_mode_under_a_measured_runs_name_for_it_has_its_notes() -> None:
    """A search among a recipe's modes may split them over layers."""
    job = Request(model="gpt2", gpus="1xA100", gbs=1, seq=1024).resolve()
    mode = RecomputeMode(name="selective(moe,layernorm)", modules=("LAYERNORM",), every=2)
    layout = Layout(1, 1, (12,), recomputed={mode.name: (6,)})
    configuration = Configuration(replace(job, recompute=(mode,)), Degrees(), mode, layout)
    (note,) = choice_notes(configuration, 0.0)
    assert note.startswith("recompute selective(moe,layernorm): one layer in 2")


@pytest.mark.parametrize(
    ("model", "train", "said"),
    [
        ("mixtral-8x7b", "lora", True),
        ("mixtral-8x7b", "lora:targets=attention", False),
        ("mixtral-8x7b", "lora:targets=all-linear,experts", False),
        ("mixtral-8x7b", "full", False),
        ("llama-3-8b", "lora", False),
    ],
)
def test_experts_without_adapters_are_told(model: str, train: str, said: bool) -> None:
    request = Request(
        model=model, gpus="8xH100", gbs=8, framework="hf-fsdp2", train=train, seq=1024
    )
    notes = plan_assumptions(request.resolve(), Degrees(dp=8, zero=3))
    assert any("experts get no adapters" in note for note in notes) == said
