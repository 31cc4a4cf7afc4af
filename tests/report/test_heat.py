"""Two degrees at a time: cells are the best of their shapes, or name the rule that forbids them."""

from __future__ import annotations

import numpy as np
import pytest

from constraints.registry import RULES
from planner.job.request import Request
from planner.report.charts.drawing import specification, svg
from planner.report.charts.front import candidates, costed_or_reason, peaks_gib, speeds
from planner.report.charts.heat import HeatMap, heat_chart, heat_map, rule_words
from planner.report.said import described
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.search.shares import CostedJob


@pytest.fixture(scope="module")
def result() -> SearchResult:
    """A small search."""
    return find_plans(Request(model="llama-3-8b", gpus="8xH100", gbs=64))


@pytest.fixture(scope="module")
def costed(result: SearchResult) -> CostedJob:
    """Its shapes."""
    found, reason = costed_or_reason(result)
    assert found is not None and reason == ""
    return found


@pytest.fixture(scope="module")
def found(costed: CostedJob, result: SearchResult) -> HeatMap:
    """Its cells."""
    heat = heat_map(costed, result)
    assert heat is not None
    return heat


def test_every_pair_of_values_has_one_cell(found: HeatMap) -> None:
    seen = {(cell.a, cell.b, cell.i, cell.j) for cell in found.cells}
    sizes = [len(values) for values in found.values.values()]
    pairs = (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    assert len(seen) == len(found.cells) == pairs
    assert found.first == ("tp", "pp")


def test_one_open_degree_makes_no_map() -> None:
    request = Request(
        model="llama-3-8b", gpus="1xH100", gbs=1, seq=1024, recompute=("none",), train="qlora",
        framework="hf-transformers",
    )  # fmt: skip
    result = find_plans(request)
    costed, _ = costed_or_reason(result)
    assert costed is not None
    assert heat_map(costed, result) is None


def test_a_cell_is_the_fastest_of_its_shapes_that_fit(
    found: HeatMap, costed: CostedJob, result: SearchResult
) -> None:
    columns, speed, size = costed.candidates.columns, speeds(costed), peaks_gib(costed)
    plans = {(plan.degrees.tp, plan.degrees.pp): 0.0 for plan in result.plans}
    for plan in result.plans:
        where = (plan.degrees.tp, plan.degrees.pp)
        plans[where] = max(plans[where], plan.tokens_per_s_per_gpu)
    for cell in found.cells:
        if (cell.a, cell.b) != ("tp", "pp"):
            continue
        tp, pp = int(found.values["tp"][cell.i]), int(found.values["pp"][cell.j])
        mine = (columns["tp"] == tp) & (columns["pp"] == pp)
        if cell.kind == "fits":
            sure = speed[mine & (size <= max(plan.peak_bytes for plan in result.plans) / 2**30)]
            assert cell.speed >= max(sure.max(initial=0.0), plans.get((tp, pp), 0.0)) * 0.999
        elif cell.kind in ("may fit", "too large"):
            assert cell.label == f"{size[mine].min():.0f} GiB"
        else:
            assert not mine.any()


def test_a_forbidden_cell_names_the_rules(found: HeatMap) -> None:
    words = {rule_words(rule.name, 8) for rule in RULES}
    forbidden = [cell for cell in found.cells if cell.kind == "forbidden"]
    assert forbidden
    for cell in forbidden:
        assert cell.label.removesuffix(" …") in words and cell.text.startswith("forbidden: ")
    (eight,) = (
        cell
        for cell in found.cells
        if (cell.a, cell.b) == ("tp", "pp")
        and (found.values["tp"][cell.i], found.values["pp"][cell.j]) == ("8", "2")
    )
    assert "dp·tp·pp·cp must equal 8 GPUs  [world-size]".replace("  ", " ") in eight.text


def test_every_rule_has_words_that_a_cell_holds() -> None:
    words = described("pages.rules")
    own = {rule.name for rule in RULES if not rule.name.startswith("user-")}
    assert set(words) == own
    assert max(len(text.format(gpus=16384)) for text in words.values()) <= 18


def test_conditions_of_people_are_named_as_what_forbids(result: SearchResult) -> None:
    limited = find_plans(
        result.request.model_copy(update={"require": ("tp <= 2",), "limits": {"pp": (1, 2)}})
    )
    costed, _ = costed_or_reason(limited)
    assert costed is not None
    heat = heat_map(costed, limited)
    assert heat is not None
    assert any("tp <= 2" in cell.text for cell in heat.cells)


def test_the_chart_holds_all_pairs_for_pages_and_one_for_files(found: HeatMap) -> None:
    whole = specification(heat_chart(found))
    assert len(whole["datasets"]) == 1
    (text,) = whole["datasets"].values()
    assert len(text.splitlines()) == 1 + len(found.cells)
    drawing = svg(heat_chart(found, choose=False))
    assert "tp 8" in drawing and "pp 4" in drawing and "not 8 GPUs" in drawing


def test_all_shapes_in_the_picture_are_dots(costed: CostedJob, result: SearchResult) -> None:
    found = candidates(costed, result)
    assert not found.is_thinned
    assert len(found.dots) <= found.legal == len(costed.candidates.columns["tp"])
    # The dots are of the job's techniques, which some plans change.
    plan = next(one for one in result.plans if "megatron-fsdp" not in one.techniques)
    best = max(dot.tokens_per_s for dot in found.dots if dot.gib <= plan.peak_bytes / 2**30)
    assert best == pytest.approx(plan.tokens_per_s_per_gpu, rel=0.01)
    assert np.isfinite([dot.gib for dot in found.dots]).all()
