"""What frameworks add to the time of experts: dispatch, routing, launches, biases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.cost import fields as f
from planner.cost._jit import rows
from planner.cost.codes import CollectiveKind
from planner.cost.piece_traffic import exchange_draws, expert_exchange_stream
from planner.cost.tables import Array
from planner.evidence.runs.mapping import map_row
from planner.job.job import Job
from planner.predict.cost_model import CostModel
from planner.predict.links import network
from tests.cost.jobs import cost, key_of, make_job, with_kernels
from tests.evidence.runs.rows_for_tests import row


def step(job: Job, **degrees: int) -> Array:
    return cost(CostModel(job), **degrees)[1]


def streaming(job: Job) -> float:
    gpu = CostModel(job).gpu_inputs
    return gpu.hbm_bytes_per_s * gpu.hbm_efficiency


@pytest.mark.parametrize(("ep", "share"), [(8, 0.6564), (32, 0.4499)])
def test_a_token_crosses_once_to_each_rank_or_node_with_its_experts(ep: int, share: float) -> None:
    """n (1 - (1 - 1/n)^k) of n ranks, or of n nodes where the exchange leaves them, hold some of
    k experts; Qwen3-30B-A3B: k = 8, on 1 node and on 4."""
    job = make_job("qwen3-30b-a3b", "64xH100")
    seconds = {}
    for deduplicates in (False, True):
        model = CostModel(with_kernels(job, dispatch_deduplicates=deduplicates))
        key = key_of(cost(model, dp=64, ep=ep)[0])
        # Large, so that rates alone count, the same for both; without their latencies.
        links = model.link_inputs._replace(
            scale_up_half_bytes=0.0, scale_out_half_bytes=0.0, scale_out_latency_s=0.0,
            scale_up_latency_s=0.0, collective_launch_s=0.0,
            scale_up_dispatch_bytes_per_s=math.inf, scale_out_dispatch_bytes_per_s=math.inf,
            scale_out_exchange_bytes_per_s=math.inf,
        )  # fmt: skip
        seconds[deduplicates] = expert_exchange_stream(
            1e9, 0.0, key, model.job_inputs, model.framework_inputs, network(links)
        ).seconds
    assert seconds[True] / seconds[False] == pytest.approx(share, abs=1e-4)


def test_hybridep_sends_weights_of_all_experts_and_a_map() -> None:
    """4 bytes of 128 experts in one of two exchanges, as so many bytes of each of 8 copies."""
    model = CostModel(with_kernels(make_job("qwen3-30b-a3b", "8xB200"), dispatch_deduplicates=True))
    rest = key_of(cost(model, dp=8, ep=8)[0]), *model.inputs[:2], model.network
    sent, same = (expert_exchange_stream(*given, *rest) for given in ((0, 1e6), (2048e6, 0)))
    assert sent == same
    assert (rows(model.op_table.collectives, f.COMM_ROW)["kind"] == CollectiveKind.ALL_GATHER).any()


@pytest.mark.parametrize(("ep", "draws"), [(1, 1.0), (16, 1.0), (32, 2.0), (128, 8.0)])
def test_neighbouring_experts_lie_on_few_ranks(ep: int, draws: float) -> None:
    """Qwen3-30B-A3B: 8 of 128 experts, so k·ep/E ranks, at least one and at most k."""
    job = with_kernels(make_job("qwen3-30b-a3b", "128xH100"), neighbouring_experts=True)
    model = CostModel(job)
    costed, _ = cost(model, dp=128, ep=ep)
    key = key_of(costed)
    assert exchange_draws(key, model.job_inputs) == draws


@pytest.mark.parametrize(
    ("model", "forward", "backward"), [("qwen3-30b-a3b", 2, 4), ("gpt-oss-20b", 4, 12)]
)
@pytest.mark.parametrize("ep", [2, 8])
def test_the_cpu_launches_the_products_of_each_expert(
    model: str, forward: int, backward: int, ep: int
) -> None:
    """Two products an expert, and each one's gradients; a bias has a product and a sum for each.
    Experts that are modules of their own issue whole rows instead."""
    job = with_kernels(make_job(model, "8xH100", "megatron-core"), issue_s=1.0, launch_s=0.0)
    assert job.model.moe is not None
    experts = job.model.moe.experts / ep
    for by, launches in ((False, experts), (True, 0.0)):
        looped = with_kernels(job, sequential_experts=by)
        none, some = (
            cost(CostModel(with_kernels(looped, launch_s=seconds)), dp=8, ep=ep)[0].piece_costs(0)[
                0
            ]
            for seconds in (0.0, 0.01)
        )
        a_launch = launches * 0.01 / job.cluster.host_speed
        assert some[f.PIECE_FORWARD] - none[f.PIECE_FORWARD] == pytest.approx(forward * a_launch)
        assert some[f.PIECE_BACKWARD] - none[f.PIECE_BACKWARD] == pytest.approx(backward * a_launch)


def test_bare_launches_have_a_speed_of_their_own() -> None:
    """Of each host, up to the time that a whole row takes it."""
    job = with_kernels(make_job("qwen3-30b-a3b", "8xGB200"), issue_s=2e-4, launch_s=1e-5)
    assert CostModel(job).framework_inputs.launch_s == 1e-5 / job.cluster.host_launch_speed
    slow = job.cluster.model_copy(update={"host_launch_speed": 0.01})
    whole_s = CostModel(replace(job, cluster=slow)).framework_inputs.launch_s
    assert whole_s == 2e-4 / job.cluster.host_speed


@pytest.mark.parametrize(("fused", "forward", "backward"), [(False, 36, 24), (True, 3, 3)])
def test_routing_is_many_small_kernels(fused: bool, forward: int, backward: int) -> None:
    """Each starts on the GPU; 12 and 8 of torch's, or two fused ones each way, stream an fp32 value
    of each token and expert, read and written."""
    job = make_job("qwen3-30b-a3b", "8xH100", "megatron-core")
    job = with_kernels(job, issue_s=0.0, launch_s=0.0, fused_router=fused)
    model = CostModel(job)
    without = CostModel(job)
    first, *others = without.pieces
    kept = tuple(op for op in first.ops if op.name != "moe/routing")
    without.__dict__["pieces"] = (replace(first, ops=kept), *others)
    more, less = (cost(one, dp=8, ep=8)[0].piece_costs(0)[0] for one in (model, without))
    streamed_s = 8.0 * 128 * job.seq / streaming(job)
    for column, kernels, passes in (
        (f.PIECE_FORWARD, forward, 2 if fused else 12),
        (f.PIECE_BACKWARD, backward, 2 if fused else 8),
    ):
        expected = kernels * model.gpu_inputs.kernel_floor_s + passes * streamed_s
        assert more[column] - less[column] == pytest.approx(expected)


def test_torch_operators_are_issued_at_the_speed_of_bare_launches() -> None:
    """A sixth of a module's time each, over what a host loses at them; none in a graph."""
    for gpus, loss in (("8xH100", 1.0), ("8xGB200", 0.95 / 0.51)):
        job = make_job("qwen3-30b-a3b", gpus, "megatron-core")
        names = [op.name for piece in CostModel(job).pieces for op in piece.ops]
        ops = rows(CostModel(job).op_table.ops, f.OP_ROW)
        assert ops[names.index("moe/routing")].issued == pytest.approx(loss / 6.0)
        captured = rows(CostModel(with_kernels(job, captured=True)).op_table.ops, f.OP_ROW)
        assert captured[names.index("moe/routing")].issued == 0.0


