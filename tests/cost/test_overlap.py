"""What each framework's overlap hides, what hiding costs, and what only the end of a step pays:
closed forms on whole steps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from planner.cost import fields as f
from planner.cost.compute import attention_forward_time_s, gemm_time_s
from planner.cost.data_parallel import gather_of, optimizer_seconds, reduction_of
from planner.cost.piece_compute import ComputeTerms
from planner.cost.piece_traffic import exposed_traffic, group_window, hide_share
from planner.cost.tables import Array
from planner.job.job import Job
from planner.predict.cost_model import CostModel
from tests.cost.jobs import cost, grid_of, key_of, make_job, with_links, with_table
from tests.search.brute import framework_inputs

SLOW = {"scale_out_bytes_per_s": 1e9}


def overlapping(job: Job, **shares: float) -> Job:
    """The job under a profile that hides so much."""
    return with_table(job, "overlap", **shares)


def step(job: Job, links: dict[str, float] | None = None, **degrees: int) -> Array:
    return cost(with_links(job, **(links or {})), **degrees)[1]


TENSOR = {"tp": 8, "dp": 2, "zero": 1, "grad_acc": 4}
EXPERTS = {"ep": 8, "dp": 64, "zero": 1, "mbs": 1}


@pytest.fixture(scope="module")
def dense() -> Job:
    return overlapping(make_job("llama-3-8b", "16xH100"), contention=0.0, data_contention=0.0)


@pytest.fixture(scope="module")
def experts() -> Job:
    return overlapping(make_job("mixtral-8x7b", "64xH100"), contention=0.0, data_contention=0.0)


# -- layers' own traffic ----------------------------------------------------------------------


def test_tensor_traffic_hides_in_proportion(dense: Job) -> None:
    """Of what is cut into eight pieces one finds no product beside it; half hides half as much."""
    exposed, half, hidden = (
        step(overlapping(dense, tensor=s, tensor_backward=1.0), **TENSOR)[f.STEP_TP]
        for s in (0.0, 0.5, 1.0)
    )
    assert hidden == pytest.approx(exposed / 8)
    assert half == pytest.approx((exposed + hidden) / 2)


def test_backward_has_products_beside_which_tensor_traffic_hides(dense: Job) -> None:
    """Megatron without userbuffers. Of a layer's ten exchanges four in forward and the gathers of
    two row-parallel products' gradients have nothing beside them; the gathers of two inputs hide
    behind the gradient of the input, whose scatters hide behind that of the weight."""
    neither, backward = (
        step(overlapping(dense, tensor=0.0, tensor_backward=s), **TENSOR)[f.STEP_TP]
        for s in (0.0, 1.0)
    )
    assert backward == pytest.approx(0.6 * neither, rel=0.02)


def test_hidden_traffic_slows_the_compute_beside_it(dense: Job) -> None:
    """c for each second of it: SMs and HBM are shared."""
    all_tp, left, slowed = (
        step(overlapping(dense, tensor=s, tensor_backward=s, contention=c), **TENSOR)[f.STEP_TP]
        for s, c in ((0.0, 0.0), (1.0, 0.0), (1.0, 0.2))
    )
    assert slowed - left == pytest.approx(0.2 * (all_tp - left))


def test_expert_traffic_hides_in_proportion(experts: Job) -> None:
    exposed, half, hidden = (
        step(overlapping(experts, expert=s), **EXPERTS)[f.STEP_EP] for s in (0.0, 0.5, 1.0)
    )
    assert exposed > 0.0
    assert half == pytest.approx(exposed / 2)
    assert hidden < 0.05 * exposed


def test_transfers_between_stages_hide_beside_interleaved_chunks(dense: Job) -> None:
    pipeline = {"pp": 2, "vpp": 4, "dp": 8, "zero": 1, "grad_acc": 8}
    exposed, hidden = (
        step(overlapping(dense, pipeline=s), **pipeline)[f.STEP_PP] for s in (0.0, 1.0)
    )
    assert 0.0 <= hidden < exposed


def test_what_each_kind_of_traffic_may_hide_behind() -> None:
    """By HIDDEN_* code, of pieces of a product all but one; then tp, cp and ep, in forward,
    backward and what runs again."""
    framework = framework_inputs(
        hide_tensor_backward=0.1, hide_context=0.2, hide_tensor=0.3, hide_expert=0.4
    )
    for tp, pieces in ((2.0, 0.15), (4.0, 0.225)):
        key = SimpleNamespace(tp=tp)
        found = [hide_share(code, key, framework) for code in range(5)]
        assert found == pytest.approx([0.0, 0.1, 0.2, pieces, 0.4])
    terms = ComputeTerms(1.0, 2.0, 0.0, 3.0, 4.0, 5.0, *7 * [0.0])
    windows = [[group_window(group, index, terms) for index in range(3)] for group in range(3)]
    assert windows == [[1.0, 3.0, 1.0], [4.0, 5.0, 4.0], [1.0, 2.0, 1.0]]


def test_hidden_traffic_takes_no_more_than_the_compute_beside_it() -> None:
    """Ten seconds of a link beside 8 of forward and 4 of backward: two and six in the open."""
    traffic = [SimpleNamespace(total=0.0) for _ in range(9)]
    for index in (0, 1):
        traffic[index] = SimpleNamespace(total=10.0, hideable=10.0, inside=10.0, between=0.0)
    terms = ComputeTerms(8.0, 4.0, 0.0, 50.0, *9 * [0.0])
    out = SimpleNamespace(links=np.zeros(3 * f.LINK_PASS))
    exposed_traffic(traffic, terms, 0.0, out)
    assert (out.forward_tp, out.backward_tp, out.recompute_tp) == pytest.approx((2.0, 6.0, 0.0))


# -- once a step ------------------------------------------------------------------------------


def boundary_of(job: Job, links: dict[str, float], **degrees: int) -> tuple[float, float, Array]:
    """Seconds to reduce gradients and to gather weights of one stage, and the step."""
    model = with_links(job, **links)
    costed, found = cost(model, **degrees)
    key = key_of(costed)
    grid = grid_of(costed)
    parameters = float((model.totals * costed.piece_costs(0)[:, f.PIECE_TRAINED]).sum())
    shared = (parameters, 0.0, key, grid, model.framework_inputs, model.network)
    return reduction_of(*shared).seconds, gather_of(*shared).seconds, found


@pytest.mark.parametrize("grad_acc", [1, 4])
def test_without_overlap_gradients_and_weights_travel_once_a_step(
    dense: Job, grad_acc: int
) -> None:
    """However many micro-batches are accumulated."""
    bare = overlapping(dense, gradient_reduction=0.0, parameter_gather=0.0)
    reduce, gather, found = boundary_of(bare, {}, dp=16, zero=1, grad_acc=grad_acc)
    assert found[f.STEP_DP] == pytest.approx(reduce + gather)


@pytest.mark.parametrize("grad_acc", [1, 4])
def test_only_the_last_microbatch_hides_them(dense: Job, grad_acc: int) -> None:
    """On a slow network what its passes leave over is exposed, the same for any accumulation."""
    reduce, gather, found = boundary_of(dense, SLOW, dp=16, zero=1, grad_acc=grad_acc)
    passes = found[f.STEP_COMPUTE] / grad_acc
    assert found[f.STEP_DP] == pytest.approx(reduce + gather - passes, rel=1e-6)


def test_later_stages_reduce_in_the_drain_of_the_pipeline() -> None:
    """Two stages hold half of the model each: less than half of its traffic is exposed, for each
    has its own passes to hide behind."""
    job = overlapping(make_job("llama-3-8b", "64xH100"), contention=0.0, data_contention=0.0)
    shape = {"tp": 8, "pp": 2, "dp": 4, "zero": 1, "grad_acc": 8}
    reduce, gather, found = boundary_of(job, SLOW, **shape)
    assert 0.0 < found[f.STEP_DP] < 0.55 * (reduce + gather)
    passes = found[f.STEP_COMPUTE] / shape["grad_acc"]
    assert found[f.STEP_DP] > 0.5 * (reduce + gather) - 2 * passes


def test_sharded_weights_are_prefetched_beside_compute() -> None:
    """torchtitan, ZeRO-3: exposed without prefetch, hidden with it, slowed by contention."""
    job = overlapping(make_job("llama-3-8b", "8xH100", "torchtitan"), contention=0.0)
    shape = {"dp": 8, "zero": 3, "grad_acc": 2, "mbs": 2}
    exposed, half, hidden = (
        step(overlapping(job, fsdp_prefetch=s), **shape)[f.STEP_FSDP] for s in (0.0, 0.5, 1.0)
    )
    assert hidden < half < exposed
    assert half - hidden == pytest.approx(exposed - half, rel=0.02)
    slowed = step(overlapping(job, fsdp_prefetch=1.0, contention=0.3), **shape)[f.STEP_FSDP]
    assert slowed - hidden == pytest.approx(0.3 * (exposed - hidden), rel=0.05)


def test_layers_that_run_again_hide_more_of_their_weights() -> None:
    """On slow links: what the second forward takes, the second gather no longer shows."""
    job = make_job("llama-3-8b", "16xH100", "torchtitan")
    slow = with_links(overlapping(job, fsdp_prefetch=1.0, contention=0.0), **SLOW)
    modes = [mode.name for mode in job.recompute]
    none, full = (
        cost(slow, dp=16, zero=3, recompute=modes.index(mode))[1] for mode in ("none", "full")
    )
    assert full[f.STEP_RECOMPUTE] > 0.0
    hidden = none[f.STEP_FSDP] - full[f.STEP_FSDP]
    assert hidden == pytest.approx(full[f.STEP_RECOMPUTE], rel=1e-6)


def test_the_update_streams_state_gradients_and_their_norm(dense: Job) -> None:
    """AdamW with fp32 master weights under ZeRO-1: master, two moments and gradient read, the first
    three and a 16-bit weight written, and the gradient once more for its norm."""
    model = CostModel(dense)
    costed, found = cost(model, dp=16, zero=1)
    parameters = float((model.totals * costed.piece_costs(0)[:, f.PIECE_TRAINED]).sum())
    per_parameter = model.framework_inputs.optimizer_traffic_bytes
    assert per_parameter == pytest.approx(3 * 4 + 4 + 3 * 4 + 2 + 4)
    rate = model.gpu_inputs.hbm_bytes_per_s * model.gpu_inputs.hbm_efficiency
    updated = parameters, parameters / 16.0
    whole = optimizer_seconds(*updated, model.framework_inputs, model.gpu_inputs)
    assert whole == pytest.approx(parameters / 16 * per_parameter / rate)
    assert found[f.STEP_OPTIMIZER] == pytest.approx(whole, rel=0.01)


# -- experts, launches ------------------------------------------------------------------------


def test_the_busiest_expert_rank_sets_the_pace(experts: Job) -> None:
    """Twice the load: twice the exchange of ideal links, and its products take longer."""
    ideal = {
        "scale_up_half_bytes": 0.0, "scale_up_latency_s": 0.0, "collective_launch_s": 0.0,
        "scale_out_half_bytes": 0.0, "scale_out_latency_s": 0.0,
    }  # fmt: skip
    bare = overlapping(experts, expert=0.0)
    even, uneven = (
        step(replace(bare, expert_imbalance=load), ideal, **EXPERTS) for load in (1.0, 2.0)
    )
    assert uneven[f.STEP_EP] == pytest.approx(2 * even[f.STEP_EP], rel=1e-6)
    assert 1.2 < uneven[f.STEP_COMPUTE] / even[f.STEP_COMPUTE] < 2.0


# -- what runs again, and the ends of the model -------------------------------------------------


def test_recomputed_attention_costs_its_forward_kernel_again() -> None:
    """--recompute-modules core_attn: layers times micro-batches times the kernel."""
    job = make_job("llama-3-8b", "1xH100")
    model = CostModel(replace(job, recompute=(job.framework.recompute_mode("core_attn"),)))
    found = cost(model, grad_acc=3)[1]
    kernel = attention_forward_time_s(
        1.0, 8192.0, 8192.0, 32.0, 128.0, 128.0, 1.0, 0.0, model.gpu_inputs
    )
    assert found[f.STEP_RECOMPUTE] == pytest.approx(3 * 32 * kernel, rel=0.02)


def test_full_recomputation_costs_the_layers_forward_again() -> None:
    """A checkpoint of Megatron-Core runs the whole layer again, and neither embedding nor head."""
    job = make_job("llama-3-8b", "1xH100")
    names = [mode.name for mode in job.recompute]
    costed, found = cost(CostModel(job), grad_acc=3, recompute=names.index("full"))
    layer = costed.piece_costs(0)[0]
    assert found[f.STEP_RECOMPUTE] == pytest.approx(3 * 32 * layer[f.PIECE_FORWARD], rel=0.02)


def test_the_head_multiplies_three_times_and_makes_the_loss() -> None:
    job = make_job("llama-3-8b", "1xH100")
    model = CostModel(job)
    costed, _ = cost(model)
    head = costed.piece_costs(0)[model.job_inputs.kinds + 1]
    gpu, loss = model.gpu_inputs, job.framework.kernels.loss_traffic
    product = gemm_time_s(
        8192.0, 128256.0, 4096.0, 1.0, gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency, 2.0, gpu
    )
    entropy = loss * 22 * 8192 * 128256 / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
    both = head[f.PIECE_FORWARD] + head[f.PIECE_BACKWARD]
    assert both == pytest.approx(3 * product + entropy, rel=0.05)
