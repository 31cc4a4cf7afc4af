"""The benchmark of uneven layouts: its figures come from the search, and its table says them."""

from __future__ import annotations

import pytest

from planner.evidence.fit.layout_gains import CASES, main, markdown, measure, shipped, to_toml


def test_every_case_has_figures() -> None:
    assert [row["name"] for row in shipped()] == [case.name for case in CASES]
    for row in shipped():
        assert 0.0 <= row["gain"] < 1.0
        faster = row["solved_step_s"] / row["solved_gbs"]
        slower = row["uniform_step_s"] / row["uniform_gbs"]
        assert faster / slower == pytest.approx(1.0 - row["gain"], abs=2e-3)
        assert row["solved_peak_gib"] <= row["limit_gib"]


@pytest.mark.parametrize("name", ["Llama-3 70B, PP4 VPP5", "the same, a count a stage"])
def test_a_case_measured_again_gives_its_figures(name: str) -> None:
    """Without gain (80 layers on 20 blocks), and with much (each stage its own count)."""
    case = next(item for item in CASES if item.name == name)
    row = next(item for item in shipped() if item["name"] == name)
    again = measure(case)
    for field in ("solved_step_s", "uniform_step_s", "gain", "solved_peak_gib", "solved_plan"):
        expected = row[field] if isinstance(row[field], str) else pytest.approx(row[field], 2e-3)
        assert again[field] == expected, field


def test_the_table_says_where_nothing_is_gained() -> None:
    lines = markdown(shipped()).splitlines()
    assert len(lines) == 2 + len(CASES)
    without = next(line for line in lines if "405B, PP16" in line)
    assert "none (0.0%)" in without


def test_figures_survive_the_file() -> None:
    rows = shipped()
    assert to_toml(rows).count("[[case]]") == len(rows)
    assert 'name = "DeepSeek-V3, PP16"' in to_toml(rows)


def test_an_unknown_case_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["llama-9"])
    assert error.value.code == 2
    assert "DeepSeek-V3, PP16" in capsys.readouterr().err
