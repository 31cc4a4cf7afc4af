"""Stated defaults for rows that say too little, and how they are named."""

from __future__ import annotations

import pytest

from planner.evidence.runs.completion import complete
from planner.evidence.runs.predict import assumed, predict_rows
from tests.evidence.runs.rows_for_tests import row


def test_a_complete_row_is_left_alone() -> None:
    assert complete(row()) == (row(), ())


def test_defaults_are_named_and_used() -> None:
    (predict_row,) = predict_rows([row(mbs="", gbs="", seq="", vocab="")])
    assert predict_row.error is None
    assert predict_row.mapped is not None
    assert (
        predict_row.mapped.job.seq,
        predict_row.mapped.degrees.mbs,
        predict_row.mapped.degrees.grad_acc,
    ) == (
        4096,
        1,
        32,
    )
    texts = assumed(predict_row)
    for text in ("seq 4096", "mbs 1", "gbs 32", "vocab 50,304"):
        assert text in texts
    assert predict_row.row.text("seq") is None


def test_what_is_stated_is_not_assumed() -> None:
    (predict_row,) = predict_rows([row()])
    assert assumed(predict_row) == ()


def test_unstated_degrees_are_the_smallest_that_hold_the_state() -> None:
    """22e9 parameters of 18 bytes in 0.6 of 80 GB: 8.25 shares, so 8 ranks are one too few."""
    gaps = {"tp": "", "pp": "", "dp": "", "gpu_mem_gb": "80", "num_gpus": "64"}
    assert complete(row(params_b="22", **gaps)).assumed == ("tp 8", "pp 2")
    assert complete(row(params_b="1", **gaps)).assumed == ("tp 1", "pp 1")


def test_unstated_gpus_leave_each_pipeline_the_usual_micro_batches() -> None:
    """256 sequences at mbs 2 and 4·pp = 8 micro-batches: 16 replicas of 2·2 GPUs."""
    gaps = {"num_gpus": "", "dp": "", "tp": "2", "pp": "2", "mbs": "2", "gbs": "256"}
    assert complete(row(**gaps)).assumed == ("num_gpus 64",)
    assert complete(row(**gaps | {"dp": "4"})).assumed == ("num_gpus 16",)
    (predict_row,) = predict_rows([row(**gaps)])
    assert predict_row.error is None


def test_unstated_degrees_divide_gpus_and_layers() -> None:
    """177e9 parameters need 67 shares; 96 GPUs at tp 8 leave 12 stages, not 9 or 16."""
    gaps = {"tp": "", "pp": "", "vpp": "", "dp": "", "gpu_mem_gb": "80", "num_gpus": "96"}
    assert complete(row(params_b="177", **gaps)).assumed == ("tp 8", "pp 12")
    modern = row(params_b="177", framework="Megatron-Core r0.8.0", **gaps)
    assert complete(modern).assumed == ("tp 8", "pp 12", "vpp 2")


def test_a_batch_may_be_stated_in_tokens() -> None:
    """4e6 tokens are 1,953 sequences of 2,048: 244 for each of eight replicas."""
    gaps = {"mbs": "", "gbs": "", "tp": "1", "num_gpus": "64", "gbs_tokens": "4000000"}
    assert complete(row(**gaps)).assumed == ("mbs 1", "gbs 1952")


@pytest.mark.parametrize(
    ("moe", "words"),
    [("MLA; truncated", "experts as in deepseek-v2"), ("8 experts", "top-k 2")],
)
def test_experts_come_from_the_catalogue_or_are_the_usual_ones(moe: str, words: str) -> None:
    shape = {"hidden": "5120", "heads": "128", "ffn": "12288"} if "MLA" in moe else {}
    assert complete(row(moe=moe, **shape)).assumed == (words,)


def test_experts_of_a_hybrid_are_no_other_models() -> None:
    """Jamba's hidden size, heads and feed-forward width are Mixtral's too."""
    shape = {"hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336"}
    assert complete(row(moe="8x7B", **shape)).assumed == ("top-k 2",)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"num_gpus": "", "mbs": "", "gbs": ""}, "num_gpus is not stated"),
        ({"tuning": "peft:adalora", "seq": ""}, "LoRA"),
        ({"layers": "", "mixer": "mamba hybrid"}, "state spaces"),
        ({"step_time_s": "fast"}, "made_up.csv line 2, column step_time_s: 'fast'"),
        ({"tp": "two"}, "made_up.csv line 2, column tp: 'two' is not a number"),
    ],
)
def test_what_no_default_mends_is_refused_with_the_reason(
    cells: dict[str, str], reason: str
) -> None:
    (predict_row,) = predict_rows([row(**cells)])
    assert predict_row.error is not None
    assert reason in predict_row.error
    assert predict_row.step_time_s is None
