"""What a step pays beyond its own work: stragglers, whole or scattered activations between
stages, launches that wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hardware.link_curves import load_curve_table
from hardware.load import parse_gpus
from planner.cost import fields as f
from planner.cost._jit import rows
from planner.cost.communication import all_gather_time_s, point_to_point_time_s
from planner.cost.compute import (
    eager_attention_backward_time_s,
    eager_attention_forward_time_s,
)
from planner.predict.cost_model import CostModel
from planner.predict.links import link_inputs
from tests.cost.jobs import cost, make_job, with_table

PASS = slice(f.PIECE_FORWARD, f.PIECE_FORWARD_EP + 1)
STRAGGLER_SHARE = load_curve_table().straggler_share.value


@pytest.mark.parametrize(
    ("gpus", "dp", "doublings"), [("8xH100", 8, 0), ("16xH100", 16, 1), ("64xH100", 64, 3)]
)
def test_stragglers_cost_a_share_of_the_rest_with_each_doubling_of_the_domains(
    gpus: str, dp: int, doublings: int
) -> None:
    _, step = cost(CostModel(make_job(gpus=gpus)), dp=dp, zero=1)
    rest = step[f.STEP_TIME] - step[f.STEP_STRAGGLER]
    assert step[f.STEP_STRAGGLER] == pytest.approx(STRAGGLER_SHARE * doublings * rest)
    assert step[f.STEP_TIME_BOUND] <= step[f.STEP_TIME]


def test_one_rack_of_nvl72_waits_for_nobody_else() -> None:
    _, step = cost(CostModel(make_job(gpus="64xGB200")), dp=64, zero=1)
    assert step[f.STEP_STRAGGLER] == 0.0


@pytest.mark.parametrize(("pp", "dp", "doublings"), [(8, 1, 0), (4, 2, 1), (1, 8, 3)])
def test_stages_of_a_pipeline_do_not_wait_for_each_other(pp: int, dp: int, doublings: int) -> None:
    """Ranks that meet in collectives are those of a stage: here dp nodes."""
    _, step = cost(CostModel(make_job(gpus="64xH100")), tp=8, pp=pp, dp=dp, zero=1, grad_acc=8)
    rest = step[f.STEP_TIME] - step[f.STEP_STRAGGLER]
    assert step[f.STEP_STRAGGLER] == pytest.approx(STRAGGLER_SHARE * doublings * rest)


def test_scattered_activations_pass_the_network_once_and_are_gathered_inside() -> None:
    """Narayanan et al. 2021, section 4.1: 1/tp of the bytes, and an all-gather over NVLink."""
    job = with_table(
        make_job("gpt3-175b", "16xA100", "megatron-lm-2022"),
        "parallelism",
        sequence_parallel="never",
    )
    # Tied embeddings would exchange their gradients as well.
    job = replace(job, model=job.model.model_copy(update={"tied_embeddings": False}))
    seconds = {}
    for scatters in (False, True):
        model = CostModel(with_table(job, "kernels", pipeline_scatters=scatters))
        _, step = cost(model, tp=8, pp=2, grad_acc=4, recompute=len(job.recompute) - 1)
        seconds[scatters] = step[f.STEP_PP]
    links = CostModel(job).link_inputs
    size = 2.0 * job.model.hidden * job.seq
    whole = point_to_point_time_s(size, False, links)
    parts = point_to_point_time_s(size / 8, False, links) + all_gather_time_s(size, 8, 8, links)
    # Four micro-batches each way, and one fill and drain.
    assert seconds[False] == pytest.approx(10.0 * whole)
    assert seconds[True] == pytest.approx(10.0 * parts)
    assert parts < whole


def test_a_launch_that_waits_adds_its_time_to_the_kernels() -> None:
    """Where kernels are long, issuing them hides behind them, unless the CPU waits for each."""
    job = make_job("llama-3-8b", "1xH100")
    steps, costs = {}, {}
    for blocking in (False, True):
        model = CostModel(with_table(job, "kernels", blocking_launches=blocking))
        costed, steps[blocking] = cost(model, mbs=2)
        costs[blocking] = costed.piece_costs(0)[0]
    kernels = rows(CostModel(job).op_table.ops, f.OP_ROW)
    first = kernels[kernels["piece"] == 0]
    for column, item in (
        (f.PIECE_FORWARD, "forward_kernels"),
        (f.PIECE_BACKWARD, "backward_kernels"),
    ):
        issue = first[item].sum() * job.framework.kernels.issue_s / job.cluster.host_speed
        assert costs[True][column] - costs[False][column] == pytest.approx(issue)
    assert steps[True][f.STEP_TIME] > steps[False][f.STEP_TIME]


def test_launches_of_context_parallel_attention_show_where_launches_bound_a_layer() -> None:
    job = with_table(make_job("llama-3-8b", "8xA100"), "kernels", issue_s=1.0)
    assert job.cluster.host_speed == 1.0
    forward = [
        cost(CostModel(job), cp=cp, dp=8 // cp)[0].piece_costs(0)[0][PASS].sum() for cp in (1, 2, 4)
    ]
    # Two chunks cut and joined, and one more kernel with each step.
    assert np.diff(forward) == pytest.approx([6.0, 2.0], abs=0.01)


@pytest.mark.parametrize(
    "seconds", [eager_attention_forward_time_s, eager_attention_backward_time_s]
)
def test_heads_of_another_width_than_8_elements_are_slow_without_a_fused_kernel(
    seconds: Callable[..., float],
) -> None:
    gpu = CostModel(make_job("gpt3-175b", "8xA100")).gpu_inputs
    aligned, odd, wider = (
        seconds(1.0, 2048.0, 2048.0, 12.0, width, width, 1.0, gpu)
        for width in (144.0, 150.0, 152.0)
    )
    assert aligned < wider < odd
    assert odd > 3.0 * wider


def test_pairs_of_omni_path_are_faster_than_its_collectives() -> None:
    cluster = parse_gpus("16xA100").model_copy(update={"fabric": "omni-path"})
    links = link_inputs(cluster)
    nominal = cluster.scale_out_bytes_per_s_per_gpu_per_direction
    assert links.scale_out_pair_bytes_per_s == pytest.approx(0.96 * nominal)
    assert links.scale_out_bytes_per_s == pytest.approx(0.138 * nominal)
    assert point_to_point_time_s(1e9, False, links) == pytest.approx(1e9 / (0.96 * nominal), 0.01)
