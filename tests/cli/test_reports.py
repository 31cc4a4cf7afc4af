"""Reports over hand-made results: notes, widths, number formats."""

from __future__ import annotations

import io

import pytest

from constraints.rule import Layout
from planner.job.quantities import gib, number_ranges, run_lengths, seconds, short_count
from planner.predict.plan import Degrees, Interval, Plan
from planner.predict.plan_text import degrees_text, error_text, recompute_text
from planner.predict.uncertainty.selection import Luck
from planner.report.draw import console, draw
from planner.report.search import error_note, front_notes, printed, search_report
from planner.report.tables import Column, Facts, Notes, Report, TableData
from planner.report.verdict import Verdict
from planner.search.outcome import recommended
from planner.search.result import SearchResult
from tests.cli.conftest import lines_are_short
from tests.cli.made_up import plan, result

WIDEST = plan(
    degrees=Degrees(tp=8, pp=16, vpp=1, cp=16, ep=64, etp=8, dp=128, zero=1, grad_acc=1024),
    layout=Layout(
        16,
        1,
        (4, *(5,) * 14, 6),
        recomputed={"mla_up_proj+layernorm+moe_act": (4, *(5,) * 14, 6)},
    ),
    recompute="mla_up_proj+layernorm+moe_act",
    step_time_s=123.4,
    tokens_per_s_per_gpu=123_456.0,
    gbs=131_072,
    status="feasible",
    gap=0.012,
    fit_probability=0.71,
)


def notes_of(found: SearchResult) -> tuple[str, ...]:
    return front_notes(found, printed(found))


def drawn(found: SearchResult) -> str:
    stream = io.StringIO()
    draw(search_report(found), console(stream))
    return stream.getvalue()


def test_columns_use_the_width_and_no_number_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, optional in ((80, ()), (170, ("MFU", "tok/s", "4, 5×14, 6"))):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = drawn(result(plan(), WIDEST))
        assert max(map(len, text.splitlines())) <= columns + 6
        for number in ("123,456", "123 s", " 64 ", "layernorm", "131,072", *optional):
            assert number in text
    monkeypatch.setenv("COLUMNS", "80")
    assert "4, 5×14, 6" not in drawn(result(plan(), WIDEST))
    usual = drawn(result(plan()))
    assert lines_are_short(usual) and "MFU" in usual


def test_a_table_of_many_columns_has_80_of_them() -> None:
    """A mixture's search: two batches, words in both columns of words."""
    degrees = Degrees(tp=4, pp=32, vpp=8, cp=2, ep=8, dp=16, zero=1, grad_acc=1952)
    wide = plan(
        degrees=degrees, recompute="layernorm+moe_act", gbs=1952, step_time_s=147.8,
        techniques=("cuda-graphs", "fused-dispatch"),
    )  # fmt: skip
    found = result(wide, wide.model_copy(update={"gbs": 1984, "techniques": ()}))
    assert lines_are_short(drawn(found))


def test_a_number_and_its_unit_stay_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    words = "a sentence of so many words that ends: 98 % and then goes on to 51.9 GiB"
    draw(Report((Facts((("is", words),)), Notes((words,)))), console(stream))
    lines = stream.getvalue().splitlines()
    assert sum("98 %" in line for line in lines) == sum("51.9 GiB" in line for line in lines) == 2
    assert max(map(len, lines)) <= 40


def test_the_plan_to_take_is_the_fastest_of_those_that_fit_as_surely() -> None:
    def chosen(*pairs: tuple[float, float]) -> int:
        return recommended([plan(tokens_per_s=pace, fit_probability=p) for pace, p in pairs])

    assert chosen((1000, 0.95), (995, 0.98), (900, 0.999)) == 1
    assert chosen((1000, 0.85), (998, 0.93), (995, 0.96)) == 2
    assert chosen((1000, 0.85), (950, 0.99)) == 1
    assert chosen() == 0


def test_doubts_gaps_and_ties_are_said() -> None:
    notes = "\n".join(notes_of(result(plan(), WIDEST)))
    assert "Plan 2 may not fit on a real machine" in notes
    assert "Not proven optimal: plan 2; another may be up to 1.2 % faster" in notes
    assert "Not surely slower than plan 1: plan 2 is " in notes


def test_a_surer_plan_that_is_not_surely_slower_is_named() -> None:
    degrees = plan().degrees.model_copy(update={"tp": 8, "cp": 1})
    surer = plan(degrees=degrees, tokens_per_s=70_000.0, fit_probability=0.999)
    doubtful = plan(fit_probability=0.82)
    taken = {"recommended": 1}
    verdict = Verdict(result(doubtful, surer).model_copy(update=taken))
    assert verdict.risk.startswith("18 % risk that it does not fit; plan 2 avoids it")
    first = verdict.alternatives[0]
    assert first.number == 2 and first.words.startswith("surer to fit")
    assert first.than.startswith("1.4 % slower, ")
    slow = surer.model_copy(update={"tokens_per_s": 35_000.0})
    for found in (result(doubtful, slow), result(plan(), surer)):
        again = Verdict(found.model_copy(update=taken))
        assert not any("surer" in one.words for one in again.alternatives)


