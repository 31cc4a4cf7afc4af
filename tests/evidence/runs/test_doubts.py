"""Rows predicted over what they leave open."""

from __future__ import annotations

from math import exp, log

import pytest

from planner.evidence.runs import doubts
from planner.evidence.runs.document import csv_record, document
from planner.evidence.runs.doubts import narrowing_sentence, open_summary, with_open_facts
from planner.evidence.runs.families import family_by
from planner.evidence.runs.plausible import Prior, StatedShares
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import comparison
from planner.report.evidence import validation_report
from tests.evidence.runs.rows_for_tests import row
from tests.evidence.runs.test_open_facts import ALONE
from tests.fit.prior_fit import (
    best_silence,
    fitted_priors,
    render,
    stated_shares,
    year_tells,
)


def pair(**cells: str) -> tuple[Prediction, Prediction]:
    """A row on one GPU as predicted by default, and over its open facts."""
    (plain,) = predict_rows([row(**ALONE | cells)])
    return plain, with_open_facts([plain])[0]


def test_a_row_that_states_everything_is_predicted_as_before() -> None:
    plain, found = pair()
    assert found is plain
    assert found.opened == ()


def test_each_value_is_what_the_row_with_it_stated_is_predicted_as() -> None:
    plain, found = pair(recompute="")
    (fact,) = found.opened
    for value in fact.values:
        stated, _ = pair(recompute=value.cell)
        assert stated.step_time_s and plain.step_time_s
        effect = log(stated.step_time_s / plain.step_time_s)
        assert value.effects["time"] == pytest.approx(effect)
    assert sum(value.weight for value in fact.values) == pytest.approx(1.0)
    assert found.step_time_s == pytest.approx(plain.step_time_s)


def test_the_bar_of_an_open_row_is_wider_and_holds_the_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = StatedShares(source="s", group="g", year=0, rows=1, shares={"y": 1.0})
    half = Prior(silence=0.5, stated=(told,))
    monkeypatch.setattr(doubts, "priors", lambda _: {"compile": half})
    plain, found = (comparison(one, "time") for one in pair(compile="", step_time_s="1"))
    assert plain is not None
    assert found is not None
    assert found.interval.high / found.interval.low > plain.interval.high / plain.interval.low
    assert found.interval.low <= found.predicted <= found.interval.high


def test_the_headline_and_the_fit_follow_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    told = StatedShares(source="s", group="g", year=0, rows=1, shares={"full": 1.0})
    surely = Prior(silence=0.0, stated=(told,) * 1)
    monkeypatch.setattr(doubts, "priors", lambda _: {"recompute": surely})
    plain, found = pair(recompute="")
    (fact,) = found.opened
    median = found.doubt["time"].median
    assert median == pytest.approx(next(v for v in fact.values if v.cell == "full").effects["time"])
    assert plain.step_time_s
    assert found.step_time_s == pytest.approx(plain.step_time_s * exp(median))
    assert found.memory_bytes() < plain.memory_bytes()  # type: ignore[operator]
    assert (found.fit_probability or 0.0) >= (plain.fit_probability or 0.0)


def test_the_rows_own_source_does_not_say_what_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    own = StatedShares(source="mine", group="nanogpt", year=0, rows=1, shares={"full": 1.0})
    prior = Prior(silence=0.5, silence_without={"mine": 0.75}, stated=(own,))
    monkeypatch.setattr(doubts, "priors", lambda _: {"recompute": prior})
    (mine,), (other,) = (pair(recompute="", source=name)[1].opened for name in ("mine", "other"))
    weights = [next(v.weight for v in one.values if v.cell == "full") for one in (mine, other)]
    assert weights[0] == pytest.approx(1 / 3)
    assert weights[1] > 0.5
    assert (mine.silence, other.silence) == (0.75, 0.5)


def test_as_many_predictions_as_are_cheap_those_that_spread_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"recompute": Prior(silence=0.9, spread=0.1), "flash": Prior(silence=0.9, spread=0.2)}
    monkeypatch.setattr(doubts, "priors", lambda _: known)
    assert [fact.name for fact in pair(recompute="", flash="")[1].opened] == ["flash", "recompute"]
    monkeypatch.setattr(doubts, "MOST_PREDICTIONS", 4)
    assert [fact.name for fact in pair(recompute="", flash="")[1].opened] == ["flash"]


def test_the_fact_that_would_narrow_most_is_said_and_counted() -> None:
    plain, found = pair(recompute="", step_time_s="1")
    said = narrowing_sentence(found, "time")
    assert said is not None
    assert said.startswith("recompute not stated: ")
    assert " without" in said
    assert narrowing_sentence(plain, "time") is None
    (line,) = open_summary([found, plain])
    assert (line.fact, line.figure, line.runs, line.sources) == ("recompute", "time", 1, 1)
    assert line.factor > 1.1
    text = str(validation_report([found], family_by("source")))
    assert "would narrow" in text
    assert "recompute not stated" in text


