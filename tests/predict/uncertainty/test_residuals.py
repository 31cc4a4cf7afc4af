"""Errors of the parts of a prediction: bars, sources left out, the fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from planner.predict.uncertainty.families import (
    Family,
    Figure,
    wider_families,
)
from planner.predict.uncertainty.measured_range import Conditions
from planner.predict.uncertainty.residuals import (
    FOLDS,
    PARTS,
    Ends,
    ErrorTable,
    Further,
    HalfWidths,
    kinds_of,
)
from planner.predict.uncertainty.shipped import (
    parse_tables,
    shipped_tables,
)
from tests.evidence.runs.rows_for_tests import predicted
from tests.fit.error_fit import fitted_errors
from tests.fit.judging import (
    Covered,
    HeldOut,
    Residual,
    both_ways,
    judge,
    summarised,
)
from tests.fit.residual_fit import fit_all, fitted_table, render, residuals

NEAR = Family("nanotron", "hopper", "one domain", "dense")
FAR = Family("megatron-core", "hopper", "one domain", "dense")
ELSEWHERE = Family("fsdp1", "ampere", "one domain", "dense")


def held_out(table: ErrorTable, found: list[Residual]) -> HeldOut:
    """Coverage of the intervals that leave each run's source out."""
    return judge(table, found).coverage()


def runs(source: str, family: Family, *values: float) -> list[Residual]:
    return [Residual(source, family, value) for value in values]


def table(*found: Residual, figure: Figure = "time") -> ErrorTable:
    """A table with bars of 0.2 both ways."""
    errors = HalfWidths(dict.fromkeys(PARTS[figure], Ends(0.2, 0.2)))
    return ErrorTable(figure, summarised(found), errors)


AT = Conditions(overhead=1.25, waiting=0.1, least=0.3)


def test_half_widths_are_the_sum_of_the_parts() -> None:
    parts = {"work": (0.1, 0.0), "exposed": (0.0, 1.0), "waiting": (0.6, 0.1), "rest": (0.2, 0.5)}
    errors = HalfWidths({part: Ends(*ends) for part, ends in parts.items()})
    found = ErrorTable("time", (), errors).half_widths(NEAR, AT)
    # Exposed 1 - 1 / 1.25, waiting 0.1, work 0.3, the rest 0.4.
    assert found.up == pytest.approx(0.2 * 1.0 + 0.1 * 0.1 + 0.4 * 0.5)
    assert found.down == pytest.approx(0.3 * 0.1 + 0.1 * 0.6 + 0.4 * 0.2)
    more = HalfWidths(errors.parts, {"mixture": Ends(math.log(2.0), 0.0)})
    mixture = ErrorTable("time", (), more).half_widths(NEAR._replace(model="moe"), AT)
    assert tuple(mixture) == pytest.approx((2.0 * found.down, found.up))


def test_parts_of_a_step_add_up_to_one() -> None:
    for at in (AT, Conditions(least=0.9, overhead=2.0, waiting=0.8), Conditions(least=0.2)):
        assert sum(at.parts.values()) == pytest.approx(1.0)
        assert min(at.parts.values()) >= 0.0
    assert Conditions().parts == {}


def test_kinds_of_a_job() -> None:
    moe = NEAR._replace(model="moe")
    assert kinds_of(NEAR, {"nanotron"}) == []
    assert kinds_of(moe, {"nanotron"}) == ["mixture"]
    assert kinds_of(NEAR, {"megatron-core"}) == ["own loop"]
    assert kinds_of(moe._replace(framework="nanogpt"), {"nanogpt"}) == ["mixture", "own loop"]


def test_leaving_a_source_out_excludes_every_run_of_it() -> None:
    found = (*runs("a", NEAR, 0.5, 0.5), *runs("a", FAR, 0.7), *runs("b", FAR, 0.0, 0.0))
    whole = table(*found)
    assert (whole.spread(NEAR, AT).family, whole.spread(NEAR, AT).rows) == (NEAR, 2)
    without = whole.spread(NEAR, AT, without="a")
    assert (without.family, without.rows, without.all_rows) == (
        Family("", "hopper", "", "dense"), 2, 2,
    )  # fmt: skip
    assert whole.spread(NEAR, AT, without="unknown") == whole.spread(NEAR, AT)


def test_time_is_nearest_on_the_same_gpu_memory_in_the_same_framework() -> None:
    asked = Family("nanotron", "ampere", "one domain", "dense")
    found = (*runs("a", NEAR, 0.5), *runs("b", ELSEWHERE, 0.2))
    assert table(*found).nearest(asked) == Family("", "ampere", "", "dense")
    assert table(*found, figure="memory").nearest(asked) == Family("nanotron", "", "", "dense")
    assert table(*found).nearest(Family("x", "volta", "one domain", "moe")) == Family()


def test_runs_judge_the_intervals_as_they_are_today_and_at_first_sight() -> None:
    """All of them today, and once more those that were met so."""
    found = [replace(one, first=0.3) for name in "ab" for one in runs(name, NEAR, 0.1)]
    judged = both_ways([*found, *runs("c", FAR, 0.2)])
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
    assert all(item.includes(NEAR) for item in wider_families(NEAR, figure))
    assert [*wider_families(NEAR, figure)][-1] == Family()


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


