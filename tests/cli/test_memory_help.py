"""Memory help of `check`, `fit` and `memory`: one verdict, one advice, offload on one GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import Degrees, Request, evaluate
from planner.cost.terms import MEMORY_WORDS
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.predict.plan_text import fit_text, fit_verdict
from tests.cli.conftest import run_cli as run

GIB = 2.0**30
OFFLOADS = [name for name in framework_names() if load_framework(name).optimizer.offload_gradients]


def _peak_gib(framework: str, zero: int, share: float = 0.0, **more: Any) -> float:
    request = Request(
        model="llama-3.1-8b", gpus="1xRTX4090", gbs=8, seq=2048, framework=framework,
        optimizer_offload=share, **more,
    )  # fmt: skip
    plan = evaluate(request, Degrees(zero=zero, grad_acc=8), "full")
    assert plan.degrees.zero == zero
    return plan.peak_bytes / GIB


def test_offload_on_one_gpu_moves_gradients_from_stage_two_on() -> None:
    """DeepSpeed 0.19.6, stage_1_and_2.py: under ZeRO-2 each micro-batch's gradients leave through
    the bucket; under ZeRO-1 they wait on the GPU for the last one: 2 bytes a parameter, 15 GiB."""
    one, two, three = (_peak_gib("deepspeed", zero, 1.0) for zero in (1, 2, 3))
    assert one - two == pytest.approx(8.03e9 * 2 / GIB, rel=0.1)
    assert 19.0 < two < 20.5
    assert three == pytest.approx(two, rel=0.02)


@pytest.mark.parametrize("framework", OFFLOADS)
def test_every_framework_that_moves_gradients_does_so_with_one_rank(framework: str) -> None:
    profile = load_framework(framework)
    stage = max(profile.parallelism.zero_stages)
    assert _peak_gib(framework, stage, 1.0) < _peak_gib(framework, stage) - 8.03e9 * 2 / GIB


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-core", "hf-transformers"])
def test_every_stage_is_legal_with_one_rank(framework: str) -> None:
    for stage in load_framework(framework).parallelism.zero_stages:
        assert _peak_gib(framework, stage) > 0.0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_check_keeps_the_stage_of_the_file(stage: int, tmp_path: Path) -> None:
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}},
    }
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(settings))
    words = f"check {path} --model llama-3.1-8b --gpus 1xRTX4090 --seq 2048 --recompute full"
    result = run(*words.split(), "--json")
    document = json.loads(result.output)
    assert document["configuration"]["degrees"]["zero"] == stage
    assert document["verdict"] == ("will not fit" if stage == 1 else "runs and fits")
    if stage == 1:
        largest = document["advice"]["largest_term"]
        assert largest["name"] in MEMORY_WORDS
        options = {move["options"] for move in document["advice"]["sufficient"]}
        assert "--zero 2" in options or "--zero 3" in options


def test_torchtune_offloads_a_whole_model_as_its_recipe_does() -> None:
    """llama3_1 70B on 8 A100 with fsdp_cpu_offload: its README measures 13.9 GiB allocated."""
    words = (
        "evaluate --model llama-3.1-70b --gpus 8xA100 --framework torchtune --seq 2048 --gbs 16"
        " --mbs 2 --recompute full --optimizer-offload 1 --json"
    )
    result = run(*words.split())
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)["plans"][0]
    assert plan["allocated_bytes"] / GIB == pytest.approx(13.9, rel=0.25)


def test_what_is_not_modelled_is_no_no() -> None:
    """MaxText can keep weights and states in host memory."""
    words = "fit --model llama-3.1-8b --gpus 1xH100 --framework maxtext --gbs 1 --time-limit 8"
    result = run(*words.split())
    assert result.exit_code == 3
    assert "CANNOT TELL" in result.output
    assert "optimizer_memory_host_offload" in " ".join(result.output.split())


def test_fit_finds_torchtunes_recipe_for_one_gpu_of_24_gb() -> None:
    """Paged 8-bit states and the optimizer in backward together."""
    words = (
        "fit --model llama-3.1-8b --gpus 1xRTX4090 --framework torchtune --optimizer adamw-8bit"
        " --seq 2048 --gbs 2 --time-limit 8 --json"
    )
    result = run(*words.split())
    assert result.exit_code == 1
    found = [change["change"] for change in json.loads(result.stdout)["why"]["relaxations"]]
    assert "--with optimizer-in-backward --optimizer paged-adamw-8bit" in found


def test_fit_takes_the_framework_of_the_machine_and_says_what_holds_the_memory() -> None:
    words = [
        "fit",
        "--model",
        "llama-3.1-8b",
        "--gpus",
        "1xRTX4090",
        "--seq",
        "2048",
        "--time-limit",
        "8",
    ]
    text = " ".join(run(*words).output.split())
    assert "framework deepspeed" in text
    assert "Framework: deepspeed" in text
    assert "are optimizer state: --zero 2 --optimizer-offload 1" in text
    # All terms of the stage are named, and they add up.
    needs = float(text.split("needs ")[1].split(" GiB")[0])
    terms = (
        text.split("in its even layout, with ")[1].split(" Changes that would")[0].split(" No ")[0]
    )
    sizes = [float(part.rsplit(" ", 1)[1]) for part in terms.split(", ")]
    assert sum(sizes) == pytest.approx(needs, abs=0.3)


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (0.97, "fits"), (0.8, "fits"), (0.74, "probably fits"), (0.5, "cannot tell"),
        (0.3, "probably does not fit"), (0.1, "does not fit"),
    ],
)  # fmt: skip
def test_the_verdict_follows_the_probability(probability: float, words: str) -> None:
    assert fit_verdict(probability) == words
    said = fit_text(10.0 * GIB, 11.0 * GIB, probability).lower()
    assert said.startswith(words)
    assert "does not fit" not in said or probability < 0.4