def test_records_hold_the_figures_of_each_value() -> None:
    plain, found = pair(recompute="", step_time_s="1")
    (record,) = document([found], family_by("source"))["rows"]
    (fact,) = record["open_values"]
    assert fact["fact"] == "recompute"
    assert fact["values"][0]["step_time_s"] == pytest.approx(plain.step_time_s)
    assert record["narrowing_time"] == narrowing_sentence(found, "time")
    assert document([plain], family_by("source"))["rows"][0]["open_values"] == []
    assert csv_record(found)["open_values"].startswith('[{"fact": "recompute"')
    assert csv_record(plain)["open_values"] == ""


def test_shares_are_counted_by_source_group_and_year() -> None:
    cells = [{"compile": "y"}, {"compile": "n"}, {"compile": "y", "software": "2025-01"}]
    found = stated_shares(predict_rows(row(**ALONE | one) for one in cells))["compile"]
    assert [(one.group, one.year, one.rows, one.shares) for one in found] == [
        ("nanogpt", 0, 2, {"n": 0.5, "y": 0.5}),
        ("nanogpt", 2025, 1, {"y": 1.0}),
    ]


def test_years_count_where_they_tell_what_others_state() -> None:
    def told(year: int, source: str, value: str) -> StatedShares:
        return StatedShares(source=source, group="g", year=year, rows=1, shares={value: 1.0})

    by_year = [told(2023 + i % 2, str(i), "yn"[i % 2]) for i in range(8)]
    mixed = [told(2023 + i % 2, str(i), "yn"[i // 2 % 2]) for i in range(8)]
    assert year_tells(by_year, ("y", "n"))
    assert not year_tells(mixed, ("y", "n"))


def test_silence_is_that_of_the_best_score_and_sure_where_few_tell() -> None:
    def curve(best: int) -> list[float]:
        return [float(at != best) for at in range(6)]

    half = {name: curve(1) for name in "abcde"}
    assert best_silence({}) == best_silence({name: half[name] for name in "abcd"}) == 1.0
    assert best_silence(half) == 0.5
    assert best_silence(half, "e") == 1.0
    # Errors of first sights are of the same sources, and count beside today's.
    assert best_silence({f"a{more}": curve(1) for more in ("", ", at first sight")}) == 1.0
    met = {f"{name}, at first sight": [9.0 * x for x in curve(3)] for name in "abcde"}
    assert best_silence(half | met) == 0.9
    assert best_silence({name: [1.0] * 6 for name in "abcde"}) == 1.0
    # One source that gains much is no evidence.
    one = {name: [1.0] * 6 for name in "bcde"} | {"a": [1.0, -9.0, 1.0, 1.0, 1.0, 1.0]}
    assert best_silence(one) == 1.0


def test_priors_are_fitted_on_runs_that_state_a_fact_and_on_those_that_leave_it_open() -> None:
    """Six sources that leave compilation open ran as if compiled, which their framework is not by
    default; one states it."""
    cells = ALONE | {"framework": "FSDP1", "compile": ""}
    (plain, compiled) = predict_rows([row(**cells), row(**cells | {"compile": "y"})])
    assert plain.step_time_s
    assert compiled.step_time_s
    assert compiled.step_time_s < 0.99 * plain.step_time_s
    told = row(**cells | {"compile": "y", "source": "told", "step_time_s": ""})
    seconds = {"step_time_s": str(0.3 * compiled.step_time_s)}
    silent = [row(**cells | seconds | {"source": f"s{number}"}) for number in range(6)]
    found = fitted_priors(predict_rows([told, *silent]))["compile"]
    assert [one.source for one in found.stated] == ["told"]
    assert found.silence == 0.25
    assert found.spread > 0.01
    assert fitted_priors(predict_rows([told, *silent[:4]]))["compile"].silence == 1.0


def test_the_file_reads_as_it_was_written() -> None:
    import tomli

    from planner.evidence.runs.plausible import parse_priors

    told = StatedShares(source="a", group="g", year=2025, rows=3, shares={"y": 0.3333, "n": 0.6667})
    prior = Prior(
        silence=0.9, silence_without={"a": 0.5}, by_year=True, spread=0.25, stated=(told,)
    )
    content = tomli.loads(render({"compile": prior}))
    content.pop("date")
    assert parse_priors(content, {"compile": ("y", "n")}) == {"compile": prior}
