"""Megatron-Bridge overrides: known fields with legal values, and what each says."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from planner.launch.contract import Launch
from planner.launch.dialects.megatron import bridge_writer as megatron_bridge
from planner.launch.dialects.megatron.bridge_writer import schema, wrong_overrides
from planner.launch.plans import refusals_of
from tests.launch.plans import BRIDGE, bridge, costed, default_argv


def overrides(launch: Launch) -> dict[str, str]:
    """Field -> value."""
    pairs = (word.split("=", 1) for word in default_argv(megatron_bridge.command(launch))[1:])
    return {word[0]: word[1] for word in pairs}


@pytest.mark.parametrize("name", BRIDGE)
def test_every_override_is_known_and_legal(name: str) -> None:
    launch = bridge(name)
    assert list(refusals_of(launch)) == []
    found = overrides(launch)
    assert list(wrong_overrides(found)) == []
    degrees = launch.plan.degrees
    assert found["model.tensor_model_parallel_size"] == str(degrees.tp)
    assert found["model.sequence_parallel"] == str(degrees.tp > 1).lower()
    assert found["train.global_batch_size"] == str(launch.plan.gbs)
    assert found["model.virtual_pipeline_model_parallel_size"] == (
        str(degrees.vpp) if degrees.vpp > 1 else "null"
    )


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("model.tensor_parallel_size", "4", "no setting"),
        ("train.micro_batch_size", "two", "not a value"),
        ("model.recompute_granularity", "some", "not a value"),
        ("model.pipeline_model_parallel_layout", "Et|tL", "not a value"),
        ("ddp.overlap_grad_reduce", "yes", "not a value"),
        ("model.num_layers", "null", "not a value"),
    ],
)
def test_wrong_overrides_are_found(key: str, value: str, text: str) -> None:
    sentence = next(wrong_overrides({key: value}))
    assert key in sentence
    assert text in sentence


def test_gradients_are_reduced_as_the_profile_has_them() -> None:
    found = overrides(bridge("dense"))
    # The precision recipe has the last word in Bridge, so both must say it.
    assert found["mixed_precision.grad_reduce_in_fp32"] == "true"
    assert found["ddp.grad_reduce_in_fp32"] == "true"
    assert found["comm_overlap.tp_comm_overlap"] == "true"


def test_layout_is_quoted_for_hydra() -> None:
    found = overrides(bridge("uneven"))
    assert found["model.pipeline_model_parallel_layout"] == '"Et*18|t*21|t*20|t*21L"'


def test_nothing_is_inherited_from_the_recipe() -> None:
    assert overrides(bridge("dense"))["model.recompute_granularity"] == "null"
    full = overrides(bridge("full-groups"))
    assert full["model.recompute_method"] == "uniform"
    assert full["model.recompute_num_layers"] == "4"


def test_states_with_types() -> None:
    found = overrides(bridge("bf16-states"))
    assert found["optimizer.exp_avg_dtype"] == "bf16"
    assert found["optimizer.use_precision_aware_optimizer"] == "true"
    assert "optimizer.main_grads_dtype" not in found  # fp32, its default


@pytest.mark.parametrize(
    ("name", "provider"), [("dense", "GPTModelProvider"), ("latent", "MLAModelProvider")]
)
def test_the_start_script_is_python(name: str, provider: str) -> None:
    text = megatron_bridge.files(bridge(name))["bridge_pretrain.py"]
    ast.parse(text)
    assert f"config.model = {provider}()" in text


@pytest.mark.parametrize(
    ("optimizer", "word"), [("muon", "no muon"), ("adamw-fp8", "states to fp8")]
)
def test_optimizers_that_it_cannot_have(optimizer: str, word: str) -> None:
    case = BRIDGE["dense"]
    other = replace(case, request={**case.request, "optimizer": optimizer})
    launch = costed(other, "megatron-bridge")
    reasons = [refusal.reason for refusal in refusals_of(launch)]
    assert any(word in reason for reason in reasons)


def test_unfused_attention_is_refused() -> None:
    case = BRIDGE["dense"]
    eager = replace(case, request={**case.request, "attention": "eager"})
    launch = costed(eager, "megatron-bridge")
    reasons = [refusal.reason for refusal in refusals_of(launch)]
    assert any("no unfused attention" in reason for reason in reasons)


def test_the_schema_names_each_field_once() -> None:
    assert len(schema()) > 80
    assert all(key.count(".") == 1 for key in schema())