@pytest.mark.parametrize(
    ("graphs", "held"),
    [
        ("transformer_engine: attn moe_router moe_preprocess", ("attention/core", "moe/routing")),
        ("transformer_engine: moe_router moe_preprocess", ("moe/routing",)),
        ("transformer_engine: attn", ("attention/core",)),
    ],
)
def test_graphs_hold_the_modules_that_are_named(graphs: str, held: tuple[str, ...]) -> None:
    cells = {"framework": "Megatron-Bridge", "moe": "8 experts top2", "cuda_graphs": graphs}
    model = CostModel(map_row(row(**cells)).job)
    names = [op.name for piece in model.pieces for op in piece.ops]
    issued = rows(model.op_table.ops, f.OP_ROW)["issued"]
    for name in ("attention/core", "moe/routing"):
        assert (issued[names.index(name)] == 0.0) == (name in held)
    assert issued[names.index("moe/experts_up")] == 1.0


def test_a_graph_of_the_step_launches_no_expert() -> None:
    job = with_kernels(make_job("qwen3-30b-a3b", "8xH100", "megatron-core"), issue_s=0.0)
    assert job.framework.kernels.launch_s > CostModel(job).framework_inputs.launch_s == 0.0


def test_the_gpu_idles_while_the_cpu_reads_token_counts() -> None:
    """One `issue_s` in the forward of a layer of experts that is longer than its issue, and where
    it is run again; no other."""
    job = make_job("qwen3-30b-a3b", "8xH100", "megatron-core")
    full = [mode.name for mode in job.recompute].index("full")
    first, waits = (
        cost(CostModel(with_kernels(job, counts_on_host=by)), dp=8, ep=8, mbs=8, recompute=full)[0]
        for by in (False, True)
    )
    added = waits.piece_costs(0) - first.piece_costs(0)
    issue_s = CostModel(job).framework_inputs.issue_s
    assert added[0, [f.PIECE_FORWARD, f.PIECE_RECOMPUTE]] == pytest.approx(issue_s)
    assert not added[0, [f.PIECE_BACKWARD, f.PIECE_FORWARD_EP]].any()
    assert not added[1:].any()


