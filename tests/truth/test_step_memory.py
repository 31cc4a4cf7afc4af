"""Whole-step peaks against steps counted in PyTorch: one device, a rank under FSDP2, DDP.

Live bytes of tensors under AdamW, transformers 5.23 and a nanoGPT-like module, fake tensors.
"""

from __future__ import annotations

import pytest

from planner.job.frameworks.profile import load_framework
from planner.predict.plan import Degrees
from tests.truth.counts import COUNTS, each_row
from tests.truth.predicted import (
    Row,
    compare_ddp,
    compare_steps,
    counted_job,
    ddp_copies,
    job_timeline,
    reference_model,
    step_timeline,
)

# Relative errors reached. The peaks inside forward and of the optimizer are held to theirs where
# the step peaks there.
ONE_DEVICE = {
    "peak_total": 5e-4, "param": 0.0, "grad": 0.0, "optimizer_state": 2e-6,
    "forward_end": 5e-4, "backward_peak": 2.1e-2,
}  # fmt: skip
FSDP2 = {
    "peak_total": 3e-3, "shard_param": 0.0, "shard_grad": 0.0, "optimizer_state": 2e-6,
    "forward_end": 1e-5, "backward_peak": 2.1e-2,
}  # fmt: skip


def peak_phases(row: Row) -> tuple[str, str]:
    """(counted, predicted) name of the phase in which the step peaks: forward, backward, …"""
    counted = row["peak_phase"].rstrip("0123456789")
    return counted, step_timeline(row).peak.name.removesuffix(" (accumulating)")


def assert_step(row: Row, tolerances: dict[str, float]) -> None:
    counted, predicted = peak_phases(row)
    assert predicted == counted
    held = tolerances | {f"{counted}_peak": tolerances["peak_total"] * 2}
    for figure in compare_steps(row):
        if figure.quantity in held:
            assert abs(figure.error) <= held[figure.quantity], figure


@each_row("step_memory.csv")
def test_one_device(row: Row) -> None:
    assert_step(row, ONE_DEVICE)


@each_row("step_memory_fsdp.csv")
def test_fsdp2(row: Row) -> None:
    assert_step(row, FSDP2)


@pytest.mark.parametrize("file", ["step_memory.csv", "step_memory_fsdp.csv"])
def test_every_phase_is_compared_somewhere(file: str) -> None:
    """Steps of the counts peak in backward and in the optimizer, under FSDP2 also in forward."""
    phases = {peak_phases(row)[0] for row in COUNTS[file]}
    assert {"backward", "optimizer"} <= phases
    assert ("forward" in phases) == (file == "step_memory_fsdp.csv")


@each_row("ddp_memory.csv")
def test_ddp(row: Row) -> None:
    """Peak, end and what is left between steps, of the first three; the gradient just made for
    one that exists included, and the second step's rebuilding of the buckets."""
    for figure in compare_ddp(row):
        assert abs(figure.error) <= 2e-4, figure


@pytest.mark.parametrize(("view", "copies"), [(False, 2), (True, 1)])
def test_ddp_in_the_timeline(view: bool, copies: int) -> None:
    """Buckets are one copy of the gradients from the first forward on; the gradients another."""
    assert ddp_copies(view=view, set_to_none=True) == (copies, 1)


def test_first_step_has_no_optimizer_state_until_its_end() -> None:
    job = counted_job(reference_model("gpt2"), load_framework("hf-transformers"), 1024)
    timeline = job_timeline(job, Degrees(mbs=8))
    states = [phase.terms["optimizer state"] for phase in timeline.first_step]
    assert states[:-1] == [0.0] * (len(states) - 1)
    assert states[-1] == timeline.phase("start").terms["optimizer state"] > 0
