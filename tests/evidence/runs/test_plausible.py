"""Weights of open facts: shrunk to wider groups, without a source, and refused where wrong."""

from __future__ import annotations

from typing import Any

import pytest

from hardware.errors import HardwareError
from planner.evidence.runs.open_facts import fact_named, facts, stated_facts, varied
from planner.evidence.runs.plausible import Prior, StatedShares, parse_priors, priors, year_of
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import PLAN_COLUMN
from tests.evidence.runs.rows_for_tests import row

VALUES = {"compile": ("y", "n")}


def stated(
    source: str, group: str, year: int = 0, rows: int = 1, **shares: float
) -> dict[str, Any]:
    return {"source": source, "group": group, "year": year, "rows": rows, "shares": shares}


def prior(*told: dict[str, Any], by_year: bool = False) -> Prior:
    found = tuple(StatedShares(**one) for one in told)
    return Prior(silence=0.9, by_year=by_year, stated=found)


def test_nothing_stated_is_uniform() -> None:
    assert prior().weights(("y", "n"), "torchtitan", 0) == {"y": 0.5, "n": 0.5}


def test_a_framework_is_shrunk_to_all_frameworks() -> None:
    found = prior(stated("a", "torchtitan", y=1.0), stated("b", "nanogpt", n=1.0))
    # All: (1 + 0.5) / 3 each; of torchtitan one source of y beside two of those.
    assert found.weights(("y", "n"), "torchtitan", 0)["y"] == pytest.approx((1 + 2 * 0.5) / 3)
    assert found.weights(("y", "n"), "other", 0)["y"] == pytest.approx(0.5)


def test_sources_weigh_equally_however_many_runs_they_have() -> None:
    found = prior(stated("a", "g", rows=99, y=1.0), stated("b", "g", rows=1, n=1.0))
    assert found.weights(("y", "n"), "g", 0)["y"] == pytest.approx(0.5)


def test_a_source_is_left_out() -> None:
    found = prior(stated("a", "g", y=1.0), stated("b", "g", n=1.0))
    without = found.weights(("y", "n"), "g", 0, "a")
    assert without["y"] < 0.5 < without["n"]
    assert sum(without.values()) == pytest.approx(1.0)


def test_the_year_counts_only_where_it_tells_more() -> None:
    told = (stated("a", "g", 2024, y=1.0), stated("b", "g", 2026, n=1.0))
    assert prior(*told).weights(("y", "n"), "g", 2024)["y"] == pytest.approx(0.5)
    assert prior(*told, by_year=True).weights(("y", "n"), "g", 2024)["y"] > 0.6


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"y": 0.7, "n": 0.2}, "the weights add up to 0.9"),
        ({"y": 1.5, "n": -0.5}, "must be positive"),
        ({"y": 0.5, "maybe": 0.5}, "'maybe' is none of its values; they are y, n"),
    ],
)
def test_wrong_weights_are_refused_by_the_facts_name(shares: dict[str, float], said: str) -> None:
    content = {"compile": {"silence": 0.9, "stated": [stated("a", "g", **shares)]}}
    with pytest.raises(HardwareError, match="compile, source a") as error:
        parse_priors(content, VALUES)
    assert said in str(error.value)


def test_an_unknown_fact_and_a_wrong_silence_are_refused() -> None:
    with pytest.raises(HardwareError, match="colour is not a fact"):
        parse_priors({"colour": {"silence": 0.5}}, VALUES)
    with pytest.raises(HardwareError, match=r"compile: silence"):
        parse_priors({"compile": {"silence": 1.5}}, VALUES)


def test_the_table_that_ships_is_of_the_facts_that_are_varied() -> None:
    found = priors(varied())
    told = {fact.column for fact in facts() if fact.values and fact.silence is None}
    assert set(found) - {fact.column for fact in facts() if fact.silence is not None} == told
    for name, values in varied():
        weights = found.get(name, Prior(silence=0.0)).weights(values, "megatron-core", 2025)
        assert sum(weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("software", "year"),
    [("torchtitan 2025-06", 2025), ("2019-03", 2023), ("nemo 25.04", 2025), ("", 0), ("v2.1", 0)],
)
def test_the_year_is_that_of_the_software(software: str, year: int) -> None:
    assert year_of(row(software=software)) == year


def test_stated_values_are_read_where_the_fact_matters() -> None:
    (one,) = predict_rows([row()])
    said = {column: value.cell for column, value in stated_facts(one).items()}
    assert said["recompute"] == "full"
    assert (said["flash"], said["vpp"]) == ("n", "3")
    # On one data-parallel rank nothing is sharded, and its framework never compiles.
    assert not {"zero", "compile"} & set(said)
    assert stated_facts(predict_rows([row(tuning="one layer")])[0]) == {}
    planned = type(one)(row(**{PLAN_COLUMN: "plan.json"}), one.mapped, step=one.step)
    assert stated_facts(planned) == {}


def test_the_first_pattern_counts() -> None:
    fact = fact_named("cuda_graphs")
    cells = {"cuda_graphs": "transformer_engine: attn mlp"}
    assert (value := fact.stated_value(row(**cells))) and value.cell == "transformer_engine"
    assert (value := fact.stated_value(row(cuda_graphs="full_iteration"))) and value.cell == "y"
    assert fact.stated_value(row(cuda_graphs="")) is None
