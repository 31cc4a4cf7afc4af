"""Pages of plan files, comparisons and scaling studies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hardware.errors import HardwareError
from planner.compare.cluster_front import search_clusters
from planner.compare.comparison import compare_clusters, scale
from planner.compare.offers import Offer
from planner.compare.settings import Settings
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from planner.report.pages.files import page_of_file
from planner.report.pages.page import render
from planner.report.pages.plans import MOST_DRAWN, MOST_PLANS, result_page
from planner.report.search import printed
from planner.search.plan_file import to_json
from planner.search.result import SearchResult
from planner.search.search import find_plans
from tests.report import reading

JOB = Request(model="llama-3.2-1b", gpus="8xH100", gbs=64)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"
MEGABYTE = 1e6


@pytest.fixture(scope="module")
def result() -> SearchResult:
    """A small search."""
    return find_plans(JOB)


@pytest.fixture(scope="module")
def page(result: SearchResult, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of its plan file."""
    return _written(tmp_path_factory.mktemp("plans") / "my plans.json", to_json(result))


def _written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return render(page_of_file(path))


def test_the_page_loads_nothing_and_is_small(page: str) -> None:
    assert reading.loads(page) == []
    assert len(page.encode()) < 6 * MEGABYTE


def test_every_plan_is_there(page: str, result: SearchResult) -> None:
    charts, text = reading.charts(page), reading.shown(page)
    for number in range(1, len(result.plans) + 1):
        assert any(f"plan {number}: " in line for line in reading.rows(charts["front"]))
    assert f'<option value="{result.recommended}" selected>' in page
    for number, plan in printed(result):
        assert f'<option value="{number}"' in page
        assert f'data-plan="{number}"' in page
        assert "planner launch '" in text and f"my plans.json' {number} -o run-{number}" in text
        for name in ("stages", "phases", "time", "cluster"):
            assert f"{name}-{number}" in charts
        assert (f"schedule-{number}" in charts) == (plan.degrees.pp > 1)


def test_every_place_has_its_chart(page: str) -> None:
    places = re.findall(r'data-chart="([^"]+)"', page)
    assert sorted(places) == sorted(reading.charts(page))
    assert len(places) == len(set(places))


def test_candidates_are_drawn_behind_the_front(page: str) -> None:
    _, dots, *_ = reading.charts(page)["front"]["layer"]
    assert dots["mark"]["opacity"] < 0.5
    assert len(reading.rows(reading.charts(page)["front"])) > 20


def test_pages_are_equal_each_time(result: SearchResult) -> None:
    one, other = (render(result_page(result, Path("plans.json"))) for _ in range(2))
    assert one == other


def test_texts_of_a_plan_file_are_shown_as_text(result: SearchResult, tmp_path: Path) -> None:
    document = json.loads(to_json(result))
    document["job"] |= {"model": HOSTILE, "cluster": HOSTILE, "framework": HOSTILE}
    document["notes"] = [HOSTILE]
    for plan in (*document["plans"], *document["riskier"]):
        plan["recompute_flags"], plan["assumptions"] = HOSTILE, [HOSTILE]
        plan["step_time"]["family"] = HOSTILE
    page = _written(tmp_path / "<b>.json", json.dumps(document))
    assert "<script>alert" not in page and "<img src=x" not in page and "<b>" not in page
    assert "{{ 7 * 7 }}" in reading.shown(page)
    assert reading.loads(page) == []
    assert reading.charts(page)


def test_a_job_that_cannot_be_resolved_still_has_its_page(
    result: SearchResult, tmp_path: Path
) -> None:
    document = json.loads(to_json(result))
    document["request"]["model"] = str(tmp_path / "gone.json")
    text = reading.shown(_written(tmp_path / "plans.json", json.dumps(document)))
    assert "Candidates are not drawn:" in text
    assert "the job cannot be resolved here" in text


