"""Options that change how a framework trains: types, splits, DDP, workspaces, biases."""

from __future__ import annotations

from typing import Any

import pytest

from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.frameworks.workspaces import torch_workspaces
from planner.job.request import Request
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_plan
from planner.predict.cost_tables import gpu_inputs
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from tests.configurations import memory_footprint

GIB = 2**30
ONE = Degrees(zero=0)


def request(**changes: Any) -> Request:
    """Llama-7B, one sequence of 1,024 on one H100 under transformers."""
    values = {"model": "llama-2-7b", "gpus": "1xH100", "gbs": 1, "seq": 1024}
    return Request(**values | {"framework": "hf-transformers"} | changes)


@pytest.mark.parametrize("given", [{"precision": "fp32"}, {"dtype": "fp32"}, {"precision": "tf32"}])
def test_fp32_products_have_fp32_weights(given: dict[str, str]) -> None:
    """4 + 4 + 8 bytes a parameter in `memory` and `evaluate`: 102.5 GiB, not 52."""
    asked = request(**given)
    footprint = memory_footprint(asked, ONE)
    assert footprint.total_bytes / GIB == pytest.approx(102.5, abs=0.2)
    assert not footprint.fits
    assert evaluate(asked, ONE).peak_bytes == pytest.approx(footprint.total_bytes, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"precision": "fp32", "dtype": "amp"}, "leave --dtype out"),
        ({"precision": "tf32", "dtype": "bf16"}, "leave --dtype out"),
        ({"precision": "bf16", "dtype": "fp32"}, "give --precision fp32 or --dtype bf16 or amp"),
        ({"precision": "fp16", "dtype": "fp32"}, "give --precision fp32"),
        ({"precision": "fp32", "framework": "megatron-core"}, "framework with fp32: hf-trans"),
        ({"gradient_as_bucket_view": True}, "one GPU trains without"),
        (
            {"gradient_as_bucket_view": True, "framework": "torchtitan"},
            "these do: .*hf-transformers",
        ),
        ({"set_to_none": False, "framework": "megatron-core"}, "live for all steps anyway"),
        ({"cublas_workspace_config": "4096:8"}, "pairs of KiB and count"),
    ],
)
def test_what_contradicts_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        memory_footprint(request(**given), ONE)


def test_a_gpu_without_the_type_is_refused_by_name() -> None:
    with pytest.raises(HardwareError, match="V100-SXM2-32GB has no tf32 matrix arithmetic"):
        request(gpus="1xV100", precision="tf32").resolve()


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_no_product_of_fp32_runs_at_the_rate_of_bf16(precision: str) -> None:
    """Not the head's and the attention's either."""
    gpu = request().resolve().cluster.gpu
    rates = gpu_inputs(gpu, precision, "auto")
    assert rates.matmul_flop_per_s == rates.matmul16_flop_per_s == gpu.peak(precision)


def test_tensor_parallelism_without_sequence_parallelism() -> None:
    """Korthikanti et al. 2022, table 2: 10 + 24/t instead of 34/t of s·b·h·L, both models alike."""
    degrees = Degrees(tp=8, zero=0, etp=1)
    values = {"model": "gpt3-175b", "gpus": "8xH100", "seq": 2048, "framework": "textbook"}
    split, whole = (
        request(**values, dropout=True, attention="flash", sequence_parallel=value)
        for value in (True, False)
    )
    peaks = [evaluate(asked, degrees).peak_bytes for asked in (split, whole)]
    kept = 2048 * 12288 * 96 * (10 + 24 / 8 - 34 / 8)
    assert peaks[1] - peaks[0] == pytest.approx(kept, rel=0.01)
    assert memory_footprint(whole, degrees).total_bytes == pytest.approx(peaks[1], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "copies"),
    [({}, 1.0), ({"gradient_as_bucket_view": True}, 1.0), ({"set_to_none": False}, 2.0)],
)
def test_gradients_of_ddp_between_steps(given: dict[str, Any], copies: float) -> None:
    """Buckets for good; beside them gradients that are zeroed in place."""
    asked = request(model="gpt2", gpus="8xH100", gbs=8, **given)
    footprint = memory_footprint(asked, Degrees(dp=8, zero=0))
    terms = next(phase.terms for phase in footprint.stages[0].later_steps if phase.name == "start")
    held = terms["gradients"] + terms["gradient buckets"]
    assert held == pytest.approx(copies * terms["weights"])


@pytest.mark.parametrize(
    ("architecture", "config", "size"),
    [
        ("ampere", None, 2 * 8_519_680),
        ("hopper", None, 2 * 33_554_432),
        ("blackwell", None, 2 * 33_554_432),
        ("cdna3", None, 2 * 134_217_728),
        ("ampere", ":4096:8", 2 * 33_554_432),
    ],
)
def test_workspaces(architecture: str, config: str | None, size: int) -> None:
    """torch's own sizes; CUBLAS_WORKSPACE_CONFIG wins."""
    assert torch_workspaces(architecture, config) == size


def test_a_model_without_biases() -> None:
    spec = request(model="gpt2", bias=False).resolve().model
    # 9h a layer in linear layers, h in each norm.
    assert not spec.qkv_bias and not spec.norm_bias and spec.norm_weight


def test_a_plan_file_keeps_them(tmp_path: Any) -> None:
    """What `planner check` reads from a plan file is what was asked for."""
    from planner.cli.evaluate import as_result
    from planner.launch.check.request import as_request
    from planner.search.plan_file import to_json

    asked = request(model="gpt2", gpus="8xH100", gbs=8, set_to_none=False, bias=False)
    asked = asked.model_copy(update={"cublas_workspace_config": ":4096:8"})
    path = tmp_path / "plan.json"
    path.write_text(to_json(as_result(asked, evaluate(asked, Degrees(dp=8, zero=0)))))
    found = read_plan(path, Hints())
    read = as_request(found).request
    for name in ("set_to_none", "bias", "cublas_workspace_config", "sequence_parallel"):
        assert getattr(read, name) == getattr(asked, name)


@pytest.mark.parametrize(
    ("gpu", "framework", "fix"),
    [
        ("1xT4", "hf-transformers", "give --precision fp16"),
        ("1xT4", "torchtune", "give a framework with fp16: .*hf-transformers"),
        ("1xV100", "megatron-core", "give --precision fp16"),
    ],
)
def test_a_gpu_without_bf16_names_what_it_has(gpu: str, framework: str, fix: str) -> None:
    request = Request(model="llama-3.2-1b", gpus=gpu, gbs=1, framework=framework)
    with pytest.raises(HardwareError, match=f"has no bf16 matrix arithmetic.*; {fix}"):
        request.resolve()