def test_atomics_add_up_what_torch_permutes() -> None:
    """qwen3-30b-a3b, a sequence, 8 copies of 2,048 values: in forward, again where experts run
    again, and in backward; whatever the GPU's memory streams."""
    job = make_job("qwen3-30b-a3b", "8xB200")
    assert job.framework.kernels.fused_permutation
    job = with_kernels(job, issue_s=0.0, launch_s=0.0)
    names = [mode.name for mode in job.recompute]
    layers, added = job.model.layers, job.seq * 8 * 2048
    for recompute, times in (("none", 2), ("full", 3)):
        mode = names.index(recompute)
        torch, fused = (
            step(with_kernels(job, fused_permutation=item), ep=8, dp=8, recompute=mode)
            for item in (False, True)
        )
        more = sum(torch[name] - fused[name] for name in (f.STEP_COMPUTE, f.STEP_RECOMPUTE))
        assert more == pytest.approx(times * layers * added / 1.2e11, rel=1e-6)


@pytest.mark.parametrize(("less", "size", "kernels"), [("expert_bias", 68, 166), ("clamp", 46, 0)])
def test_biases_and_limits_of_experts_are_passes_of_their_own(
    less: str, size: float, kernels: float
) -> None:
    """Bytes of an element of each routed copy (Megatron-Core: `_apply_bias`, clamps), streamed; two
    kernels of each of 16 experts in forward and eight in backward are started for the bias."""
    job = make_job("gpt-oss-120b", "8xB200")
    moe = job.model.moe
    assert moe is not None
    plain = job.model.model_copy(update={"moe": moe.model_copy(update={less: None})})
    with_bias, without = (
        step(with_kernels(replace(job, model=spec), issue_s=0.0), ep=8, dp=8)[f.STEP_COMPUTE]
        for spec in (job.model, plain)
    )
    floor_s = job.model.layers * kernels * CostModel(job).gpu_inputs.kernel_floor_s
    copies = job.model.layers * job.seq * moe.top_k
    expected = size * copies * job.model.hidden / streaming(job) + floor_s
    assert with_bias - without == pytest.approx(expected, rel=1e-3)