@pytest.mark.parametrize("part", ["exposed", "waiting"])
def test_the_fit_sees_which_part_of_a_step_errs(part: str) -> None:
    """Errors upwards in proportion to a part, against errors without regard to it."""
    for steep, expected in ((1.0, True), (0.0, False)):
        found = [
            Residual(f"s{index}", NEAR, value, at)
            for index in range(8)
            for step in range(5)
            for at in [
                Conditions(least=0.5, overhead=1 / (1 - 0.1 * step))
                if part == "exposed"
                else Conditions(least=0.5, waiting=0.1 * step)
            ]
            for value in [(-1) ** index * (0.02 + steep * 0.1 * step * (index % 4))]
        ]
        assert (fitted_errors("time", found).parts[part].up >= 0.5) == expected


def test_a_part_that_runs_have_little_of_is_not_given_all_that_they_err_by() -> None:
    """Runs of 5 % exposed communication that are up to e times as slow."""
    found = [
        Residual(
            f"s{index}", NEAR, value * share, at=Conditions(overhead=1.0 / (1.0 - share), least=0.4)
        )
        for index, (value, share) in enumerate(
            [(20.0, 0.05), (1.0, 0.01), (18.0, 0.05), (0.5, 0.0)] * 3
        )
    ]
    assert 1.0 < fitted_errors("time", found).parts["exposed"].up <= np.log(4.0) + 1e-9


def test_frameworks_that_nobody_measured_have_bars_as_wide_as_loops_that_somebody_wrote() -> None:
    values = (-0.04, -0.02, 0.0, 0.02, 0.04)
    known = [run for name in "abcdefgh" for run in runs(name, NEAR, *values)]
    own = NEAR._replace(framework="nanogpt")
    loops = [
        replace(run, value=3.0 * run.value, source=run.source * 2, family=own) for run in known
    ]
    found = fitted_table([*known, *loops], "time").table
    usual = found.half_widths(NEAR, AT)
    for framework in ("nanogpt", "unheard-of"):
        assert 2.0 < found.half_widths(NEAR._replace(framework=framework), AT).up / usual.up < 4.0


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


def test_held_out_intervals_do_not_see_their_own_source() -> None:
    """Bars of all and of the fold without a source: the latter judge its runs."""
    found = [*runs("a", NEAR, 0.3), *runs("b", NEAR, 0.3)]
    whole = table(*found)
    narrow = tuple(whole.errors.times(factor) for factor in (0.1, 10.0))
    folded = replace(whole, folds=narrow * (FOLDS // 2))
    coverage = held_out(folded, found)
    assert coverage.today.by_source == {"a": (0.0, 1), "b": (1.0, 1)}
    assert coverage.today.rows == coverage.today.sources == coverage.covered == 0.5


def test_first_sights_count_half_of_the_coverage() -> None:
    found = [*runs("b", NEAR, 0.1), *runs("c", NEAR, 0.1)]
    met = [replace(run, first=5.0) for run in runs("d", NEAR, 0.1)]
    coverage = held_out(table(*found, *met), both_ways([*found, *met]))
    assert coverage.met == Covered(0.0, {"d, at first sight": (0.0, 1)})
    assert coverage.covered == pytest.approx((coverage.today.rows + coverage.today.sources) / 4)


def test_the_fit_inflates_until_held_out_intervals_cover_eighty_percent() -> None:
    """Ten sources, each off by its own amount."""
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
    assert len(fitted.table.folds) == FOLDS


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
        assert read.half_widths(NEAR, AT) == pytest.approx(item.half_widths(NEAR, AT), rel=1e-4)
        assert (read.growth, read.unmeasured) == (item.growth, item.unmeasured)
        assert read.shared == pytest.approx(item.shared, rel=1e-4)
        for entry, wrote in zip(read.entries, item.entries, strict=True):
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
            spread = shipped_table.spread(family, AT)
            assert spread.low < 0.0 < spread.high


def test_what_was_said_before_a_run_taught_anything_is_kept() -> None:
    """20.0 s were said at first of 18.13."""
    cells = {"first_sight_s": "20.0", "peak_mem_gib": "40", "first_sight_gib": "36"}
    rows = [predicted(18.5, 39.0, **cells)]
    known = residuals(rows, "time")[0]
    assert known.value == pytest.approx(math.log(18.13 / 18.5))
    assert known.first == pytest.approx(math.log(18.13 / 20.0))
    assert residuals([predicted(18.5)], "time")[0].first is None
    assert residuals(rows, "memory")[0].first == pytest.approx(math.log(40 / 36))


def test_intervals_lie_between_errors_of_today_and_of_first_sight() -> None:
    """Errors of today are those of sources that taught the model what they are; those of first
    sight are of a model that knew less than today's."""
    learnt = [run for name in "abcdef" for run in runs(name, NEAR, -0.02, -0.01, 0.0, 0.01, 0.02)]
    strange = [replace(run, first=4.0 * run.value) for run in learnt]
    narrow, wide = (fitted_table(found, "time").table for found in (learnt, strange))
    assert 1.5 < wide.spread(NEAR, AT).high / narrow.spread(NEAR, AT).high < 4.5


def test_what_shares_the_variance() -> None:
    """Ten sources with levels of their own, and noise a third as large."""
    random = np.random.default_rng(4)
    found = [
        run
        for name in "abcdefghij"
        for run in runs(name, NEAR, *(random.normal() + random.normal(size=8) / 3.0))
    ]
    shares = fitted_table(found, "time").table.shares
    assert sum(shares.values()) == pytest.approx(1.0)
    assert 0.1 < shares["run"] < 0.4


def test_noise_that_no_run_shares_is_the_runs_own() -> None:
    random = np.random.default_rng(5)
    found = [run for name in "abcdefghij" for run in runs(name, NEAR, *random.normal(size=8))]
    assert fitted_table(found, "time").table.shared < 0.25
