"""What frameworks add to the kernels' own time: casts, copies, accumulation, exchanges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost import fields as f
from planner.cost.codes import CollectiveKind
from planner.cost.layer import HOST_SPREAD
from planner.cost.tables import Array
from planner.job.job import Job
from planner.predict.cost_model import CostModel
from tests.cost.jobs import cost, make_job, with_kernels, with_table


def step(job: Job, **degrees: int) -> Array:
    return cost(CostModel(job), **degrees)[1]


def streaming(job: Job) -> float:
    gpu = CostModel(job).gpu_inputs
    return gpu.hbm_bytes_per_s * gpu.hbm_efficiency


def test_casts_cost_fp8_products_alone() -> None:
    job = with_kernels(make_job("llama-3-8b", "1xH100"), cast_traffic_bytes=0.0)
    costly = with_kernels(job, cast_traffic_bytes=4.0)
    assert step(job)[f.STEP_TIME] == step(costly)[f.STEP_TIME]
    free8, costly8 = (step(replace(item, precision="fp8")) for item in (job, costly))
    assert free8[f.STEP_COMPUTE] < costly8[f.STEP_COMPUTE] < step(job)[f.STEP_COMPUTE]


def test_accumulating_gradients_moves_so_many_bytes_a_parameter() -> None:
    job = make_job("llama-3-8b", "1xH100")
    plain, busy = (
        step(with_kernels(job, accumulation_traffic_bytes=size), grad_acc=3)[f.STEP_COMPUTE]
        for size in (0.0, 10.0)
    )
    parameters = CostModel(job)
    costs = cost(parameters)[0].piece_costs(0)
    count = float((parameters.totals * costs[:, f.PIECE_TRAINED]).sum())
    assert busy - plain == pytest.approx(3 * 10.0 * count / streaming(job), rel=0.01)


def test_fsdp_copies_weights_twice_and_gradients_once() -> None:
    job = make_job("llama-3-8b", "8xH100", "torchtitan")
    none, all_copies = (
        step(with_kernels(job, gather_copy_bytes=g, reduce_copy_bytes=r), dp=8, zero=3, mbs=2)
        for g, r in ((0.0, 0.0), (4.0, 6.0))
    )
    model = CostModel(job)
    costs = cost(model, mbs=2)[0].piece_costs(0)
    count = float((model.totals * costs[:, f.PIECE_TRAINED]).sum())
    extra = all_copies[f.STEP_TIME] - none[f.STEP_TIME]
    assert extra == pytest.approx((2 * 4.0 + 6.0) * count / streaming(job), rel=1e-6)


def test_the_gpu_idles_at_gathers_that_the_cpu_has_to_wait_for() -> None:
    """Before forward and before backward of every layer, embedding and head of a micro-batch."""
    job = make_job("llama-3-8b", "8xH100", "fsdp1")
    ahead, waits = (
        step(with_kernels(job, gather_wait_s=wait), dp=8, zero=3, mbs=2, grad_acc=3)
        for wait in (0.0, 1e-3)
    )
    pieces = job.model.layers + 2
    extra = waits[f.STEP_TIME] - ahead[f.STEP_TIME]
    assert extra == pytest.approx(3 * 2 * pieces * 1e-3 / job.cluster.host_speed, rel=1e-6)
    stage_2 = (
        step(with_kernels(job, gather_wait_s=wait), dp=8, zero=2, mbs=2)[f.STEP_TIME]
        for wait in (0.0, 1e-3)
    )
    assert len(set(stage_2)) == 1


def test_inputs_that_stay_gathered_are_gathered_once() -> None:
    """Of a layer's gathers over tp, those of the inputs that backward would read again go."""
    job = make_job("llama-3-8b", "8xH100", "torchtitan")
    again = with_table(job, "saved", keeps_gathered_inputs=False)

    def gathers(item: Job) -> float:
        rows = [c for op in CostModel(item).pieces[0].ops for c in op.collectives]
        gathers = [c for c in rows if c.kind == CollectiveKind.ALL_GATHER and c.group == "tp"]
        return sum(c.forward + c.backward for c in gathers)

    assert (gathers(job), gathers(again)) == (4.0, 6.0)
    assert step(job, tp=8)[f.STEP_TP] < step(again, tp=8)[f.STEP_TP]


