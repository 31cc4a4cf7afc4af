"""A sample of `python -m tests.agreement`: what a search finds, three other commands take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.request import Request
from planner.search.search import find_plans
from tests.agreement.jobs import job
from tests.agreement.walk import walk

# Each is costed, written and read in about a second.
SAMPLE: tuple[Request, ...] = (
    Request(model="llama-3-8b", gpus="8xH100", gbs=64, seq=4096, limits={"mbs": (1,), "pp": (2,)}),
    Request(model="llama-3-8b", gpus="4xA100", gbs=8, seq=2048, limits={"mbs": (1,)},
            framework="torchtitan"),
    Request(model="qwen2.5-7b", gpus="4xH100", gbs=8, seq=2048, limits={"mbs": (1,), "pp": (2,)},
            framework="torchtitan", precision="fp8", fit_probability=0.1),
    Request(model="llama-3-8b", gpus="8xA100", gbs=16, seq=2048, limits={"mbs": (1,)},
            framework="nanotron", fit_probability=0.5),
    Request(model="qwen2.5-7b", gpus="8xH100", gbs=16, seq=2048, limits={"mbs": (1,)},
            framework="deepspeed", optimizer_offload="search"),
    Request(model="llama-3.2-1b", gpus="2xH100", gbs=4, seq=2048, limits={"mbs": (1,)},
            framework="hf-fsdp2"),
    Request(model="mixtral-8x7b", gpus="32xH100", gbs=64, seq=4096,
            limits={"mbs": (1,), "pp": (4,), "tp": (1,)}, activation_offload="search"),
    Request(model="deepseek-v2-lite", gpus="8xH200", gbs=16, seq=4096, limits={"mbs": (1,)},
            framework="megatron-bridge", use=("bf16-gradients",)),
    Request(model="mamba2-2.7b", gpus="8xH100", gbs=16, seq=2048, limits={"mbs": (1,), "pp": (1,)}),
    Request(model="qwen2.5-7b", gpus="8xH100", gbs=16, seq=2048, limits={"mbs": (1,)},
            framework="megatron-fsdp"),
    Request(model="llama-3.2-1b", gpus="2xH100", gbs=4, seq=2048, framework="jax-xla",
            limits={"zero": (2, 3), "mbs": (1,)}, optimizer="adamw-bf16"),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(SAMPLE)))
def test_the_four_commands_agree(number: int, tmp_path: Path) -> None:
    walked, found = walk(SAMPLE[number], tmp_path / "run", most=2)
    assert walked.plans, walked.why_none
    assert [str(one) for one in found] == []
    assert walked.refused == 0


@pytest.mark.parametrize("framework", framework_names())
def test_jobs_of_the_command_are_of_its_framework(framework: str) -> None:
    assert job(1, 0, framework).framework == framework


def test_no_search_takes_an_offload_that_a_techniques_profile_has_not() -> None:
    """Megatron-FSDP in place of the framework cannot offload activations: its plans, which the
    other commands refused, are not searched."""
    modules = load_framework("megatron-core").activation_offload.searched[0]
    asked = Request(
        model="llama-3-8b", gpus="8xH100", gbs=8, seq=4096, limits={"mbs": (1,), "tp": (2,)},
        activation_offload=",".join(modules), recompute=("none",), fit_probability=0.1,
    )  # fmt: skip
    tried = replace(asked.resolve(), technique_choices=((), ("megatron-fsdp",))).decided()
    assert {one.framework.name for one in tried} == {"megatron-core"}
    for plan in find_plans(asked, fastest_only=True).plans:
        assert "megatron-fsdp" not in plan.techniques
