"""The ledger: what nobody measured or published, with every result."""

from __future__ import annotations

from planner.job.request import Request
from planner.predict.assumptions import assumption_lines, hardware_assumptions, unmeasured_notes
from planner.predict.plan import Interval
from planner.search.outcome import job_summary
from tests.cost.jobs import make_job

JOB = make_job("llama-3-8b", "16xH100")


def test_the_hardware_s_part_is_held_once_by_the_job_of_a_result() -> None:
    found = hardware_assumptions(JOB)
    assert found
    texts = assumption_lines((JOB, JOB))
    assert texts == tuple(f"{item.about}: {item.text}" for item in found)
    asked = Request(model="8b", gpus="16xH100", gbs=64)
    assert job_summary(asked.resolve(), 16).assumed == texts


def test_one_node_takes_nothing_for_granted_of_the_network() -> None:
    texts = [item.text for item in hardware_assumptions(make_job("gpt2", "1xRTX4090"))]
    assert texts and not any(text.startswith(("nic", "over", "gpus_per")) for text in texts)
    assert not any(text.endswith(":") for text in texts)


def test_a_plan_says_what_no_measured_run_reaches() -> None:
    usual = Interval(low=1.0, high=2.0, family="9 runs")
    assert unmeasured_notes(usual) == ()
    (note,) = unmeasured_notes(usual.model_copy(update={"beyond": ("9 GPUs", "hidden 8")}))
    assert "9 GPUs, hidden 8" in note