def test_collectives_along_the_sequence_copy_what_they_move() -> None:
    """4 gathers and 4 reductions a layer, one of each around embedding and head, 2·h bytes a
    token: 4 bytes read and written for each of their elements."""
    job = make_job("llama-3-8b", "8xH100", "torchtitan")
    none, copied = (
        step(with_kernels(job, tensor_copy_bytes=size), tp=8)[f.STEP_TP] for size in (0.0, 4.0)
    )
    layer = job.seq * job.model.hidden * 4.0 / streaming(job)
    per_layer = (copied - none) / layer / job.model.layers
    assert 8.0 <= per_layer <= 8.0 + 4.0 / job.model.layers + 1e-9
    assert step(with_kernels(job, tensor_copy_bytes=4.0))[f.STEP_TP] == 0.0


def test_casts_before_the_gather_halve_it_in_low_precision_alone() -> None:
    job = with_kernels(make_job("llama-3-8b", "8xH100", "torchtitan"), tensor_copy_bytes=0.0)
    wide = with_kernels(job, quantised_gathers=False)
    assert step(job, tp=8)[f.STEP_TP] == step(wide, tp=8)[f.STEP_TP]
    narrow8, wide8 = (step(replace(item, precision="fp8"), tp=8)[f.STEP_TP] for item in (job, wide))
    assert 0.7 < narrow8 / wide8 < 0.8


def test_exchanges_slow_a_pipeline_between_nodes_alone() -> None:
    """nanotron: at tp > 1, with stages on different nodes."""
    for gpus, degrees, slows in (
        ("16xH100", {"tp": 8, "pp": 2}, True),
        ("16xH100", {"tp": 8, "dp": 2}, False),
        ("16xH100", {"pp": 2, "dp": 8}, False),
        ("8xH100", {"tp": 4, "pp": 2}, False),
    ):
        job = make_job("llama-3-8b", gpus, "nanotron-efa-2025")
        free = with_kernels(job, pipeline_exchange_s=0.0)
        times = [step(item, grad_acc=8, **degrees)[f.STEP_TIME] for item in (free, job)]
        assert bool(times[1] > times[0]) is slows


def test_attention_without_a_fused_softmax_streams_its_scores_one_by_one() -> None:
    """(33 + 37) bytes of each of the 12 heads' scores, fused (9 + 11)."""
    job = with_kernels(make_job("gpt3-175b", "8xA100"), issue_s=0.0)
    job = replace(job, attention="eager", seq=2048)
    fused, unfused = (
        step(replace(job, attention_kernel=kernel), tp=8)[f.STEP_COMPUTE]
        for kernel in ("eager", "torch")
    )
    scores = job.model.layers * 12.0 * 2048.0**2
    assert unfused - fused == pytest.approx((70.0 - 20.0) * scores / streaming(job), rel=1e-6)
    # Nor do frameworks without such a kernel have it.
    plain = replace(with_kernels(job, softmax_traffic=3.5), attention_kernel="eager")
    assert step(plain, tp=8)[f.STEP_COMPUTE] == unfused


def test_a_compilers_passes_over_scores_hold_no_row_in_registers() -> None:
    """Megatron's softmax spills rows of more than 4,096 scores, three times the traffic; XLA's do
    not."""
    job = with_kernels(make_job("gpt3-175b", "8xA100"), issue_s=0.0)
    job = replace(job, attention="eager", attention_kernel="eager")
    for seq, spills in ((4096, False), (8192, True)):
        kernel, compiler = (
            step(with_kernels(replace(job, seq=seq), softmax_traffic=traffic), tp=8)[f.STEP_COMPUTE]
            for traffic in (1.0, 0.999)
        )
        assert bool(kernel > 1.02 * compiler) is spills


