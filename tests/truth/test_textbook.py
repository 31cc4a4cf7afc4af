"""The literature's accounts of memory, as profiles of the same op table."""

from __future__ import annotations

from typing import Any

import pytest

from planner.job.frameworks.profile import DtypeModeName, load_framework
from planner.predict.memory.account import MemoryTimeline
from planner.predict.ops.table import parameter_count
from planner.predict.plan import Degrees
from tests.truth.predicted import counted_job, job_timeline, reference_model

GIB = 2**30
LLAMA = reference_model("llama-7b")


def timeline(
    framework: str, mode: DtypeModeName = "bf16", grad_acc: int = 1, **given: Any
) -> MemoryTimeline:
    """Steps of Llama-7B, one sequence of 2048, on one device; `given`: of the job."""
    attention = "flash" if framework.startswith(("megatron", "nanotron")) else "eager"
    job = counted_job(LLAMA, load_framework(framework), 2048, mode, attention=attention, **given)
    return job_timeline(job, Degrees(grad_acc=grad_acc))


@pytest.mark.parametrize(
    ("mode", "start", "between", "optimizer"), [("fp32", 4, 12, 16), ("bf16", 6, 14, 16)]
)
def test_phases_of_the_textbook(
    mode: DtypeModeName, start: int, between: int, optimizer: int
) -> None:
    """fp32: 4N before the first step, 12N between steps, 12N + A at the end of forward, 16N + A
    at the start of backward, 16N in the optimizer; mixed precision ends
    at the same 16N."""
    count = parameter_count(LLAMA).total
    steps = timeline("textbook", mode, grad_acc=2)
    activations = steps.phase("forward end").terms["activations"]
    inputs = steps.phase("start").terms["inputs"]
    figures = [
        (steps.first_step[0], start * count),
        (steps.phase("start"), between * count),
        (steps.phase("forward end"), between * count + activations),
        (steps.phase("backward"), optimizer * count + activations),
        (steps.phase("forward end (accumulating)"), optimizer * count + activations),
        (steps.phase("optimizer"), optimizer * count),
    ]
    for phase, expected in figures:
        # The gradient of one residual stream is no part of the account.
        total_bytes = phase.total_bytes - inputs - phase.terms.get("working", 0.0)
        assert total_bytes == pytest.approx(expected, rel=1e-9), phase.name


def test_backward_without_persistent_gradients() -> None:
    """PyTorch makes each gradient as backward frees activations: the peak is 12N + A and
    temporaries (gradients of logits, of one layer and of its scores), not 16N + A."""
    count = parameter_count(LLAMA).total
    steps = timeline("hf-transformers", "fp32")
    activations = steps.phase("forward end").terms["activations"]
    temporaries = steps.phase("backward").total_bytes - 12 * count - activations
    logits = 8 * 2048 * LLAMA.vocab
    assert 0.5 * logits < temporaries < 0.06 * 4 * count


def test_foreach_adamw_peaks_at_twenty_bytes() -> None:
    """It makes a copy of the parameters: 20N in the optimizer; the fused kernel 16N."""
    count = parameter_count(LLAMA).total
    steps = timeline("hf-transformers", "fp32", optimizer_kernel="foreach")
    optimizer = steps.phase("optimizer")
    assert optimizer.total_bytes - optimizer.terms["inputs"] == 20 * count
    assert steps.peak.name == "optimizer"


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-local", "megatron-lm-2022"])
def test_megatron_holds_eighteen_bytes(framework: str) -> None:
    """bf16 weights, fp32 gradients, master and moments: 2 + 4 + 4 + 8."""
    optimizer = timeline(framework).phase("optimizer")
    held = optimizer.total_bytes - optimizer.terms["inputs"]
    assert held == pytest.approx(18 * parameter_count(LLAMA).total, rel=1e-9)


@pytest.mark.parametrize(
    ("billions", "plain", "fp32_gradients"),
    [(7, 112, 140), (70, 1120, 1400), (405, 6480, 8100)],
)
def test_sixteen_or_twenty_bytes_a_parameter(
    billions: int, plain: int, fp32_gradients: int
) -> None:
    """Mixed precision in GB: 2 + 2 + 4 + 8; accumulating gradients in fp32 beside those in 16
    bits adds 4 (nanotron)."""
    count = parameter_count(LLAMA).total
    for framework, gigabytes in (("textbook", plain), ("nanotron", fp32_gradients)):
        held = timeline(framework).phase("gradient reduction")
        per_parameter = (held.total_bytes - held.terms["inputs"]) / count
        assert billions * per_parameter == pytest.approx(gigabytes, rel=1e-6)


class TestNanoGpt:
    """GPT-2 small, batch 12 x 1024, autocast, unfused attention (Rees 2023, "Understanding all
    the bytes in nanoGPT"): its formula, its steady state and its peak, measured on a GPU."""

    L, B, S, H, A, V = 12, 12, 1024, 768, 12, 50304
    # Two of cuBLAS, which no tensor holds.
    WORKSPACES = 2 * 8519680
    MODEL = reference_model("nanogpt-124m")

    def steps(self) -> MemoryTimeline:
        """With the gradients of an earlier micro-batch, as in the published trace."""
        profile = load_framework("nanogpt")
        job = counted_job(self.MODEL, profile, self.S, "amp", attention="eager")
        return job_timeline(job, Degrees(mbs=self.B, grad_acc=2))

    def formula(self) -> int:
        """L·(36·Ne + 6·Na) + 6·Ne + 10·Nl + 16·N + 4·Nbuf bytes: elements of the residual
        stream, of the scores, of the logits, parameters, causal masks."""
        stream = self.B * self.S * self.H
        scores = self.B * self.A * self.S**2
        logits = self.B * self.S * self.V
        buffers = self.L * self.S**2
        kept = self.L * (36 * stream + 6 * scores) + 6 * stream + 10 * logits
        return kept + 16 * parameter_count(self.MODEL).total + 4 * buffers

    def test_formula_of_the_peak(self) -> None:
        """The peak is the formula and what it leaves out: autocast's copies of the matrices, a
        boolean mask a layer, statistics of norms, ids and positions."""
        assert (self.formula() + self.WORKSPACES) / GIB == pytest.approx(21.648, abs=5e-4)
        tokens = self.B * self.S
        casts = 2 * (self.L * 12 * self.H**2 + self.V * self.H)
        masks = self.L * self.S**2
        statistics = (2 * self.L + 1) * 8 * tokens
        ids = 2 * 8 * tokens + 8 * self.S
        peak = self.steps().peak
        assert peak.total_bytes == self.formula() + casts + masks + statistics + ids
        assert peak.at == "loss"
