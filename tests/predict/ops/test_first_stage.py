"""A vision tower on the first stage of Megatron's pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from planner.cost.codes import ParamShard, Shard
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.recompute import Module
from planner.job.request import Request
from planner.job.resolve import resolve
from planner.predict.cost_tables import context_inputs, job_pieces, op_context
from planner.predict.evaluate import evaluate
from planner.predict.ops.rows import Op
from planner.predict.plan import Degrees, Plan
from planner.predict.saved import rank_key, saved_bytes
from planner.search.search import find_plans
from tests.truth.tuning_counts import tuning_counts

RANKS = tuning_counts("vision_ranks.csv")
# Bytes of a patch that a layer of Qwen2.5-VL's tower and what stands around its layers keep in 16
# bits, as transformers' modules do (docs/model/vision.md).
LAYER, ENDS = 65_832.0, 18_360.0


def request_of(model: str, **changes: Any) -> Request:
    asked: dict[str, Any] = {
        "framework": "megatron-bridge", "gpus": "8xH100", "gbs": 64, "seq": 8192,
        "images": "1x1024x1024",
    }  # fmt: skip
    return Request(model=model, **(asked | changes))


def job_of(model: str, **changes: Any) -> Job:
    return resolve(request_of(model, **changes))


def tower_of(job: Job) -> list[Op]:
    """Rows of the tower and the projector, which stand in the embedding's piece."""
    assert job.model.piece_sequence == job.model.kind_sequence
    return [op for op in job_pieces(job)[len(job.model.kinds)].ops if op.apart]


def kept(job: Job, modules: Module = Module.NOTHING, **degrees: int) -> float:
    """Bytes that the tower keeps of one sequence on a rank."""
    context, key = op_context(job), rank_key(modules, **degrees)
    rows = (row for op in tower_of(job) for row in op.saved if row.kept_under(modules))
    return sum(
        saved_bytes(row, context, key)
        for row in rows
        if not (row.exchanged or row.name == "embedding/image_mask")
    )


def plan_of(
    request: Request, mode: str = "none", blocks: Sequence[int] | None = None, **degrees: int
) -> Plan:
    usual = {"tp": 2, "pp": 2, "dp": 2, "mbs": 1, "grad_acc": 32, "zero": 1}
    return evaluate(request, Degrees(**(usual | degrees)), mode, blocks)


@pytest.mark.parametrize("row", RANKS, ids=[f"{row['model']} tp{row['tp']}" for row in RANKS])
def test_parameters_of_a_rank(row: dict[str, str]) -> None:
    """As many to the last one as tensors of transformers, split as Megatron-Bridge splits them."""
    split = {ParamShard.TP: int(row["tp"])}
    held = sum(
        count / split.get(shard, 1)
        for op in tower_of(job_of(row["model"]))
        for count, shard in op.parameters
    )
    assert held == int(row["parameters"])


@pytest.mark.parametrize("degrees", [{}, {"tp": 8}, {"tp": 4, "pp": 2}])
def test_a_copy_keeps_what_transformers_modules_keep(degrees: dict[str, int]) -> None:
    job = job_of("qwen2.5-vl-72b")
    patches = job.model.images.patches * job.seq
    assert patches == 5476
    assert kept(job, Module.FULL, **degrees) == pytest.approx(
        patches * (32 * LAYER + ENDS), rel=2e-2
    )


def test_a_split_tower_divides_its_widths_over_tp_and_nothing_over_cp() -> None:
    job = job_of("qwen3-vl-8b")
    whole = kept(job)
    assert kept(job, cp=2) == pytest.approx(whole)
    # Inputs of norms and of the first products are whole on every rank.
    assert 0.3 * whole < kept(job, tp=8) < 0.6 * whole


def test_recomputation_reaches_qwen3_vl_alone() -> None:
    split, copied = job_of("qwen3-vl-8b"), job_of("qwen2.5-vl-7b")
    assert kept(split, Module.FULL) < 0.3 * kept(split)
    assert kept(copied, Module.FULL) == kept(copied)
    asked = request_of("qwen3-vl-8b")
    plain, again = (plan_of(asked, mode).stages[0] for mode in ("none", "full"))
    assert again.backward_s - plain.backward_s == pytest.approx(plain.forward_s, rel=0.1)