def test_blocks_of_scores_above_the_diagonal_are_left_out() -> None:
    """Of 8 x 8 blocks of 1,024 scores a causal model needs 36."""
    job = with_kernels(make_job("gpt3-175b", "8xA100"), issue_s=0.0, softmax_traffic=0.9)
    job = replace(job, attention="eager", attention_kernel="eager", seq=8192)
    whole, blocks, none = (
        step(item, tp=8)[f.STEP_COMPUTE]
        for item in (job, with_kernels(job, score_block=1024), with_kernels(job, score_block=1e-9))
    )
    assert (blocks - none) / (whole - none) == pytest.approx((36 / 64 - 0.5) / 0.5)


def test_softmax_is_fused_where_heads_fill_blocks_of_four() -> None:
    """12 heads on each of 8 ranks of GPT-3's 96 do, 6 on each of 16 only with two sequences."""
    job = with_kernels(make_job("gpt3-175b", "16xA100"), issue_s=0.0)
    fused = replace(job, attention="eager", seq=2048)
    torch = replace(fused, attention_kernel="torch")
    for degrees, same in (({"tp": 16}, True), ({"tp": 16, "mbs": 2}, False), ({"tp": 8}, False)):
        times = [
            cost(CostModel(job), **degrees)[0].piece_costs(0)[0, f.PIECE_FORWARD]
            for job in (fused, torch)
        ]
        assert bool(times[0] == pytest.approx(times[1])) is same
        assert times[0] <= times[1] * (1.0 + 1e-9)


def test_an_unfused_softmax_issues_four_more_kernels() -> None:
    job = replace(make_job("gpt3-175b", "16xA100"), attention="eager", seq=2048)
    # So slow a CPU that kernels hide behind launches.
    slow = with_kernels(job, issue_s=1.0)
    passes = [
        cost(CostModel(slow), tp=16, mbs=mbs)[0].piece_costs(0)[
            0, [f.PIECE_FORWARD, f.PIECE_BACKWARD]
        ]
        + cost(CostModel(slow), tp=16, mbs=mbs)[0].piece_costs(0)[
            0, [f.PIECE_FORWARD_TP, f.PIECE_BACKWARD_TP]
        ]
        for mbs in (1, 2)
    ]
    assert passes[0] - passes[1] == pytest.approx(2 * [4.0 * (1.0 + 15 * HOST_SPREAD)])


def test_megatron_deepspeed_hides_no_reduction_of_input_gradients() -> None:
    """Under sequence parallelism backward has 6 collectives to forward's 4."""
    exposed = [
        cost(CostModel(make_job("gpt3-175b", "8xA100", name)), tp=8)[0].piece_costs(0)[0]
        for name in ("megatron-deepspeed", "megatron-lm-2022")
    ]
    assert exposed[0][f.PIECE_BACKWARD_TP] == pytest.approx(
        1.5 * exposed[0][f.PIECE_FORWARD_TP], rel=1e-3
    )
    assert exposed[1][f.PIECE_BACKWARD_TP] < exposed[1][f.PIECE_FORWARD_TP]


@pytest.mark.parametrize(("zero", "dp", "copies"), [(0, 8, 0), (1, 8, 8), (1, 1, 0)])
def test_zero1_copies_one_slice_of_each_tensor_for_each_rank(
    zero: int, dp: int, copies: int
) -> None:
    job = make_job("llama-3-8b", f"{dp}xH100", "nanotron")
    plain, slices = (
        step(with_kernels(job, slice_copy_s=item), dp=dp, zero=zero)[f.STEP_OPTIMIZER]
        for item in (0.0, 1e-3)
    )
    model = CostModel(job)
    tensors = model.totals @ cost(model)[0].piece_costs(0)[:, f.PIECE_TENSORS]
    assert tensors > 32 * 6
    assert slices - plain == pytest.approx(copies * tensors * 1e-3)


def test_traffic_at_the_end_of_a_step_is_of_all_parameters_of_a_rank() -> None:
    job = make_job("llama-3-8b", "8xH100", "nanotron")
    for zero in (0, 1):
        none, some = (
            step(with_kernels(job, step_traffic_bytes=item), dp=4, tp=2, zero=zero)[
                f.STEP_OPTIMIZER
            ]
            for item in (0.0, 100.0)
        )
        model = CostModel(job)
        costs = cost(model, tp=2)[0].piece_costs(0)
        count = float((model.totals * costs[:, f.PIECE_TRAINED]).sum())
        assert some - none == pytest.approx(100.0 * count / streaming(job), rel=1e-6)


