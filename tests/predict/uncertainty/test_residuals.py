"""Distributions of residuals: mixtures, families, sources left out, the fit of both constants."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from planner.evidence.fit.judging import (
    Covered,
    HeldOut,
    Residual,
    both_ways,
    judge,
    summarised,
    without_unmeasured_errors,
)
from planner.evidence.fit.residual_fit import fit_all, fitted_table, render, residuals
from planner.predict.uncertainty.families import (
    UNFAMILIAR,
    Family,
    Figure,
    parent_family,
    wider_families,
)
from planner.predict.uncertainty.measured_range import Conditions
from planner.predict.uncertainty.residuals import (
    Further,
    ResidualTable,
    parse_tables,
    represent,
    shipped_tables,
)
from tests.evidence.runs.rows_for_tests import predicted

NEAR = Family("nanotron", "hopper", "one domain", "dense")
FAR = Family("megatron-core", "hopper", "one domain", "dense")
ELSEWHERE = Family("fsdp1", "ampere", "one domain", "dense")


def held_out(table: ResidualTable, found: list[Residual]) -> HeldOut:
    """Coverage of the intervals that leave each run's source out."""
    return judge(table, found).coverage(table.inflation)


def runs(source: str, family: Family, *values: float) -> list[Residual]:
    return [Residual(source, family, value) for value in values]


def table(*found: Residual, prior_rows: float = 0.0, figure: Figure = "time") -> ResidualTable:
    """A table without mixing unless asked for."""
    return ResidualTable(figure, summarised(found), prior_rows, 1.0)


def test_quantiles_of_one_family() -> None:
    spread = table(*runs("a", NEAR, *(index / 100 for index in range(11)))).spread(NEAR)
    assert spread.middle == pytest.approx(0.05)
    assert spread.low == pytest.approx(0.006)
    assert spread.high == pytest.approx(0.094)
    assert (spread.rows, spread.sources, spread.family_share) == (11, ("a",), 1.0)


def test_inflation_widens_around_the_median() -> None:
    plain = table(*runs("a", NEAR, 0.0, 0.1, 0.3))
    wide = ResidualTable("time", plain.entries, 0.0, 2.0).spread(NEAR)
    spread = plain.spread(NEAR)
    assert wide.middle == spread.middle
    assert wide.high - wide.middle == pytest.approx(2 * (spread.high - spread.middle))
    assert wide.middle - wide.low == pytest.approx(2 * (spread.middle - spread.low))


def test_errors_of_a_part_of_the_step_do_not_widen_its_family() -> None:
    """Two sources alike; runs of which half the step waits for the CPU are off three times as far.
    What is left of these is about what the others have."""
    waits = Conditions(waiting=0.5)
    steady = (-0.1, -0.05, 0.0, 0.05, 0.1)
    found = [
        Residual(source, NEAR, 3.0 * value if at.waiting else value, at)
        for source in ("a", "b")
        for at in (Conditions(), waits)
        for value in steady
    ]
    raw = ResidualTable("time", summarised(found), 0.0, 1.0, launches=0.4)
    left = without_unmeasured_errors(raw, found)
    assert [item.value for item in left if not item.at.waiting] == [*steady, *steady]
    moved = [item.value for item in left if item.at.waiting]
    assert max(moved) < 0.75 * 3.0 * max(steady)
    assert min(moved) > 0.75 * 3.0 * min(steady)
    narrower = replace(raw, entries=summarised(left)).spread(NEAR)
    assert narrower.high - narrower.low < 0.85 * (raw.spread(NEAR).high - raw.spread(NEAR).low)
    assert without_unmeasured_errors(replace(raw, launches=0.0), found) == found


def near(middle: float, count: int) -> list[float]:
    """So many values within 0.001 of a middle."""
    return [middle + 0.001 * (2 * index / (count - 1) - 1) for index in range(count)]


