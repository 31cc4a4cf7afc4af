"""Errors, bars, placements and bounds of measured runs, by costs that stand for the planner's."""

import math

import pytest

from planner.evidence.rl.bounds import bounded, run_of
from planner.evidence.rl.document import csv_rows, rl_document
from planner.evidence.rl.pairs import pairs
from planner.evidence.rl.predict import compared, predict_rl
from planner.evidence.rl.report import open_facts, summary_of, trusted
from planner.evidence.rl.rows import RlRow
from planner.report.rl_evidence import rl_validation_report
from tests.evidence.rl.cases import COLOCATED, SEPARATE, costs, row

ROWS = [row(COLOCATED, 2), row(SEPARATE, 3)]


def test_figures_are_compared_with_the_phases_that_they_are_of() -> None:
    [one] = predict_rl([ROWS[0]], costs)
    found = {each.figure: each for each in compared(one)}
    assert found["step"].predicted == pytest.approx(57.0)
    assert found["training"].predicted == pytest.approx(20.0)
    assert found["transfer"].predicted == pytest.approx(2.0)
    assert found["generation"].predicted == pytest.approx(32.0)
    assert found["step"].covered


def test_open_lengths_widen_the_bar_and_are_named() -> None:
    stated, left_open = predict_rl([ROWS[0], row(COLOCATED, 4, response_len_mean="")], costs)
    assert "response length" in left_open.open_facts
    assert "response length" not in stated.open_facts
    widths = [
        next(math.log(one.high / one.low) for one in compared(each) if one.figure == "generation")
        for each in (stated, left_open)
    ]
    assert widths[1] > 1.5 * widths[0]
    assert open_facts([left_open])[0][0] == "response length"


def test_a_published_comparison_is_judged_by_its_order() -> None:
    [pair] = pairs(predict_rl(ROWS, costs))
    assert (pair.first.line, pair.second.line, pair.what) == (2, 3, "placement")
    assert pair.measured == pytest.approx(math.log(40 / 60))
    assert pair.predicted == pytest.approx(math.log(47 / 57))
    assert pair.is_right
    [wrong] = pairs(predict_rl([ROWS[0], row(SEPARATE, 3, step_s="80")], costs))
    assert wrong.is_right is False


def test_unlike_numbers_of_gpus_are_compared_by_gpu_seconds() -> None:
    more = row(SEPARATE, 3, num_gpus="16", train_gpus="8", rollout_gpus="8")
    [pair] = pairs(predict_rl([ROWS[0], more], costs))
    assert pair.by_gpu
    assert pair.measured == pytest.approx(math.log(2 * 40 / 60))


def test_memory_is_compared_by_its_kind() -> None:
    kinds = {"training peak (GB)": 6e9, "torch max_memory_allocated": 1e10, "nvidia-smi": 1e10}
    for kind, expected in kinds.items():
        [one] = predict_rl([row(COLOCATED, peak_mem_gib="9", mem_kind=kind)], costs)
        found = next(each for each in compared(one) if each.figure == "memory")
        assert found.predicted == pytest.approx(expected), kind


def test_summary_counts_refused_and_leaves_doubted_rows_out() -> None:
    more = [*ROWS, row(COLOCATED, 5, model="?"), row(COLOCATED, 6, doubt="abnormally slow")]
    predictions = trusted(predict_rl(more, costs))
    found = summary_of(predictions)
    assert (found.rows, found.refused) == (3, 1)
    assert found.total["step"].rows == 2
    assert found.fit.ran == 2
    assert (found.right, found.judged) == (1, 1)


def test_report_and_document_hold_all_of_it() -> None:
    predictions = predict_rl(ROWS, costs)
    bounds = bounded([bound_row()], costs)
    blocks = rl_validation_report(predictions, bounds).blocks
    tables = [getattr(one, "title", "") for one in blocks]
    for title in ("error of the prediction", "By source", "placements", "Upper bounds"):
        assert any(title in one for one in tables), title
    content = rl_document(predictions, bounds)
    assert content["summary"]["right"] == 1
    assert content["rows"][0]["predicted_step_s"] == pytest.approx(57.0)
    columns, records = csv_rows(predictions)
    assert {"predicted_step_s", "open_facts"} <= set(columns)
    assert len(list(records)) == 2


def bound_row(**changed: str) -> RlRow:
    cells = {
        "test": "tests/llm/grpo-qwen3-0.6b-1n8g-megatron.sh", "model": "Qwen/Qwen3-0.6B",
        "step_s_bound": "<70", "mem_gb_bound": "<5", "num_nodes": "1", "gpus_per_node": "8",
        "placement": "colocated", "train_gpus": "8", "rollout_gpus": "8",
        "train_backend": "megatron", "train_tp": "1", "train_pp": "1", "train_mbs": "4",
        "rollout_engine": "vllm", "rollout_tp": "1", "kv_fraction": "0.6", "recompute": "none",
        "prompts_per_step": "32", "samples_per_prompt": "16", "minibatches": "1",
        "train_global_batch": "512", "reference": "y", "notes": "seq max total 512; logprob mbs 4",
    }  # fmt: skip
    return row(cells, 2, **changed)


def test_bounds_are_kept_or_broken() -> None:
    time, memory = bounded([bound_row()], costs)
    assert (time.figure, time.is_kept) == ("step", True)
    assert (memory.figure, memory.is_kept) == ("memory", False)


def test_kinds_of_recipes_are_told_by_their_names() -> None:
    alone = run_of(bound_row(test="x/sft-llama3.1-8b-1n8g.sh"))
    assert alone.is_trainer_alone
    pairs_of = run_of(bound_row(test="x/dpo-llama3.1-8b-1n8g.sh"))
    assert pairs_of.integer("train_global_batch") == 1024
    taught = run_of(bound_row(test="x/distillation-qwen3-32b-to-1.7b-base-1n8g.sh"))
    assert taught.text("reward") == "model:qwen3-32b"


def test_pairs_are_two_samples_of_a_micro_batch() -> None:
    assert run_of(bound_row(test="x/dpo-llama3.1-8b-1n8g.sh")).integer("train_mbs") == 8


def test_a_bound_of_unstated_lengths_is_judged_by_the_shortest_likely_ones() -> None:
    [usual] = bounded([bound_row(mem_gb_bound="")])
    assert usual.predicted is not None
    just_below = f"{0.999 * usual.predicted}"
    [open_length] = bounded([bound_row(mem_gb_bound="", step_s_bound=just_below)])
    assert open_length.is_kept
    assert open_length.by_length
    stated = bound_row(mem_gb_bound="", step_s_bound=just_below, response_len_mean="157")
    [known] = bounded([stated])
    assert not known.by_length
