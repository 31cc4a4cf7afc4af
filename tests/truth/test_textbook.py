"""The literature's accounts of memory, as profiles of the same op table."""

from __future__ import annotations

import pytest

from planner.frameworks import load_framework
from planner.memory.rank import RankShape, piece_on_rank
from planner.memory.timeline import StepSettings, memory_timeline
from planner.ops.context import DtypeModeName, OpContext
from planner.ops.table import parameter_count, pieces
from planner.specs import ModelSpec
from tests.ops.test_korthikanti import gpt3
from tests.truth.models import reference_model

GIB = 2**30


def test_layer_of_the_textbook_is_34_and_five_scores() -> None:
    """Korthikanti et al. 2022, equation 2, to the byte."""
    model = gpt3()
    context = OpContext(model, load_framework("textbook"), 2048, attention="eager", dropout=True)
    layer = piece_on_rank(pieces(context)[0], context, RankShape())
    assert layer.kept / (2048 * model.hidden) == pytest.approx(
        34 + 5 * model.heads * 2048 / model.hidden, rel=1e-12
    )


@pytest.mark.parametrize(
    ("mode", "start", "between", "optimizer"), [("fp32", 4, 12, 16), ("bf16", 6, 14, 16)]
)
def test_phases_of_the_textbook(
    mode: DtypeModeName, start: int, between: int, optimizer: int
) -> None:
    """fp32: 4N before the first step, 12N between steps, 12N + A at the end of forward, 16N in
    the optimizer; mixed precision ends at the same 16N."""
    model = reference_model("llama-7b")
    count = parameter_count(model).total
    context = OpContext(model, load_framework("textbook"), 2048, attention="eager", mode=mode)
    settings = StepSettings(moment_bytes=8.0)
    timeline = memory_timeline(context, RankShape(), settings)
    activations = timeline.phase("forward end").terms["activations"]
    inputs = timeline.phase("start").terms["inputs"]
    figures = [
        (timeline.first_step[0], start * count),
        (timeline.phase("start"), between * count),
        (timeline.phase("forward end"), between * count + activations),
        (timeline.phase("optimizer"), optimizer * count),
    ]
    for phase, expected in figures:
        assert phase.total_bytes - inputs == pytest.approx(expected, rel=1e-9), phase.name


@pytest.mark.parametrize(
    ("billions", "plain", "fp32_gradients"),
    [(7, 112, 140), (70, 1120, 1400), (405, 6480, 8100)],
)
def test_sixteen_or_twenty_bytes_a_parameter(
    billions: int, plain: int, fp32_gradients: int
) -> None:
    """Mixed precision: 2 + 2 + 4 + 8; fp32 accumulation adds a 4-byte gradient."""
    state = load_framework("textbook").state
    total = state.weight_bytes + state.gradient_bytes + state.master_bytes + 8
    assert billions * total == plain
    assert billions * (total + 4) == fp32_gradients


@pytest.mark.parametrize(("batch", "gib"), [(1, 34.80), (2, 39.10), (4, 47.69), (8, 64.89)])
def test_swiglu_account(batch: int, gib: float) -> None:
    """4P + 14·L·b·s·d + b·s·d + b·s·V elements of 4 bytes: L=48, d=1600, s=1024, V=50257; the
    head is not counted among the parameters."""
    model = ModelSpec(
        name="swiglu-xl", layers=48, hidden=1600, heads=25, kv_heads=25, head_dim=64, ffn=6400,
        vocab=50257, max_positions=1024, pretraining_seq=1024, position="none",
        tied_embeddings=True,
    )  # fmt: skip
    context = OpContext(model, load_framework("textbook-swiglu"), 1024, attention="eager")
    timeline = memory_timeline(context, RankShape(mbs=batch), StepSettings(moment_bytes=8.0))
    end = timeline.phase("forward end").total_bytes - timeline.phase("start").terms["inputs"]
    assert (end + 4 * parameter_count(model).total) / GIB == pytest.approx(gib, abs=0.006)


def test_nanogpt_peak_of_the_published_trace() -> None:
    """GPT-2 small, batch 12 x 1024 under autocast, unfused attention: 21.898 GiB measured on a
    GPU (Rees 2023, "Understanding all the bytes in nanoGPT"), with the gradients of an earlier
    micro-batch and two cuBLAS workspaces of 8,519,680 bytes."""
    model = reference_model("nanogpt-124m")
    context = OpContext(model, load_framework("nanogpt"), 1024, attention="eager", mode="amp")
    timeline = memory_timeline(context, RankShape(mbs=12), StepSettings(grad_acc=2))
    workspaces = 2 * 8519680
    assert timeline.peak.at == "loss"
    assert (timeline.peak.total_bytes + workspaces) / GIB == pytest.approx(21.898, rel=1e-3)
