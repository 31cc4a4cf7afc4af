"""A whole step: certificates, limits and monotone properties on real jobs."""

from __future__ import annotations

import pytest

from planner.cost import compiled
from planner.cost import fields as f
from planner.cost.schedule import SCHEDULE_1F1B, SCHEDULE_ZB_V, boundary_hideable, boundary_passes
from planner.predict.cost_model import CostModel
from tests.configurations import even_counts
from tests.cost.jobs import cost, make_job, on_ideal_links, with_table

TIME_TERMS = list(f.TIME_COLUMNS.values())
SHAPES = [
    {"tp": 1, "dp": 16, "zero": 1, "grad_acc": 4},
    {"tp": 8, "dp": 2, "zero": 1, "grad_acc": 8},
    {"tp": 2, "pp": 4, "dp": 2, "grad_acc": 8},
    {"tp": 2, "pp": 2, "vpp": 4, "cp": 2, "dp": 2, "zero": 1, "grad_acc": 8},
]


@pytest.fixture(scope="module")
def model() -> CostModel:
    return CostModel(make_job())


@pytest.mark.parametrize("shape", SHAPES)
def test_terms_add_up_to_the_step(model: CostModel, shape: dict[str, int]) -> None:
    _, step = cost(model, **shape)
    assert sum(step[term] for term in TIME_TERMS) == pytest.approx(step[f.STEP_TIME], rel=1e-12)
    assert all(step[term] > -1e-9 for term in TIME_TERMS)


@pytest.mark.parametrize("shape", SHAPES)
def test_bounds_hold_for_the_even_layout(model: CostModel, shape: dict[str, int]) -> None:
    _, step = cost(model, **shape)
    assert step[f.STEP_TIME_BOUND] <= step[f.STEP_TIME] * (1 + 1e-12)
    assert step[f.STEP_PEAK_BOUND] <= step[f.STEP_PEAK_BYTES] * (1 + 1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_stage_memory_adds_up(model: CostModel, shape: dict[str, int]) -> None:
    costed, step = cost(model, **shape)
    _, stages = model.cost_layout(costed, 0, even_counts(model, costed, 0))
    for stage in stages:
        outside = (
            stage[f.STAGE_FRAGMENTATION] + stage[f.STAGE_CONTEXT] + stage[f.STAGE_COMMUNICATION]
        )
        assert stage[f.STAGE_PEAK] == pytest.approx(stage[f.STAGE_ALLOCATED] + outside)
    assert stages[:, f.STAGE_PEAK].max() == pytest.approx(step[f.STEP_PEAK_BYTES], rel=1e-12)


def test_one_gpu_communicates_nothing() -> None:
    model = CostModel(make_job("gpt2", "1xH100"))
    _, step = cost(model, grad_acc=4)
    for term in (f.STEP_TP, f.STEP_CP, f.STEP_EP, f.STEP_FSDP, f.STEP_PP, f.STEP_DP):
        assert step[term] == 0.0
    assert step[f.STEP_BUBBLE] == 0.0
    assert step[f.STEP_TIME_BOUND] == pytest.approx(step[f.STEP_TIME])


@pytest.mark.parametrize("shape", SHAPES)
def test_infinite_links_leave_pure_compute(model: CostModel, shape: dict[str, int]) -> None:
    _, step = cost(on_ideal_links(model.job), **shape)
    for term in (f.STEP_TP, f.STEP_CP, f.STEP_EP, f.STEP_FSDP, f.STEP_PP, f.STEP_DP):
        assert step[term] == pytest.approx(0.0, abs=1e-9)


def test_a_second_model_does_not_recompile(model: CostModel) -> None:
    cost(model, dp=16, grad_acc=4)
    signatures = len(compiled.cost_shapes.functions)
    for name, gpus in (("mixtral-8x7b", "8xB200"), ("deepseek-v3", "256xH800")):
        cost(CostModel(make_job(name, gpus)), dp=8, grad_acc=1)
    assert len(compiled.cost_shapes.functions) == signatures


@pytest.mark.parametrize(
    ("schedule", "shape", "passes", "hideable"),
    [
        (SCHEDULE_1F1B, (4, 1, 8), 1.0, 1.0),
        (SCHEDULE_1F1B, (4, 12, 8), 11 * 4 / 12, 11 / 12),
        # Fewer micro-batches than stages.
        (SCHEDULE_1F1B, (4, 2, 2), 1.0, 1 / 2),
        (SCHEDULE_ZB_V, (4, 2, 8), 1.0, 1.0),
    ],
)
def test_what_stands_beside_the_traffic_at_the_ends_of_a_step(
    schedule: int, shape: tuple[int, int, int], passes: float, hideable: float
) -> None:
    assert boundary_passes(schedule, *map(float, shape)) == pytest.approx(passes)
    assert boundary_hideable(schedule, float(shape[1])) == pytest.approx(hideable)


def test_interleaved_chunks_hide_all_but_the_first_one_s_traffic() -> None:
    """Nemotron-340B on 128 B200: gradients travel longer than a micro-batch's pass takes, shorter
    than those of four; then a twelfth is left."""
    job = make_job("nemotron-4-340b", "128xB200")
    shown = {}
    for hidden in (0.0, 1.0):
        model = CostModel(
            with_table(
                job,
                "overlap",
                gradient_reduction=hidden,
                parameter_gather=hidden,
                contention=0.0,
                data_contention=0.0,
            )
        )
        for vpp in (1, 12):
            _, step = cost(model, tp=8, pp=4, vpp=vpp, dp=4, zero=1, grad_acc=8)
            shown[hidden, vpp] = step[f.STEP_DP]
    assert shown[1.0, 1] > 0.4 * shown[0.0, 1]
    assert shown[0.0, 12] / 12 < shown[1.0, 12] < 0.15 * shown[0.0, 12]