def test_the_first_stage_alone_has_it() -> None:
    """Weights, gradients, activations and seconds of a first stage with as many layers."""
    seen = job_of("qwen2.5-vl-7b")
    text = request_of("qwen2.5-7b", images=None)
    first, last = plan_of(request_of("qwen2.5-vl-7b")).stages
    plain_first, plain_last = plan_of(text).stages
    assert first.layers == plain_first.layers == last.layers == 14
    assert first.weights - plain_first.weights == 2 * 676_550_144
    patches = seen.model.images.patches * seen.seq
    more = first.activations - plain_first.activations
    assert more == pytest.approx(first.in_flight * patches * (32 * LAYER + ENDS), rel=0.02)
    assert first.forward_s > plain_first.forward_s
    assert last.weights == plain_last.weights
    assert last.forward_s == pytest.approx(plain_last.forward_s)


def test_gradients_of_copies_are_averaged_over_tensor_parallelism() -> None:
    """Once a step: 2 bytes of each of the tower's parameters, all-reduced over NVLink."""
    trained = plan_of(request_of("qwen2.5-vl-7b", images="none"))
    frozen = plan_of(
        request_of("qwen2.5-vl-7b", images="none", freeze=("vision_tower", "projector"))
    )
    seconds = trained.time.dp_s - frozen.time.dp_s
    assert 2e-3 < seconds < 4e-2
    alone = {"tp": 1, "pp": 2, "dp": 4, "grad_acc": 16}
    one, other = (
        plan_of(request_of("qwen2.5-vl-7b", images="none", freeze=parts), **alone).time.dp_s
        for parts in ((), ("vision_tower", "projector"))
    )
    assert one - other < seconds


def test_a_frozen_tower_keeps_nothing_and_has_no_backward() -> None:
    job = job_of("qwen2.5-vl-7b", freeze=("vision_tower", "projector"))
    assert kept(job) == 0.0
    assert all(not op.returns for op in tower_of(job) if op.parameters)


def test_adapters_of_megatron_find_no_layer_of_transformers_tower() -> None:
    job = job_of("qwen2.5-vl-7b", train="lora")
    assert {"vision_tower", "projector"} <= set(job.tuning.frozen)
    assert not any("lora" in op.name for op in tower_of(job))
    split = job_of("qwen3-vl-8b", train="lora")
    assert "vision_tower" not in split.tuning.frozen
    assert any(op.trains for op in tower_of(split))


@pytest.mark.parametrize(
    ("model", "degrees", "words"),
    [
        ("qwen2.5-vl-7b", {"cp": 2, "dp": 1}, "cp == 1"),
        ("qwen3-vl-8b", {"tp": 1, "pp": 4, "vpp": 3, "dp": 2}, "vpp == 1"),
        ("qwen3-vl-2b", {"tp": 1, "pp": 14, "dp": 1}, "layers // (pp*vpp) >= 3"),
    ],
)
def test_degrees_that_a_tower_refuses(model: str, degrees: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match="vision tower") as raised:
        plan_of(request_of(model), **degrees)
    assert words in str(raised.value)


def test_the_first_block_has_the_layers_that_projectors_add_to() -> None:
    request = request_of("qwen3-vl-8b")
    with pytest.raises(UsageError, match="adds to the output of the first 3 layers"):
        plan_of(request, blocks=(2, 34))
    assert plan_of(request, blocks=(3, 33)).stages[0].layers == 3


def test_towers_of_other_frameworks_stand_among_the_layers() -> None:
    job = job_of("qwen2.5-vl-7b", framework="hf-fsdp2")
    assert len(job.model.piece_sequence) == 32 + 28
    rows = [row for op in job_pieces(job)[0].ops for row in op.saved]
    assert {row.shard for row in rows} & {Shard.WHOLE, Shard.WHOLE_TP} == set()
    assert context_inputs(op_context(job)).layers == 60


def test_the_search_finds_the_best_split_beside_a_tower() -> None:
    """Of all splits of the language model's layers over two stages, under the memory limit."""
    request = request_of(
        "qwen2.5-vl-3b", limits={"tp": (1,), "pp": (2,), "mbs": (1,), "dp": (4,), "vpp": (1,)}
    )
    found = find_plans(request.model_copy(update={"recompute": ("none",)}))
    best = found.plans[0]
    tried = [
        plan_of(request, best.recompute, (first, 36 - first), **best.degrees.model_dump())
        for first in range(9, 19)
    ]
    fitting = [plan.step_time_s for plan in tried if plan.fits]
    assert best.layout.block_layers[0] < 18
    assert best.step_time_s <= min(fitting) * 1.001
