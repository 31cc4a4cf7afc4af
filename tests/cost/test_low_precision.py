"""Products in 8 bits: which of them, and what scales of blocks cost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from planner.cost import fields as f
from planner.cost.piece_compute import grouped_gemm_seconds
from planner.evidence.runs.software import tables_of
from planner.job.job import Job
from planner.predict.cost_model import CostModel
from tests.cost.jobs import cost, make_job, with_table


def test_a_recipe_may_be_of_some_products_alone() -> None:
    """What experts alone gain by fp8 and what linears alone gain is what both gain."""
    job = replace(make_job("qwen3-30b-a3b", "8xH100"), precision="fp8")

    def compute_s(linears: bool, experts: bool) -> float:
        chosen = {"quantises_linears": linears, "quantises_experts": experts, "issue_s": 0.0}
        step = cost(CostModel(with_table(job, "kernels", **chosen)), ep=8, dp=8)[1]
        return float(step[f.STEP_COMPUTE])

    none = compute_s(linears=False, experts=False)
    of_linears = none - compute_s(linears=True, experts=False)
    of_experts = none - compute_s(linears=False, experts=True)
    assert min(of_linears, of_experts) > 0.0
    assert none - compute_s(linears=True, experts=True) == pytest.approx(of_linears + of_experts)


def layer_of_experts_s(job: Job) -> float:
    """Products of one expert of Mixtral without a gate, 8,192 tokens, forward and backward."""
    model = CostModel(job)
    row = SimpleNamespace(low_precision=1.0, groups=8.0, trained=1.0, partial=0.0)
    inputs = model.job_inputs, model.framework_inputs, model.gpu_inputs
    seconds = 0.0
    for out, width in ((14336.0, 4096.0), (4096.0, 14336.0)):
        shape = (8192.0, out, width)
        with patch("planner.cost.piece_compute.gemm_shape", return_value=shape):
            forward, backward, _ = grouped_gemm_seconds(row, SimpleNamespace(ep=8.0), *inputs)
        seconds += forward + backward
    return seconds


def test_scales_of_blocks_slow_products_and_casts() -> None:
    """Megatron-LM, tests/functional_tests/test_cases/common/moe_perf: a layer of Mixtral's experts
    on 8 H100 takes 12.0, 12.5 and 12.1 ms with three dispatchers, in fp8 with scales of blocks
    1.6, 1.6 and 1.8 ms less."""
    job = make_job("mixtral-8x7b", "8xH100", "megatron-core")
    tables = tables_of("scales of blocks", "megatron-core")["kernels"]
    blocks = with_table(replace(job, precision="fp8"), "kernels", **tables)
    bf16 = layer_of_experts_s(job)
    assert bf16 - layer_of_experts_s(blocks) == pytest.approx(1.66e-3, rel=0.06)
    assert bf16 - layer_of_experts_s(replace(job, precision="fp8")) > 3e-3