def test_passes_beside_the_update_are_of_the_parameters_that_a_rank_updates() -> None:
    job = make_job("llama-3-8b", "8xH100", "megatron-lm-2022")
    more = []
    for zero in (0, 1):
        less, found = (
            step(with_kernels(job, update_traffic_bytes=size), dp=8, zero=zero)[f.STEP_OPTIMIZER]
            for size in (20.0, 120.0)
        )
        more.append(found - less)
    model = CostModel(job)
    costs = cost(model)[0].piece_costs(0)
    count = float((model.totals * costs[:, f.PIECE_TRAINED]).sum())
    whole = 100.0 * count / streaming(job)
    assert more == pytest.approx([whole, whole / 8.0], rel=1e-6)


def test_exchanges_of_a_group_over_nodes_wait_for_its_ring_in_a_pipeline() -> None:
    """Each of the 3 x 4 products of a layer adds tp - 1 = 15 steps to what the CPU issues."""
    passes = []
    for item in (0.0, 1.0):
        job = make_job("llama-3-8b", "32xH100", "nanotron")
        slow = with_kernels(job, pipeline_exchange_s=10.0, outer_tensor_step_s=item)
        costs = cost(CostModel(slow), tp=16, pp=2)[0].piece_costs(0)[0]
        forward, backward = (
            costs[f.PIECE_FORWARD : f.PIECE_FORWARD_EP + 1],
            costs[f.PIECE_BACKWARD : f.PIECE_BACKWARD_EP + 1],
        )
        passes.append(float(forward.sum() + backward.sum()))
    assert passes[1] - passes[0] == pytest.approx(3 * 4 * 15.0)


@pytest.mark.parametrize(("tp", "pp", "waits"), [(32, 2, 2), (32, 4, 4), (16, 4, 0), (32, 1, 0)])
def test_stages_over_more_than_two_nodes_wait_at_each_exchange(
    tp: int, pp: int, waits: int
) -> None:
    """nanotron: 8 micro-batches, in the step and in its bound alike."""
    job = make_job("llama-3-70b", f"{tp * pp}xH100", "nanotron")
    free, slow = (
        step(with_kernels(job, wide_stage_wait_s=item), tp=tp, pp=pp, grad_acc=8)
        for item in (0.0, 0.5)
    )
    assert slow[f.STEP_PP] - free[f.STEP_PP] == pytest.approx(8 * waits * 0.5)
    rest = slow[f.STEP_TIME] - free[f.STEP_TIME]
    assert slow[f.STEP_TIME_BOUND] - free[f.STEP_TIME_BOUND] == pytest.approx(rest)
    assert slow[f.STEP_TIME_BOUND] <= slow[f.STEP_TIME]


@pytest.mark.parametrize(
    ("framework", "gpus", "kernel"),
    [
        ("torchtitan", "8xH100", "flash3_or_cudnn"),
        ("torchtitan-2024", "8xH100", "flash2"),
        ("torchtitan", "8xB200", "flash3_or_cudnn"),
        ("torchtitan", "8xA100", "auto"),
        ("hf-fsdp2", "8xB200", "flash3_or_cudnn"),
        ("deepspeed", "8xMI300X", "auto"),
        ("megatron-core", "8xH100", "auto"),
    ],
)
def test_attention_kernel_is_the_framework_s(framework: str, gpus: str, kernel: str) -> None:
    job = make_job("llama-3-8b", gpus, framework)
    assert job.fused_attention == kernel
    assert replace(job, attention_kernel="flash1").fused_attention == "flash1"


@pytest.mark.parametrize(
    ("gpus", "framework", "kernel"),
    [
        ("64xB200", "torchtitan", "flash2"),
        ("64xB200", "megatron-core", "auto"),
        ("64xMI300X", "torchtitan", "auto"),
    ],
)
def test_torchtitan_s_special_attention_is_flex(gpus: str, framework: str, kernel: str) -> None:
    for model in ("deepseek-v3", "gpt-oss-20b"):
        assert make_job(model, gpus, framework).fused_attention == kernel
