"""What losses on sequences hold of the logits, against counts of TRL's trainers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.job.frameworks.losses import loss_bytes, with_objective
from planner.job.frameworks.profile import load_framework
from planner.job.frameworks.switches import with_techniques
from planner.job.job import Job
from planner.job.objective import read_objective
from planner.job.request import Request

COUNTS = Path(__file__).parents[1] / "truth" / "data" / "preference.csv"


def _counted() -> list[dict[str, str]]:
    """Rows of trainers that make all logits of a micro-batch at once."""
    with COUNTS.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    return [
        row for row in rows if row["peak_backward"] and row["objective"] not in ("sft", "reward")
    ]


@pytest.mark.parametrize("row", _counted(), ids=lambda row: f"{row['trl']}-{row['objective']}")
def test_losses_hold_what_trl_was_counted_to_hold(row: dict[str, str]) -> None:
    found = loss_bytes(row["objective"], "fp32")
    assert found is not None
    peak = max(float(row["peak_forward"]), float(row["peak_backward"]))
    assert found.saved == pytest.approx(float(row["held_at_loss"]), rel=0.01)
    assert found.peak == pytest.approx(peak, rel=0.02)


def test_a_profile_holds_the_logits_of_its_objective() -> None:
    profile = load_framework("hf")
    assert with_objective(profile, read_objective("lm")) == profile
    chunks = with_objective(profile, read_objective("dpo:logits=chunked")).assumptions
    assert "the loss computes a chunk of logits at a time" in chunks
    assert not any("fp32 logits" in note for note in chunks)
    odds = with_objective(profile, read_objective("orpo")).saved
    assert (odds.logits_saved_bytes, odds.logits_peak_bytes) == (6, 18)
    chunked = with_objective(profile, read_objective("dpo:logits=chunked")).saved
    assert chunked.linear_loss


def test_ligers_losses_take_a_pair_at_a_time() -> None:
    liger = with_techniques(load_framework("hf"), ("liger-kernels",))
    for kind, rows in (("dpo", 2), ("kto", 1)):
        saved = with_objective(liger, read_objective(kind)).saved
        assert (saved.loss_rows, saved.logits_peak_bytes, saved.linear_loss) == (rows, 16, True)
    tokens = with_objective(liger, read_objective("distill:teacher=70b")).saved
    assert (tokens.loss_rows, tokens.linear_loss) == (0, True)


def test_a_trainer_may_make_logits_fp32_itself() -> None:
    profile = load_framework("deepspeed")
    for text, saved in (("dpo", 2), ("dpo:logits=fp32", 4)):
        assert with_objective(profile, read_objective(text)).saved.logits_saved_bytes == saved


def test_16_bit_logits_are_half_as_large_or_less() -> None:
    for kind in ("dpo", "kto", "orpo", "simpo", "distill"):
        wide, half = loss_bytes(kind, "fp32"), loss_bytes(kind, "half")
        assert wide is not None
        assert half is not None
        assert half.saved == wide.saved / 2
        assert half.beside <= half.peak <= wide.peak


def test_torchtune_distils_in_chunks_whose_graphs_stay() -> None:
    """Its own figures, of 16-bit logits; fp32 ones are TRL's."""
    tune = load_framework("torchtune")
    saved = with_objective(tune, read_objective("distill:teacher=70b")).saved
    assert (saved.logits_saved_bytes, saved.logits_peak_bytes) == (13, 17.5)
    assert loss_bytes("distill", "fp32", "torchtune") == loss_bytes("distill", "fp32")


@pytest.mark.parametrize("objective", ["simpo", "distill:teacher=llama-3.1-8b"])
def test_torchtune_has_some_objectives_for_adapters_alone(objective: str) -> None:
    def job(train: str) -> Job:
        return Request(model="llama-3.2-1b", gpus="1xH100", gbs=1, framework="torchtune",
                       objective=objective, train=train).resolve()  # fmt: skip

    assert job("lora").objective.kind in objective
    with pytest.raises(UsageError, match="only for adapters; give --train lora"):
        job("full")
