"""Rows that no run can have been are refused by name, and one of them ends no validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import read_rows
from tests.evidence.runs.rows_for_tests import KORTHIKANTI_175B, row


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"mbs": "0"}, "mbs is 0, but must be 1 or more"),
        ({"layers": "-3"}, "layers is -3, but must be 1 or more"),
        ({"num_gpus": "-8"}, "num_gpus is -8, but must be 1 or more"),
        ({"gpus_per_node": "0"}, "gpus_per_node is 0, but must be 1 or more"),
        ({"gpus_per_node": "2000"}, "gpus_per_node is 2,000, but must be 1,024 or less"),
        ({"num_gpus": "9e6"}, "num_gpus is 9,000,000, but must be 4,194,304 or less"),
        ({"num_gpus": "72"}, "tp·pp·cp = 64 does not divide 72 GPUs"),
        ({"num_gpus": "8192"}, "gbs 64 is less than one sequence for each of dp 128"),
        ({"heads": "100", "kv_heads": "100", "hidden": "12800"}, "tp 8 does not divide 100 heads"),
        (
            {"pp": "32", "tp": "1", "vpp": "1", "layers": "8", "num_gpus": "32"},
            "pp 32 is too many for 8 layers",
        ),
        (
            {"moe": "8 experts top2", "ep": "3", "num_gpus": "192"},
            "ep 3 does not divide 8 experts",
        ),
        ({"moe": "8 experts top9"}, "top_k=9 exceeds experts=8"),
        ({"precision": "fp8"}, "A100-SXM4-80GB has no fp8 matrix arithmetic"),
        ({"precision": "int8"}, "precision 'int8' is not known"),
        ({"precision": "tf32"}, "megatron-lm-2022 in tf32 is not modelled"),
        ({"zero": "whatever"}, "zero 'whatever' names no ZeRO stage"),
        ({"recompute": "garbage"}, "recompute 'garbage' names nothing known"),
        ({"gpu": ""}, "gpu is not stated"),
        ({"vpp": "24"}, "pp·vpp = 192 is too many for 96 layers"),
        ({"layers_per_stage": "12/12"}, "layers_per_stage adds up to 24 of 96 layers"),
        ({"layers_per_stage": "a/b"}, "layers_per_stage 'a/b' is not written as 6/5x2/0"),
        ({"ffn": "-5"}, "ffn is -5, but must be 0 or more"),
        ({"heads": "96", "kv_heads": "128"}, "kv_heads 128 is more than heads 96"),
    ],
)
def test_the_reason_is_named_in_one_line(cells: dict[str, str], reason: str) -> None:
    [prediction] = predict_rows([row(**cells)])
    assert prediction.error == reason


def test_the_other_rows_are_predicted_all_the_same() -> None:
    good, bad = predict_rows([row(), row(mbs="0")])
    assert good.error is None
    assert good.step_time_s is not None
    assert bad.step_time_s is None


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_separators_and_headers_of_spreadsheets(tmp_path: Path, separator: str) -> None:
    header = separator.join(f" {name.upper()} " for name in KORTHIKANTI_175B)
    path = tmp_path / "sheet.csv"
    path.write_text(f"{header}\r\n{separator.join(KORTHIKANTI_175B.values())}\r\n", "utf-8-sig")
    [read] = read_rows(path)
    assert read.text("num_gpus") == "64"
    assert read.number("step_time_s") == 18.13
