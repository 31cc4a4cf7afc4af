"""Constants refitted without a source: the linear fit, what a source changes, the file."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.tables import FrameworkInputs
from planner.evidence.runs.constants import CONSTANTS, Constant
from planner.evidence.runs.left_out import left_out_factors, predict_held_out
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows
from planner.predict.cost_model import CostModel
from tests.fit.constants_fit import (
    ConstantEvidence,
    constants_of,
    evidence_of,
    least_absolute,
    linearised,
    linearised_all,
    voice_of,
)
from tests.fit.held_out import (
    ERRORS,
    FigureErrors,
    SourceErrors,
    held_out,
    parse_errors,
    render_errors,
    render_factors,
)

SOURCES = ("korthikanti2022", "narayanan2021-table1", "megatron-jan2021")
RATE = "a100-sxm-16bit"
GAPS, GAPPED = "fragmentation", ("torchtitan-3090", "torchao", "vocabulary-parallelism")
CORE_FIELDS = {*FrameworkInputs._fields, *GpuInputs._fields, *LinkInputs._fields}
FACTOR = 1.1


@pytest.fixture(scope="module")
def odd_one_out() -> list[Prediction]:
    """Runs of three sources as the model predicts them, but for the first, whose GPUs are faster
    than the shipped constant says."""
    rate = next(one for one in CONSTANTS if one.name == RATE)
    rows = [row for row in read_rows(PUBLISHED) if row.source in SOURCES]
    usual = predict_rows(
        [row for source in SOURCES for row in [r for r in rows if r.source == source][:3]]
    )
    fast = cost_predictions(usual, lambda job: CostModel(job, dict.fromkeys(rate.fields, FACTOR)))
    return [
        replace(item, row=replace(item.row, cells=item.row.cells | {"step_time_s": repr(measured)}))
        for item, quick in zip(usual, fast, strict=True)
        for measured in [(quick if item.row.source == SOURCES[0] else item).step_time_s]
    ]


def test_least_absolute_values_ignore_what_few_say() -> None:
    slopes = np.array([[-1.0, 0.0]] * 5 + [[0.0, -0.5]] * 2)
    residuals = np.array([0.1, 0.1, 0.1, 0.1, 5.0, 0.05, 0.05])
    found = least_absolute(residuals, slopes, np.full(7, 1 / 7), np.array([1.0, 1.0]), 0.05)
    assert found == pytest.approx([-0.1, -0.1], abs=0.01)
    capped = least_absolute(-residuals, slopes, np.full(7, 1 / 7), np.array([0.04, 1.0]), 0.05)
    assert capped[0] == pytest.approx(0.04)


def test_leaving_out_the_odd_source_moves_the_constant_away_from_it(
    odd_one_out: list[Prediction],
) -> None:
    found = held_out(odd_one_out)
    assert set(found) == set(SOURCES)
    odd, usual = found[SOURCES[0]].time, found[SOURCES[1]].time
    assert odd is not None
    assert usual is not None
    # Two sources against one: the constant stays where the two are right.
    assert odd.median > 0.02
    assert usual.median == pytest.approx(0.0, abs=1e-9)
    assert odd.held_out_median >= odd.median - 1e-6
    assert found[SOURCES[0]].factors.get(RATE, 1.0) <= 1.0 + 1e-6
    # None of them measured its memory.
    assert found[SOURCES[0]].memory is None


def test_a_row_is_predicted_with_the_factors_of_its_own_source(
    odd_one_out: list[Prediction],
) -> None:
    again = predict_held_out(odd_one_out, {SOURCES[0]: {RATE: 0.9}, SOURCES[1]: {RATE: 1.0}})
    for before, after in zip(odd_one_out, again, strict=True):
        assert before.step_time_s is not None
        assert after.step_time_s is not None
        slower = before.row.source == SOURCES[0]
        assert (after.step_time_s > 1.02 * before.step_time_s) == slower
        assert slower or after.step_time_s == before.step_time_s


def test_the_file_is_read_as_it_was_written() -> None:
    errors = FigureErrors(3, 0.1, 0.2, -0.1, 0.15, 0.25, -0.12)
    both = {
        "a b": SourceErrors(errors, None, {RATE: 0.95}),
        "c": SourceErrors(None, errors),
    }
    assert parse_errors(render_errors(both)) == {"a b": {"time": errors}, "c": {"memory": errors}}
    assert tomllib.loads(render_factors(both))["factors"] == {"a b": {RATE: 0.95}, "c": {}}


def test_what_one_source_says_counts_half() -> None:
    alone = ConstantEvidence(4.24, 4.5, 4.0, ("one",))
    assert alone.shrunk == pytest.approx((4.5 * 4.0) ** 0.5)
    assert replace(alone, sources=("one", "two")).shrunk == 4.5
    assert replace(alone, sources=()).shrunk == 4.0


def test_constants_of_one_source_ship_as_the_rule_has_it() -> None:
    constants = tomllib.loads(PUBLISHED.with_name(ERRORS).read_text())["constant"]
    alone = {name: one for name, one in constants.items() if len(one["sources"]) == 1}
    assert {"torch-3d-traffic", "nanotron-blocks", "efa-6400-exchange"} <= set(alone)
    for name, one in alone.items():
        assert one["value"] == pytest.approx(one["shrunk"], rel=0.06), name
    # One whole step's source confirms what Megatron-Core's own small tests gave.
    assert "megatron-ci-golden" in constants["megatron-fsdp-issue"]["sources"]


@pytest.fixture(scope="module")
def gapped() -> list[Prediction]:
    """Peaks of three sources as the model predicts them, but for the first, whose allocator leaves
    twice the gaps of `fragmentation`."""
    gaps = next(one for one in CONSTANTS if one.name == GAPS)
    rows = [row for row in read_rows(PUBLISHED) if row.source in GAPPED and row.text("recompute")]
    usual = predict_rows([row for source in GAPPED for row in of_source(rows, source)[:3]])
    wide = cost_predictions(usual, lambda job: CostModel(job, dict.fromkeys(gaps.fields, 2.0)))
    found = []
    for item, other in zip(usual, wide, strict=True):
        chosen = other if item.row.source == GAPPED[0] else item
        size = chosen.memory_bytes(item.row.text("mem_kind"), item.row.text("mem_scope"))
        assert size is not None
        cells = item.row.cells | {"peak_mem_gib": repr(size / 2.0**30), "step_time_s": ""}
        found.append(replace(item, row=replace(item.row, cells=cells)))
    return found


def of_source(rows: list[MeasuredRow], source: str) -> list[MeasuredRow]:
    return [row for row in rows if row.source == source]


def test_constants_of_memory_are_fitted_on_peaks_by_the_same_code(gapped: list[Prediction]) -> None:
    time, memory = linearised_all(gapped)
    assert len(time.residuals) == 0
    assert memory.constants == constants_of("memory")
    gaps = evidence_of(memory)[GAPS]
    assert set(gaps.sources) == set(GAPPED)
    found = held_out(gapped)
    odd, usual = found[GAPPED[0]], found[GAPPED[1]]
    assert odd.time is None
    assert odd.memory is not None
    assert usual.memory is not None
    assert odd.memory.bias < -0.01
    assert usual.memory.median == pytest.approx(0.0, abs=1e-9)
    # What the first taught is gone from its own prediction.
    assert odd.factors.get(GAPS, 1.0) <= 1.0
    assert odd.memory.held_out_median >= odd.memory.median - 1e-6


def test_what_one_source_says_is_not_pulled_to_what_ships(gapped: list[Prediction]) -> None:
    runs = linearised(gapped[:3], "memory")
    gaps = evidence_of(runs)[GAPS]
    assert gaps.sources == GAPPED[:1]
    assert gaps.fitted == pytest.approx(2.0 * gaps.value, rel=0.05)
    assert gaps.shrunk == pytest.approx((gaps.fitted * gaps.prior) ** 0.5)


def test_sources_of_one_author_on_one_cluster_have_one_voice() -> None:
    assert voice_of("aws-b300-mla") == voice_of("aws-b300-qwen3-235b") != "aws-b300-mla"
    assert voice_of("kys-nanotron") == "kys-nanotron"
    files = {"aws-b300-mla", "aws-b300-qwen3-235b"}
    left = [left_out_factors()[source]["efa-6400-exchange"] for source in files]
    # Neither stands in for the other: what is left is the prior.
    constant = next(one for one in CONSTANTS if one.name == "efa-6400-exchange")
    assert left == [pytest.approx((constant.prior or 0.0) / constant.shipped(), rel=1e-3)] * 2


def test_a_listed_constant_moves_what_it_was_fitted_on() -> None:
    """A name of the compiled core that is misspelt would move nothing, and rest on nothing."""
    content = tomllib.loads(PUBLISHED.with_name(ERRORS).read_text())["constant"]
    assert set(content) == {one.name for one in CONSTANTS}
    for one in CONSTANTS:
        assert one.fields <= CORE_FIELDS, one.name
        assert content[one.name]["figure"] == one.figure


def test_the_shipped_file_names_constants_that_exist() -> None:
    names = {name for factors in left_out_factors().values() for name in factors}
    assert names
    assert names <= {one.name for one in CONSTANTS}


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda item: item.name)
def test_shipped_values_lie_within_their_limits(constant: Constant) -> None:
    assert 0.0 < constant.shipped() <= constant.most