def test_a_large_source_does_not_drown_a_small_one() -> None:
    """Sources weigh as a power of their rows: 100 against 4 weigh 10 to 2 at one half, alike at
    zero."""
    found = (*runs("big", NEAR, *near(0.0, 100)), *runs("small", NEAR, *near(0.5, 4)))
    whole = table(*found)
    spread = whole.spread(NEAR)
    assert spread.middle == pytest.approx(0.0, abs=0.01)
    assert spread.high == pytest.approx(0.5, abs=0.01)
    assert 0.05 < replace(whole, source_power=0.0).spread(NEAR).middle < 0.4


def test_few_own_runs_lean_on_the_wider_family() -> None:
    found = (*runs("a", NEAR, *near(0.0, 4)), *runs("b", FAR, *near(1.0, 16)))
    spread = table(*found, prior_rows=2.0).spread(NEAR)
    assert spread.family_share == pytest.approx(0.5)
    assert spread.family == NEAR
    assert spread.high == pytest.approx(1.0, abs=0.01)
    assert table(*found, prior_rows=0.0).spread(NEAR).high == pytest.approx(0.0, abs=0.01)


def test_leaving_a_source_out_excludes_every_run_of_it() -> None:
    found = (*runs("a", NEAR, 0.5, 0.5), *runs("a", FAR, 0.7), *runs("b", FAR, 0.0, 0.0))
    whole = table(*found)
    assert whole.spread(NEAR).middle == 0.5
    without = whole.spread(NEAR, without="a")
    assert (without.family, without.middle, without.sources) == (
        Family("", "hopper", "", "dense"), 0.0, ("b",),
    )  # fmt: skip
    assert whole.spread(NEAR, without="unknown") == whole.spread(NEAR)


def test_time_is_nearest_on_the_same_gpu_memory_in_the_same_framework() -> None:
    asked = Family("nanotron", "ampere", "one domain", "dense")
    found = (*runs("a", NEAR, 0.5), *runs("b", ELSEWHERE, 0.2))
    assert table(*found).spread(asked).middle == 0.2
    assert table(*found, figure="memory").spread(asked).middle == 0.5
    assert table(*found).nearest(Family("x", "volta", "one domain", "moe")) == Family()


@pytest.mark.parametrize("figure", ["time", "memory"])
def test_a_framework_that_was_never_measured_has_the_spread_of_unnamed_runs(figure: Figure) -> None:
    """The same runs again, without names: they widen no other family, and leave sources out."""
    strange = NEAR._replace(framework=UNFAMILIAR)
    found = (*runs("a", NEAR, 0.1), *runs("a", strange, 0.5), *runs("b", strange, 0.7))
    asked = Family("unheard-of", "hopper", "one domain", "dense")
    known = table(*found, figure=figure)
    assert known.spread(asked).sources == ("a", "b")
    assert known.spread(asked).family == strange
    assert known.spread(asked, without="a").middle == 0.7
    assert known.spread(NEAR).middle == 0.1
    assert not Family("", "hopper").includes(strange)
    assert not Family().includes(strange)
    chain = [strange]
    while (parent := parent_family(chain[-1], figure)) is not None:
        assert parent.includes(chain[-1])
        chain.append(parent)
    assert chain[-1] == Family(UNFAMILIAR)


def test_runs_judge_the_intervals_as_they_are_today_and_at_first_sight() -> None:
    """Under their names: all of them today, and once more those that were met so."""
    found = [replace(one, first=0.3) for name in "ab" for one in runs(name, NEAR, 0.1)]
    unnamed = [replace(one, named=False) for one in found]
    judged = both_ways([*found, *unnamed, *runs("c", FAR, 0.2)])
    assert [(item.group, item.value) for item in judged] == [
        ("a", 0.1), ("b", 0.1), ("c", 0.2), ("a, at first sight", 0.3), ("b, at first sight", 0.3),
    ]  # fmt: skip