def test_the_luck_of_the_fastest_is_said_where_it_counts() -> None:
    def said(longer: float) -> str:
        luck = Luck(rivals=51, longer=longer)
        return "\n".join(notes_of(result(plan()).model_copy(update={"luck": luck})))

    assert "51 other plans may be as fast" in said(0.06) and "about 6.0 % more" in said(0.06)
    assert "may be as fast" not in said(0.004)


def test_a_sure_and_proven_front_has_no_doubts() -> None:
    notes = "\n".join(notes_of(result(plan(), plan(tokens_per_s=50_000.0))))
    for word in ("may not fit", "Not proven", "error bar"):
        assert word not in notes


def test_mfu_names_its_peak_and_error_bars_their_family() -> None:
    notes = "\n".join(notes_of(result()))
    assert "989 TFLOP/s dense" in notes
    assert "62 measured runs on H100" in notes


def test_what_was_never_measured_is_named_with_the_plans_it_is_true_of() -> None:
    def bar(*beyond: str) -> Interval:
        return Interval(low=53.1, high=64.9, family="62 runs", beyond=beyond)

    plans = (
        plan(step_time=bar("65,536 GPUs (measured: up to 4,608)")),
        plan(step_time=bar("65,536 GPUs (measured: up to 4,608)", "hidden size 8")),
    )
    wider = "Wider because nothing like it was measured: 65,536 GPUs (measured: up to 4,608)"
    assert f"from 62 runs. {wider}; hidden size 8 (plan 2)." in error_note(
        plans, [(1, plans[0]), (2, plans[1])]
    )
    assert f"from 62 runs. {wider}; hidden size 8 (some plans)." in error_note(plans)
    assert error_note(plans[:1]).endswith(f"{wider}.")


def test_a_reason_that_differs_in_its_share_alone_is_said_once() -> None:
    plans = [
        plan(step_time=Interval(low=53.1, high=64.9, family="62 runs", beyond=beyond))
        for beyond in (
            *((f"exposed communication {share} % of the step (measured: up to 22 %)",)
              for share in (29, 25, 27)),
            (),
        )
    ]  # fmt: skip
    said = "exposed communication 25 to 29 % of the step (measured: up to 22 %)"
    assert f": {said} (some plans)." in error_note(plans)
    assert f": {said} (plans 4-6)." in error_note(plans, list(enumerate(plans, 4)))
    assert error_note(plans[:1]).endswith(": exposed communication 29 % of the step "
                                          "(measured: up to 22 %).")  # fmt: skip


def test_a_search_counts_what_was_assumed() -> None:
    found = result(plan(assumptions=("a", "b")))
    job = found.job.model_copy(update={"assumed": ("H100: a number nobody published",)})
    notes = "\n".join(notes_of(found.model_copy(update={"job": job})))
    assert "Plan 1 counts on 3 assumptions" in notes


def test_a_row_must_have_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        TableData((Column("a"), Column("b")), (("x",),))


def test_partial_recompute_is_counted() -> None:
    layout = Layout(4, 1, (20,) * 4, recomputed={"full": (5,) * 4})
    found: Plan = plan(recompute="full", layout=layout)
    assert recompute_text(found) == "full 20/80"


def test_degrees_of_one_are_left_out() -> None:
    assert degrees_text(Degrees(tp=8, dp=8, zero=1)) == "tp8 pp1 dp8 z1"


def test_an_error_has_one_number_unless_its_sides_clearly_differ() -> None:
    for low, high, text in (
        (9.0, 11.0, "±10 %"),
        (9.2, 11.0, "±10 %"),
        (9.9, 10.3, "±3 %"),
        (9.5, 10.9, "-5/+9 %"),
        (9.4, 11.2, "-6/+12 %"),
        (10.0, 12.0, "-0/+20 %"),
    ):
        assert error_text(10.0, Interval(low=low, high=high, family="")) == text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (gib(79.11 * 2**30), "79.1"),
        (gib(-1.0), "0.0"),
        (seconds(123.4), "123 s"),
        (seconds(59.04), "59.0 s"),
        (seconds(9.844), "9.84 s"),
        (seconds(0.4124), "0.412 s"),
        (seconds(0.0031), "3.1 ms"),
        (short_count(70_553_706_496), "70.55 B"),
        (short_count(1_026_000_000_000), "1.03 T"),
        (short_count(42), "42"),
        (run_lengths((4, 5, 5, 6)), "4, 5×2, 6"),
        (number_ranges((1, 2, 3, 5)), "1-3, 5"),
    ],
)
def test_numbers(shown: str, text: str) -> None:
    assert shown == text


def test_certainty_is_never_printed() -> None:
    from planner.job.quantities import percent_sure

    assert [percent_sure(p) for p in (1.0, 0.995, 0.85, 0.001)] == [
        ">99 %",
        ">99 %",
        "85 %",
        "<1 %",
    ]