def test_the_largest_page_is_below_the_limit(tmp_path: Path) -> None:
    """As many plans as are drawn, of a long pipeline with many passes."""
    degrees = Degrees(tp=8, pp=16, vpp=2, dp=8, mbs=1, grad_acc=64)
    request = Request(model="405b", gpus="1024xH100", gbs=degrees.gbs)
    plan = evaluate(request, degrees, "full")
    small = find_plans(JOB)
    summary = small.job.model_copy(update={"used_gpus": 1024, "num_gpus": 1024})
    changes: dict[str, Any] = {
        "request": request, "job": summary, "plans": (plan,) * (MOST_DRAWN + 3),
        "shown": (), "recommended": 1, "riskier": (),
    }  # fmt: skip
    large = small.model_copy(update=changes)
    page = render(result_page(large, tmp_path / "plans.json"))
    assert len(page.encode()) < 6 * MEGABYTE
    charts = reading.charts(page)
    assert f"phases-{MOST_PLANS}" in charts and f"phases-{MOST_PLANS + 1}" not in charts
    assert f"stages-{MOST_DRAWN}" in charts and f"stages-{MOST_DRAWN + 1}" not in charts
    assert f'data-plan="{MOST_DRAWN + 3}"' in page


def test_the_front_over_clusters_names_them(tmp_path: Path) -> None:
    clusters = ("8xH100", "8xA100")
    front = search_clusters(JOB.model_copy(update={"gpus": None}), clusters)
    page = _written(tmp_path / "front.json", front.model_dump_json())
    for cluster in {point.cluster for point in front.points}:
        assert f": {cluster}, " in reading.shown(page)
    # Once to pick, once to put beside another, with none as a choice.
    assert page.count("<option ") == 2 * len(front.points) + 1


def test_comparisons_and_scaling_studies(tmp_path: Path) -> None:
    request = JOB.model_copy(update={"gpus": None})
    offers = (Offer(gpus="8xH100"), Offer(gpus="8xA100"), Offer(gpus="1xV100"))
    comparison = compare_clusters(request, offers, 10**11, Settings())
    stages: Any = {"__all__": {"run": {"plan": {"stages"}}}}
    text = comparison.model_dump_json(exclude={"rows": stages})
    page = _written(tmp_path / "compare.json", text)
    (chart,) = reading.charts(page).values()
    assert any("8xH100: " in line for line in reading.rows(chart))
    assert "Cost of the run, USD" in reading.shown(page)
    assert reading.loads(page) == []
    scaling = scale(request, "H100", (8, 16), 10**11, Settings())
    page = _written(tmp_path / "scale.json", scaling.model_dump_json(exclude={"points": stages}))
    assert len(reading.charts(page)) == 4
    assert "Strong scaling" in reading.shown(page)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not json", "not valid JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b"\xff\xfe", "is not a text file"),
        (b"[1, 2]", "no answer of the planner"),
        (b'{"a": 1}', "no answer of the planner"),
        (b'{"plans": [], "request": {}}', "not a plan file"),
        (b'{"version": 99, "plans": [], "request": {}}', "version 99"),
        (b'{"version": 3, "plans": [], "request": {}}', "field"),
        (b'{"rows": [], "basis": "spot"}', "field 'planner_version'"),
        (b'{"rows": 3, "basis": {}}', "field"),
        (b'{"points": [{"run": 3}], "knees": {}}', "field"),
        (b'{"points": [], "results": {}}', "field"),
    ],
)
def test_bad_files_are_refused_with_what_is_wrong(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises((UsageError, HardwareError), match=re.escape(said)):
        page_of_file(path)


def test_a_search_without_plans_has_no_page(result: SearchResult, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text(
        to_json(result.model_copy(update={"plans": (), "recommended": 0})), encoding="utf-8"
    )
    with pytest.raises(UsageError, match="holds no plan"):
        page_of_file(path)


@pytest.mark.parametrize(
    "change",
    [{"stages": []}, {"schedule": "none"}, {"heaviest_stage": 99}, {"step_time_s": 0.0}],
)
def test_a_plan_that_contradicts_itself_is_refused(
    result: SearchResult, tmp_path: Path, change: dict[str, Any]
) -> None:
    document = json.loads(to_json(result))
    document["plans"][0] |= change
    path = tmp_path / "plans.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"is not a schedule|does not agree with pp|greater than 0"
    ):
        page_of_file(path)