def test_runs_of_today_and_at_first_sight_weigh_alike() -> None:
    met = [replace(one, first=0.3) for one in runs("a", NEAR, 0.1, 0.2)]
    found = both_ways([*met, *runs("b", NEAR, *[0.1] * 4)])
    judged = judge(table(*found), found)
    assert judged.weights[judged.met].sum() == pytest.approx(judged.weights[~judged.met].sum())
    # Of today's, two runs of one source and four of another: 2 / sqrt 2 against 4 / sqrt 4.
    assert judged.weights[0] / judged.weights[2] == pytest.approx((4 / 2) ** 0.5)


@pytest.mark.parametrize("figure", ["time", "memory"])
def test_every_family_is_part_of_those_that_are_wider(figure: Figure) -> None:
    for item in (NEAR, *wider_families(NEAR, figure)):
        assert item.includes(NEAR)
        parent = parent_family(item, figure)
        assert (parent is None) == (item == Family())
        if parent is not None:
            assert parent.includes(item)
            assert sum(map(bool, parent)) == sum(map(bool, item)) - 1


def far_out(source: str, value: float, **at: float) -> Residual:
    return Residual(source, NEAR, value, Conditions(**at))  # type: ignore[arg-type]


def test_the_error_grows_with_each_doubling_beyond_what_two_sources_reach() -> None:
    found = (far_out("a", 0.0, gpus=8), far_out("a", 0.0, gpus=64), far_out("b", 0.0, gpus=512))
    plain = table(*found, far_out("c", 0.0, gpus=4096))
    grown = replace(plain, growth={"gpus": 0.1})
    # Two of three sources reach 512 GPUs.
    assert grown.further(NEAR, Conditions(gpus=512)) == Further()
    two = grown.further(NEAR, Conditions(gpus=2048))
    assert two.deviation == pytest.approx(0.2)
    assert two.reasons == ("2,048 GPUs (measured: up to 512)",)
    # Without the largest but one, two sources reach 64.
    assert grown.further(NEAR, Conditions(gpus=2048), "b").deviation == pytest.approx(0.5)
    assert plain.further(NEAR, Conditions(gpus=2048)) == Further()


def test_exposed_communication_adds_its_share_of_the_step() -> None:
    found = replace(table(far_out("a", 0.0, overhead=4.0)), communication=0.3)
    assert found.further(NEAR, Conditions(overhead=2.0)) == Further(pytest.approx(0.15))  # type: ignore[arg-type]
    assert found.further(NEAR, Conditions()) == Further()


def test_the_fit_sees_that_steps_that_communicate_err_more() -> None:
    """Errors in proportion to the communication, against errors without regard to it."""
    for steep, expected in ((1.0, True), (0.0, False)):
        found = [
            Residual(f"s{index}", NEAR, value, Conditions(overhead=1 / (1 - 0.1 * step)))
            for index in range(8)
            for step in range(9)
            for value in [(-1) ** index * (0.02 + steep * 0.1 * step * (index % 4))]
        ]
        assert (fitted_table(found, "time").table.communication >= 0.3) == expected


def test_waiting_for_the_cpu_adds_its_share_of_the_step() -> None:
    found = replace(table(far_out("a", 0.0)), launches=0.4, communication=0.3)
    assert found.further(NEAR, Conditions(waiting=0.5)) == Further(pytest.approx(0.2))  # type: ignore[arg-type]
    both = found.further(NEAR, Conditions(waiting=0.5, overhead=2.0))
    assert both.deviation == pytest.approx((0.2**2 + 0.15**2) ** 0.5)


def test_the_fit_sees_that_steps_that_wait_for_the_cpu_err_more() -> None:
    for steep, expected in ((0.8, True), (0.0, False)):
        found = [
            Residual(f"s{index}", NEAR, value, Conditions(waiting=0.1 * step))
            for index in range(8)
            for step in range(9)
            for value in [(-1) ** index * (0.02 + steep * 0.1 * step * (index % 4) / 3)]
        ]
        assert (fitted_table(found, "time").table.launches >= 0.2) == expected


