"""The refit of collective curves: what it reads, and that it finds what made its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.errors import UsageError
from tests.fit.collective_fit import (
    MEBIBYTE,
    CollectiveRow,
    FitStage,
    fit_stage,
    main,
    predict_s,
    read_rows,
    shipped_links,
    soft_l1,
)

HEADER = "gpu,nodes,gpus,collective,payload_bytes,busbw_gb_per_s,time_ms,fabric_or_algorithm\n"
START_UP_S = 35e-6


def made_row(power: int, **links: float) -> CollectiveRow:
    """Time of an all-reduce of 2^power MiB on 8 H200 whose links are as given."""
    bare = CollectiveRow("H200-SXM", 1, 8, "all_reduce", MEBIBYTE * 2.0**power, 1.0, "")
    time_s = predict_s(bare, shipped_links("H200-SXM")._replace(**links)) + START_UP_S
    return CollectiveRow("H200-SXM", 1, 8, "all_reduce", bare.payload_bytes, time_s, "")


def test_a_fit_finds_the_rate_the_ramp_and_the_start_up() -> None:
    made = {"scale_up_bytes_per_s": 300e9, "scale_up_half_bytes": 2e7}
    rows = [made_row(power, **made) for power in range(0, 14, 2)]
    fitted, start_up_s = fit_stage(FitStage("made", "H200-SXM", tuple(made)), rows)
    assert fitted["scale_up_bytes_per_s"] == pytest.approx(300e9, rel=0.02)
    assert fitted["scale_up_half_bytes"] == pytest.approx(2e7, rel=0.1)
    assert start_up_s == pytest.approx(START_UP_S, rel=0.1)


def test_rows_without_a_size_or_of_unknown_machines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        HEADER
        + "H200-SXM,1,8,all_reduce,1048576,40,,\n"
        + "H200-SXM,1,8,all_reduce,1048576,99,,\n"
        + "H200-SXM,1,8,all_reduce,,40,,\n"
        + "A100-like,1,8,all_to_all,1048576,,0.1,\n"
        + "Z1,1,8,all_reduce,1048576,40,,\n",
        encoding="utf-8",
    )
    first, second = read_rows(path)
    assert first.time_s == pytest.approx(2 * 7 / 8 * MEBIBYTE / 40e9)
    assert second.time_s == pytest.approx(1e-4)


def test_odd_rows_count_in_proportion_only() -> None:
    assert soft_l1(0.001) == pytest.approx(0.001**2, rel=0.01)
    assert soft_l1(2.0) / soft_l1(1.0) == pytest.approx(2.0, rel=0.1)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"given nowhere\.csv; needed: one CSV file"):
        main(["nowhere.csv"])


def test_the_benchmarks_that_ship_are_fitted(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert "benchmark start-up" in capsys.readouterr().out
