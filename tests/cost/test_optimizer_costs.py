"""State, temporaries and time of optimizers in the compiled core, against closed forms."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hardware.curves import host_curves
from planner.cost import fields as f
from planner.cost.class_sums import updated_parameters
from planner.cost.data_parallel import optimizer_seconds
from planner.cost.tables import Array
from planner.cost.update import extra_update_seconds
from planner.job.job import Job
from planner.job.optimizers import load_optimizer
from planner.job.specs import ModelSpec
from planner.predict.cost_model import CostModel
from planner.predict.ops.table import parameter_count
from tests.configurations import even_counts
from tests.cost.jobs import cost, make_job
from tests.search.brute import framework_inputs

# A Llama of three widths: norms are the only vectors.
MODEL = ModelSpec(
    name="small", layers=3, hidden=512, heads=8, kv_heads=4, head_dim=64, ffn=1536, vocab=32000,
    max_positions=2048, pretraining_seq=2048,
)  # fmt: skip
MATRICES = [(512, 512), (512, 512), (512, 512), (1536, 512), (1536, 512), (512, 1536)]
IN_MATRICES = 3 * sum(rows * columns for rows, columns in MATRICES)
VECTORS = 7 * 512
TABLES = 2 * 32000 * 512


@pytest.mark.parametrize(("zero", "owned"), [(0, 140.0), (1, 30.0), (3, 30.0)])
def test_experts_are_updated_by_the_ranks_that_share_them(zero: int, owned: float) -> None:
    """80 dense parameters over 8 ranks, 60 of experts over 3: 7 bytes each and a tenth of a second
    offloaded, and 2 bytes of all of them, at 4 bytes/s."""
    grid = SimpleNamespace(zero=zero, shards=8.0, expert_shards=3.0)
    framework = framework_inputs(step_traffic_bytes=2.0, optimizer_traffic_bytes=7.0, offload_s=0.1)
    gpu = SimpleNamespace(hbm_bytes_per_s=8.0, hbm_efficiency=0.5)
    counted = updated_parameters(SimpleNamespace(parameters=[80.0, 60.0]), grid, framework)
    seconds = optimizer_seconds(*counted, framework, gpu)
    assert seconds == pytest.approx((7.0 * owned + 2.0 * 140.0) / 4.0 + 0.1 * owned)


@pytest.mark.parametrize(("zero", "seconds"), [(0, 100.333333), (1, 25.5), (2, 21.5)])
def test_what_an_update_takes_besides(zero: int, seconds: float) -> None:
    """140 FLOP at 1.5/s, 14 bytes of state read and written at 4/s; under ZeRO shared, and under
    ZeRO-1 a copy of a tenth of a second for each of 5 tensors and 8 ranks."""
    cost = SimpleNamespace(
        update_flop=[80.0, 60.0], state=[8.0, 6.0], tensors=5.0,
    )  # fmt: skip
    grid = SimpleNamespace(zero=zero, shards=8.0, expert_shards=3.0)
    gpu = SimpleNamespace(
        hbm_bytes_per_s=8.0, hbm_efficiency=0.5, matmul16_flop_per_s=3.0, gemm16_max_efficiency=0.5
    )
    found = extra_update_seconds(cost, grid, framework_inputs(slice_copy_s=0.1), gpu)
    assert found == pytest.approx(seconds)


def small_job(framework: str, optimizer: str = "adamw", **changes: object) -> Job:
    job = make_job("llama-3-8b", "8xH100", framework)
    return replace(
        job,
        model=MODEL,
        seq=2048,
        optimizer=load_optimizer(optimizer),
        **changes,  # type: ignore[arg-type]
    )


def stages_of(job: Job, **degrees: int) -> tuple[Array, Array]:
    """(STEP_* vector, STAGE_* matrix) of a shape in its even layout, nothing recomputed."""
    model = CostModel(replace(job, recompute=(job.framework.recompute_mode("none"),)))
    costed, step = cost(model, **degrees)
    _, stages = model.cost_layout(costed, 0, even_counts(model, costed, 0))
    return step, stages


def test_the_small_model_is_what_it_seems() -> None:
    assert parameter_count(MODEL).total == IN_MATRICES + VECTORS + TABLES


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [("adamw", 12), ("adamw-bf16", 8), ("adamw-fp8", 7), ("sgd", 8), ("sgd:momentum=none", 4),
     ("lion", 8), ("adamw:exp_avg=fp8,exp_avg_sq=fp8,master=fp16", 4)],
)  # fmt: skip
def test_state_of_every_parameter(optimizer: str, state: float) -> None:
    """Master weight and moments of an unsharded textbook model."""
    _, stages = stages_of(small_job("textbook", optimizer))
    assert stages[0, f.STAGE_OPTIMIZER] == pytest.approx(state * parameter_count(MODEL).total)


def test_muon_leaves_tables_and_vectors_to_adamw() -> None:
    """4 bytes a matrix element, 8 elsewhere, and the fp32 master weight."""
    _, stages = stages_of(small_job("textbook", "muon"))
    expected = 8 * IN_MATRICES + 12 * (VECTORS + TABLES)
    assert stages[0, f.STAGE_OPTIMIZER] == pytest.approx(expected, rel=1e-12)


def test_muon_orthogonalises_one_matrix_at_a_time() -> None:
    """bf16 X and B·X of the largest matrix (gate and up are one product in Megatron), A and B;
    5 iterations of 4m²n + 2m³ FLOP for each matrix, shared by the ZeRO group."""
    model = CostModel(small_job("megatron-core", "muon"))
    costed, _ = cost(model, dp=8, zero=1, grad_acc=1)
    layer = costed.piece_costs(0)[0]
    assert layer[f.PIECE_UPDATE_BYTES] == 2 * (2 * 512 * 3072 + 2 * 512**2)
    fused = [(512, 512), (512, 512), (512, 512), (512, 3072), (512, 1536)]
    flop = sum(5 * (4 * m * m * n + 2 * m**3) for m, n in fused)
    assert layer[f.PIECE_UPDATE_FLOP] == pytest.approx(flop)
    assert costed.piece_costs(0)[1][f.PIECE_UPDATE_FLOP] == 0
    adamw = CostModel(small_job("megatron-core", "adamw"))
    slower = cost(model, dp=8, zero=1)[1] - cost(adamw, dp=8, zero=1)[1]
    assert slower[f.STEP_OPTIMIZER] > 0


@pytest.mark.parametrize(("name", "moment"), [("adafactor", 0), ("adafactor-momentum", 4)])
def test_adafactor_keeps_rows_and_columns(name: str, moment: int) -> None:
    _, stages = stages_of(small_job("textbook", name))
    # The textbook's products are fused: q with k and v apart, gate with up.
    fused = [(512, 512), (512, 512), (512, 512), (512, 3072), (512, 1536)]
    sums = 3 * sum(rows + columns for rows, columns in fused) + 2 * (32000 + 512) + VECTORS
    expected = (4 + moment) * parameter_count(MODEL).total + 4 * sums
    assert stages[0, f.STAGE_OPTIMIZER] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kernel", "copies"), [("fused", 0.0), ("foreach", 4.0)])
def test_lists_of_tensors_copy_what_they_update(kernel: str, copies: float) -> None:
    """FSDP2: one fp32 copy of the shard."""
    job = small_job("torchtitan", optimizer_kernel=kernel)
    model = CostModel(job)
    assert model.framework_inputs.optimizer_temporary_bytes == copies


def test_a_plain_loop_makes_two_copies_of_one_tensor_at_a_time() -> None:
    model = CostModel(small_job("torchtitan", optimizer_kernel="forloop"))
    costed, _ = cost(model, dp=8, zero=3)
    assert model.framework_inputs.optimizer_temporary_bytes == 0
    assert costed.piece_costs(0)[1][f.PIECE_UPDATE_BYTES] == 2 * 4 * 32000 * 512


@pytest.mark.parametrize("framework", ["megatron-core", "deepspeed"])
def test_more_offload_is_lighter_and_slower(framework: str) -> None:
    zero = 1 if framework == "megatron-core" else 2
    steps, states = [], []
    for share in (0.0, 0.25, 0.5, 1.0):
        step, stages = stages_of(
            small_job(framework, optimizer_offload=share), dp=8, zero=zero, grad_acc=1
        )
        steps.append(step[f.STEP_TIME])
        states.append(float(stages[0, f.STAGE_OPTIMIZER]))
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    full = states[0]
    assert states == pytest.approx([full, 0.75 * full, 0.5 * full, 0.0])


def test_time_of_a_whole_offload() -> None:
    """Megatron: fp32 gradients down and 16-bit weights up over the host link, 28 bytes of host
    memory a parameter in between; DeepSpeed sends the gradients during backward."""
    job = small_job("megatron-core", optimizer_offload=1.0)
    model = CostModel(job)
    host = model.link_inputs.host_bytes_per_s
    cpu = 28 / (host_curves().cpu_adam_bytes_per_s_per_node.value / 8)
    owned = parameter_count(MODEL).total / 8
    step, _ = stages_of(job, dp=8, zero=1)
    assert step[f.STEP_OPTIMIZER] == pytest.approx(owned * (4 / host + cpu + 2 / host), rel=1e-4)
    deepspeed = small_job("deepspeed", optimizer_offload=1.0)
    cpu /= deepspeed.framework.optimizer.offload_host_share
    assert CostModel(deepspeed).framework_inputs.offload_s == pytest.approx(cpu + 2 / host)


def test_offloaded_gradients_leave_the_gpu() -> None:
    """DeepSpeed ZeRO-2: no gradient shard; Megatron's buffer stays."""
    _, stages = stages_of(small_job("deepspeed", optimizer_offload=1.0), dp=8, zero=2)
    assert stages[0, f.STAGE_GRADIENTS] == 0
    _, stages = stages_of(small_job("megatron-core", optimizer_offload=1.0), dp=8, zero=1)
    assert stages[0, f.STAGE_GRADIENTS] == 4 * parameter_count(MODEL).total
