"""The backward of unfused attention's softmax, the heaviest moment of a layer of long sequences.

Steps of three layers of Llama 7B, s 2048, b 1, counted on transformers 5.23 and torch 2.13 with
fake tensors: live bytes over the weights, in the backward of a first micro-batch, whose gradients
it makes, and of a second one, which adds to them. But where the loss is heavier (bf16) or the
feed-forward block (fp32) while nothing recomputes and gradients exist, all peak at
`_softmax_backward_data`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost import fields as f
from planner.job.job import Job
from planner.predict.configuration import degree_columns, even_layout
from planner.predict.cost_model import CostModel
from planner.predict.plan import Degrees
from tests.cost.jobs import make_job
from tests.predict.memory.cases import Case, demand_views
from tests.truth.predicted import step_job, step_timeline

SEQ, HIDDEN, FFN, VOCABULARY = 2048, 4096, 11008, 32000
SCORES = 32 * SEQ**2
BEHIND = HIDDEN**2 + 3 * HIDDEN * FFN + HIDDEN

# A checkpoint's 16-bit input, alive beside the fp32 copy that the norm keeps, is not modelled; the
# feed-forward block of a layer that recomputes is, a stream too heavy.
CLOSE = 6e-3
# (relative tolerance, peak) by precision, checkpointing and pass.
COUNTED = {
    ("fp32", "full", "backward"): (5e-5, 4_615_954_440),
    ("fp32", "full", "backward (accumulating)"): (CLOSE, 5_408_694_280),
    ("fp32", "none", "backward"): (5e-5, 5_446_377_480),
    ("fp32", "none", "backward (accumulating)"): (5e-5, 8_099_373_064),
    ("bf16", "full", "backward"): (CLOSE, 3_146_850_312),
    ("bf16", "full", "backward (accumulating)"): (CLOSE, 3_543_220_232),
    ("bf16", "none", "backward"): (5e-5, 4_686_143_496),
    ("bf16", "none", "backward (accumulating)"): (5e-5, 6_154_207_240),
}


def row(precision: str, checkpointing: str, layers: int = 3) -> dict[str, str]:
    return {
        "model": "llama-7b", "layers": str(layers), "seq": str(SEQ), "mbs": "1",
        "attention": "eager", "checkpointing": checkpointing, "precision": precision,
        "optimizer": "foreach", "grad_accum": "2",
    }  # fmt: skip


def job_of(precision: str, *, attention: str = "eager", dropout: bool = False) -> Job:
    job, _ = step_job(row(precision, "none"))
    return replace(job, attention=attention, dropout=dropout)


def layer_cost(job: Job) -> dict[str, float]:
    """What the core knows of a layer's softmax."""
    shapes = CostModel(job, compiled=False).cost_shapes(degree_columns([Degrees()]))
    costs = shapes.piece_costs(0)[0]
    names = ("PIECE_SOFTMAX", "PIECE_AFTER_CORE", "PIECE_WORKING")
    return {name: float(costs[getattr(f, name)]) for name in names}


@pytest.mark.parametrize(("precision", "checkpointing", "phase"), COUNTED)
def test_peaks_of_backward(precision: str, checkpointing: str, phase: str) -> None:
    tolerance, counted = COUNTED[precision, checkpointing, phase]
    timeline = step_timeline(row(precision, checkpointing))
    held = timeline.phase(phase).total_bytes - timeline.phase("start").total_bytes
    assert held == pytest.approx(counted, rel=tolerance)


def test_one_layer() -> None:
    """Closed form, fp32 and all recomputed: three tensors of scores, the residual stream and its
    gradient, queries, keys, values (their gradient), the norm's output twice, mask and tables."""
    timeline = step_timeline(row("fp32", "full", layers=1))
    stream, made = 4.0 * SEQ * HIDDEN, 4.0 * (BEHIND + HIDDEN + HIDDEN * VOCABULARY)
    shared = 4.0 * SEQ**2 + 2 * 4.0 * SEQ * 128
    held = 3 * 4.0 * SCORES + 7 * stream + made + shared
    total_bytes = timeline.phase("backward").total_bytes - timeline.phase("start").total_bytes
    assert total_bytes == pytest.approx(held, rel=1e-4)


@pytest.mark.parametrize(
    ("precision", "dropout", "per_score"),
    [
        ("fp32", False, 8.0),
        ("bf16", False, 6.0),  # fp32 softmax: its 16-bit copy for the product is freed
        ("amp", False, 6.0),
        ("fp32", True, 3.0),  # dropout's output and mask are
        ("bf16", True, 5.0),
    ],
)
def test_bytes_of_a_score(precision: str, dropout: bool, per_score: float) -> None:
    """w*a*s^2 and the gradient of the residual stream, less what the rows behind the core keep."""
    job = job_of(precision, dropout=dropout)
    assert CostModel(job, compiled=False).framework_inputs.softmax_bytes == per_score
    cost = layer_cost(job)
    assert cost["PIECE_AFTER_CORE"] == BEHIND
    if precision == "fp32" and not dropout:
        # Input of the out projection; of the norm, normalised, scaled; gate, its activation, up,
        # their product; and rstd.
        freed = 4.0 * SEQ * (4 * HIDDEN + 4 * FFN + 1)
        assert cost["PIECE_SOFTMAX"] == 8.0 * SCORES + 4.0 * SEQ * HIDDEN - freed


def test_fused_attention_has_no_such_moment() -> None:
    fused = job_of("fp32", attention="flash")
    assert layer_cost(fused)["PIECE_SOFTMAX"] == 0.0
    megatron = replace(make_job("llama-2-7b", framework="megatron-local"), attention="eager")
    assert layer_cost(megatron)["PIECE_SOFTMAX"] == 0.0


@pytest.mark.parametrize("mode", ["none", "full"])
@pytest.mark.parametrize("zero", [0, 3])
def test_views_add_up(mode: str, zero: int) -> None:
    """The moment shows up in the views and in the compiled core alike."""
    given, _ = step_job(row("fp32", mode))
    job = replace(given, recompute=(given.framework.recompute_mode(mode),))
    for accumulated in (1, 2):
        degrees = Degrees(dp=2, zero=zero, grad_acc=accumulated)
        layout = even_layout(job, 1, 1, job.recompute[0])
        demand_views(Case(job, degrees, layout), f"{mode} zero{zero} acc{accumulated}")


@pytest.mark.parametrize(("framework", "per_score"), [("torch-3d", 6.0), ("megatron-lm-2022", 0.0)])
def test_a_softmax_of_fp32_scores_has_it_whatever_else_is_fused(
    framework: str, per_score: float
) -> None:
    """Megatron-LM's fused softmax reads and writes 16 bits, in place."""
    job = replace(make_job("llama-2-7b", "8xA100", framework), attention="eager")
    assert CostModel(job, compiled=False).framework_inputs.softmax_bytes == per_score
