"""One front over several clusters: its geometry, its ranges, and that each cluster's plans are
those of a search of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import HardwareError
from planner.compare.cluster_front import (
    ClusterFront,
    ClusterPoint,
    front_points,
    search_clusters,
    shortened,
)
from planner.compare.offers import several_clusters
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.report.cluster_front import cluster_front_report
from planner.report.tables import Notes, TableData
from planner.search.front import SAVING, nondominated, without_near
from planner.search.limit_results import TIE
from planner.search.plan_file import read_plan, read_plan_file
from planner.search.search import find_plans

BASE = Request(model="llama-3.2-1b", gbs=64, limits={"tp": (1, 2), "cp": (1,), "mbs": (1,)})
CLUSTERS = ("4xH100", "8xH100", "8xA100", "1xV100")

Rows = list[tuple[int, int, int, int]]
small_tables = st.lists(st.tuples(*[st.integers(1, 5)] * 4), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def over_all() -> ClusterFront:
    return search_clusters(BASE, CLUSTERS)


def _beaten(row: tuple[float, ...], by: tuple[float, ...]) -> bool:
    return by != row and all(one <= other for one, other in zip(by, row, strict=True))


@given(small_tables)
def test_the_front_is_what_nothing_dominates(rows: Rows) -> None:
    table = np.array(rows, dtype=np.float64)
    kept = [rows[index] for index in nondominated(table).tolist()]
    assert sorted(kept) == sorted({row for row in rows if not any(_beaten(row, o) for o in rows)})
    assert kept == sorted(kept)


@given(small_tables)
def test_what_is_left_out_has_a_kept_neighbour(rows: Rows) -> None:
    table = np.array(rows, dtype=np.float64)
    order = nondominated(table)
    kept = without_near(table, order, 0.3, 0.3).tolist()
    assert kept[0] == order[0]
    for index in order.tolist():
        near = [
            kept_one
            for kept_one in kept
            if table[kept_one, 0] <= 1.3 * table[index, 0]
            and (table[index, 1:] > 0.7 * table[kept_one, 1:]).all()
        ]
        assert (index in kept) == (
            not [item for item in near if item != index] or index in near[:1]
        )
        assert near


def test_each_cluster_gives_the_plans_of_its_own_search(over_all: ClusterFront) -> None:
    found = find_plans(BASE.model_copy(update={"gpus": "8xH100"}), top=1_000)
    assert over_all.results["8xH100"].plans == found.plans
    assert over_all.proven
    reasons = {cluster.cluster: cluster.reason for cluster in over_all.clusters}
    assert "has no bf16 matrix arithmetic" in reasons["1xV100"]
    assert reasons["8xH100"] == ""


def _figures(point: ClusterPoint) -> tuple[float, ...]:
    usd = point.usd_per_billion_tokens
    assert usd is not None
    return (1.0 / point.tokens_per_s, point.peak_bytes, float(point.num_gpus), usd)


def test_no_plan_of_any_cluster_dominates_the_front(over_all: ClusterFront) -> None:
    prices = {item.cluster: item.usd_per_gpu_hour for item in over_all.clusters}
    everything = []
    for cluster, result in over_all.results.items():
        gpus, price = result.job.num_gpus, prices[cluster]
        assert price is not None
        for plan in result.plans:
            usd = gpus * price / 3600.0 / plan.tokens_per_s * 1e9
            everything.append((1.0 / plan.tokens_per_s, plan.peak_bytes, float(gpus), usd))
    shown = [_figures(point) for point in over_all.points]
    for row in shown:
        assert not any(_beaten(row, other) for other in everything)
    for row in everything:
        assert any(
            item[0] <= row[0] * (1 + TIE)
            and all(x < y / (1 - SAVING) for x, y in zip(item[1:], row[1:], strict=True))
            for item in shown
        )


def test_points_are_the_plans_they_name(over_all: ClusterFront) -> None:
    assert {item.cluster for item in over_all.points} >= {"4xH100", "8xH100"}
    for point in over_all.points:
        plan = over_all.plan_of(point)
        assert (plan.tokens_per_s, plan.peak_bytes) == (point.tokens_per_s, point.peak_bytes)
        assert plan.degrees.gpus <= point.num_gpus
    frame = over_all.to_frame()
    assert list(frame["number"]) == list(range(1, len(over_all.points) + 1))
    assert list(frame["tp"]) == [over_all.plan_of(item).degrees.tp for item in over_all.points]


def test_dollars_count_only_where_all_have_a_price(over_all: ClusterFront) -> None:
    bare = [point.model_copy(update={"usd_per_billion_tokens": None}) for point in over_all.points]
    assert len(front_points(bare, priced=False)) <= len(over_all.points)


def test_the_short_list_has_each_cluster_first(over_all: ClusterFront) -> None:
    on_front = {point.cluster for point in over_all.points}
    for most in (1, 5, 1_000):
        short = shortened(over_all.points, most)
        assert {item.cluster for item in short} == on_front
        assert len(short) == min(max(most, len(on_front)), len(over_all.points))
        rates = [item.tokens_per_s for item in short]
        assert rates == sorted(rates, reverse=True)


def test_the_report_says_dimensions_prices_and_reasons(over_all: ClusterFront) -> None:
    report = cluster_front_report(over_all, shortened(over_all.points, 6))
    tables = [block for block in report.blocks if isinstance(block, TableData)]
    assert "USD per" in tables[0].columns[2].title
    assert [row[0] for row in tables[1].rows] == list(CLUSTERS)
    notes = " ".join(
        line for block in report.blocks if isinstance(block, Notes) for line in block.lines
    )
    assert "on-demand price" in notes and "1xV100: " in notes and "80 % interval" in notes


def test_later_commands_read_a_plan_of_the_front(over_all: ClusterFront, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(over_all.model_dump_json())
    for number, point in enumerate(over_all.points, start=1):
        result, plan = read_plan(path, number)
        assert result.request.gpus == point.cluster
        assert result.plans[plan - 1] == over_all.plan_of(point)
    with pytest.raises(UsageError, match="there is no plan 0; the file contains plans 1 to"):
        read_plan(path, 0)
    with pytest.raises(UsageError, match="contains plans of several clusters"):
        read_plan_file(path)
    path.write_text(json.dumps({"points": [], "results": {}, "version": -1}))
    with pytest.raises(UsageError, match="plan-file version -1"):
        read_plan(path, 1)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("32..256xH100", (32, 64, 128, 256)),
        ("2..28xH100", (2, 4, 8, 16, 24)),
        ("33..80xH100", (64, 80)),
        ("1..3x8xH100", (1, 2, 3)),
        ("8..8xH100", (8,)),
    ],
)
def test_a_range_is_every_doubling_in_whole_nodes(text: str, counts: tuple[int, ...]) -> None:
    assert (
        tuple(int(several_cluster.split("x")[0]) for several_cluster in several_clusters((text,)))
        == counts
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("9..15xH100",), "have 8 GPUs; give 8 or more"),
        (("32..xH100",), "write a range of one type, for example 64..1024xH100"),
        (("64..32xH100",), "give the smaller number first"),
        (("0..8xH100",), "give the smaller number first"),
        (("a..b",), "write a range of one type"),
        (("8..16xH100+8xA100",), "write a range of one type"),
        (("8xH100", "8xH100"), "8xH100 is given twice"),
        (("8..16xH100", "16xH100"), "16xH100 is given twice"),
        (("8xH100", "8xH100+8xA100"), "only planner search"),
    ],
)
def test_bad_ranges_say_what_to_give(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        several_clusters(texts)


def test_unknown_gpus_are_told_before_any_search() -> None:
    with pytest.raises(HardwareError, match="Did you mean"):
        several_clusters(("8..16xH10",))
