"""Rows predicted without their source: constants, and profiles that only it has measured."""

from __future__ import annotations

import pytest

from planner.evidence.runs.left_out import left_out, measured_by
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import at_first_sight, known
from planner.evidence.runs.rows import FIRST_SIGHT, PUBLISHED, read_rows
from tests.fit.constants_fit import constants_of, linearised, rests_on


@pytest.mark.parametrize(
    ("source", "named", "seen"),
    [
        ("aleph_alpha_layouts", "torch-3d", "generic-3d"),
        ("simumax_b200", "megatron-core-no-overlap", "megatron-core-no-overlap"),
    ],
)
def test_a_framework_of_one_source_is_a_stranger_s(source: str, named: str, seen: str) -> None:
    rows = [row for row in read_rows(PUBLISHED / f"{source}.csv") if (row.integer("tp") or 1) > 1]
    rows = rows[:3]
    predictions = predict_rows(rows)
    profiles = [
        {item.mapped.job.framework.name for item in found if item.mapped}
        for found in (predictions, left_out(predictions))
    ]
    assert profiles == [{named}, {seen}]


def test_rows_of_unknown_sources_are_in_no_left_out_table() -> None:
    (row, *_) = read_rows(PUBLISHED / "simumax_b200.csv")
    stranger = type(row)(row.file, row.line, row.cells | {"source": "nobody"})
    assert left_out(predict_rows([stranger])) == []


def test_what_was_met_at_first_sight_is_shown_as_it_was_met() -> None:
    """KYS's nanotron runs: every mechanism that they taught is left out, too."""
    rows = [
        one
        for one in read_rows(PUBLISHED / "strangers_2026_11d.csv")
        if one.source == "kys-nanotron"
    ]
    for item in at_first_sight(predict_rows(rows)):
        for figure, (measured, first) in FIRST_SIGHT.items():
            said, value = item.row.number(first), item.row.measurement(measured)
            found = known(item, figure)
            if said is None or value is None:
                assert found is None
            else:
                assert found is not None
                assert found[0] / found[1] == pytest.approx(said / value)


def test_every_constant_names_the_sources_that_have_a_say_in_it() -> None:
    rows = list(read_rows(PUBLISHED / "simumax_b200.csv"))[:4]
    found = rests_on(linearised(predict_rows(rows), "time"))
    assert set(found) == {constant.name for constant in constants_of("time")}
    assert found["blackwell-16bit"] == ["simumax-b200"]
    assert found["hopper-16bit"] == []


def test_frameworks_have_sources() -> None:
    sources = measured_by()
    assert len(sources["torch-3d"]) == 1
    assert len(sources["megatron-core"]) > 3