def test_what_has_no_run_adds_its_own_error_and_is_named() -> None:
    found = (Residual("a", NEAR, 0.0, Conditions(bits=16)), Residual("b", ELSEWHERE, 0.0))
    unmeasured = {"architecture": 0.3, "framework": 0.04, "model": 0.2, "bits": 0.05}
    result = replace(table(*found), unmeasured=unmeasured)
    assert result.further(NEAR, Conditions(bits=16)) == Further()
    other = result.further(FAR._replace(model="moe"), Conditions(bits=8))
    assert other.deviation == pytest.approx((0.04**2 + 0.2**2 + 0.05**2) ** 0.5)
    assert other.reasons == (
        "no run of mixture-of-experts models on Hopper GPUs", "no run with 8-bit products",
        "no run of megatron-core on Hopper GPUs",
    )  # fmt: skip
    # The framework and dense models were measured, elsewhere.
    new = result.further(NEAR._replace(architecture="volta"), Conditions())
    assert new == Further(0.3, ("no run of nanotron on Volta GPUs",))


def test_many_runs_are_represented_by_nineteen() -> None:
    assert represent([0.3, 0.1]) == (0.1, 0.3)
    many = represent([index / 1000 for index in range(1001)])
    assert len(many) == 19
    assert many[9] == pytest.approx(0.5)
    assert many[0] == pytest.approx(1 / 38, abs=0.001)


def test_held_out_intervals_do_not_see_their_own_source() -> None:
    """Two sources of one family far apart: each lies outside the other's interval."""
    found = [*runs("a", NEAR, -0.5, -0.49, -0.51), *runs("b", NEAR, 0.5, 0.49, 0.51)]
    coverage = held_out(table(*found), found)
    none = Covered(0.0, {"a": (0.0, 3), "b": (0.0, 3)})
    assert coverage == HeldOut(none, none)
    assert none.sources == coverage.covered == 0.0


def test_coverage_is_counted_by_row_and_by_source() -> None:
    found = [
        *runs("a", NEAR, *(index / 10 for index in range(-5, 6))),
        *runs("b", NEAR, 0.0, 0.1, 0.2, 5.0),
    ]
    coverage = held_out(table(*found), found)
    # The interval of `a`, from the runs of `b`, starts at the prediction: 0 to 5 are in it.
    today = coverage.today
    assert today.by_source == {"a": (pytest.approx(6 / 11), 11), "b": (0.75, 4)}
    assert today.rows == pytest.approx(9 / 15)
    assert today.sources == pytest.approx((6 / 11 + 0.75) / 2)
    assert coverage.met == today
    assert coverage.covered == pytest.approx((today.rows + today.sources) / 2)


def test_first_sights_count_half_of_the_coverage() -> None:
    wide = [*runs("a", NEAR, -0.5, 0.5), *runs("b", NEAR, 0.1), *runs("c", NEAR, 0.1)]
    met = [replace(run, first=5.0) for run in runs("d", NEAR, 0.1)]
    coverage = held_out(table(*wide, *met), both_ways([*wide, *met]))
    assert coverage.met == Covered(0.0, {"d, at first sight": (0.0, 1)})
    assert coverage.covered == pytest.approx((coverage.today.rows + coverage.today.sources) / 4)


def test_the_fit_inflates_until_held_out_intervals_cover_eighty_percent() -> None:
    """Ten sources, each off by its own amount: what the others show is too narrow by itself."""
    found = [
        residual
        for index in range(10)
        for residual in runs(
            f"s{index}", NEAR, *((index - 4.5) / 10 + step / 100 for step in range(-4, 5))
        )
    ]
    fitted = fitted_table(found, "time")
    assert held_out(fitted.table, found).covered == pytest.approx(0.8, abs=0.02)
    assert fitted.coverage == held_out(fitted.table, found)
    assert fitted.table.prior_rows in (1.0, 2.0, 4.0, 8.0, 16.0)
    assert fitted.table.source_power in (0.0, 0.25, 0.5)


def test_a_refit_writes_what_the_loader_reads() -> None:
    rows = [
        predicted(10.0, source=source, step_time_s=f"{10 + index / 10:.1f}", peak_mem_gib="9")
        for source in ("one", 'two "quoted"'[:3])
        for index in range(4)
    ]
    fitted = fit_all(rows)
    tables = parse_tables(json.loads(render(fitted)))
    assert set(tables) == {"time", "memory"}
    for item in (one.table for one in fitted):
        read = tables[item.figure]
        assert read.inflation == pytest.approx(item.inflation)
        assert (read.source_power, read.growth) == (item.source_power, item.growth)
        assert read.unmeasured == item.unmeasured
        for entry, wrote in zip(read.entries, item.entries, strict=True):
            assert entry.log_ratios == wrote.log_ratios
            assert entry.bits == wrote.bits == (16,)
            assert set(entry.measured) == set(wrote.measured) >= {"gpus", "seq", "hidden"}


def test_small_peaks_unstated_recompute_and_toy_models_do_not_count() -> None:
    rows = [
        predicted(1.0, peak_mem_gib="7"),
        predicted(1.0, peak_mem_gib="20", recompute=""),
        predicted(1.0, peak_mem_gib="20"),
        predicted(1.0, source="megatron-ci-golden"),
    ]
    assert len(residuals(rows, "memory")) == 1
    timed = residuals(rows, "time")
    assert [item.counts for item in timed] == [True, True, True, False]
    assert sum(item.rows for item in summarised(timed)) == 3


def test_the_shipped_tables_answer_for_any_family() -> None:
    for figure, shipped_table in shipped_tables().items():
        assert figure == shipped_table.figure
        for family in (
            *shipped_table.families(),
            Family("new", "new", "one domain", "moe"),
            Family(),
        ):
            spread = shipped_table.spread(family)
            assert spread.low < spread.middle < spread.high


def test_what_was_said_before_a_run_taught_anything_is_kept() -> None:
    """20.0 s were said at first of 18.13; without its framework's name as much more or less as the
    name changes now. What was never kept is that of today, as many times as asked for."""
    cells = {"first_sight_s": "20.0", "peak_mem_gib": "40", "first_sight_gib": "36"}
    rows = [predicted(18.5, 39.0, **cells), predicted(18.5, 39.0, framework="", **cells)]
    known, unnamed = residuals(rows, "time")
    assert known.value == unnamed.value == pytest.approx(math.log(18.13 / 18.5))
    assert known.to_a_stranger(2.0).value == pytest.approx(math.log(18.13 / 20.0))
    assert unnamed.first == pytest.approx(math.log(18.13 / 20.0))
    never = residuals([predicted(18.5)], "time")[0]
    assert never.to_a_stranger(2.0).value == pytest.approx(2.0 * math.log(18.13 / 18.5))
    assert residuals(rows, "memory")[0].first == pytest.approx(math.log(40 / 36))


def test_intervals_lie_between_errors_of_today_and_of_first_sight() -> None:
    """Errors of today are those of sources that taught the model what they are; those of first
    sight are of a model that knew less than today's."""
    learnt = [run for name in "abcdef" for run in runs(name, NEAR, -0.02, -0.01, 0.0, 0.01, 0.02)]
    strange = [replace(run, first=4.0 * run.value) for run in learnt]
    narrow, wide = (fitted_table(found, "time").table for found in (learnt, strange))
    assert 1.5 < wide.spread(NEAR).high / narrow.spread(NEAR).high < 3.0


def test_old_sources_count_as_much_wider_as_strangers_are() -> None:
    """Of five sources both errors are known, twice as large at first; five others are of today."""
    values = (-0.04, -0.02, 0.0, 0.02, 0.04)
    old = [run for name in "abcde" for run in runs(name, NEAR, *values)]
    met = [replace(run, source=run.source * 2, first=2.0 * run.value) for run in old]
    assert fitted_table([*old, *met], "time").taught >= 1.5
    assert fitted_table(old, "time").taught == 1.0
