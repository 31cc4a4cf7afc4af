"""The complete front at another resolution: shorter, and nothing further from it than was asked."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest

from planner.job.amounts import Resolution, parse_resolution
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.report.search import search_report
from planner.search.certificate import verify
from planner.search.exact_front import MEMORY_BYTES, TIME, at_resolution
from planner.search.limit_results import SLOWEST, Point
from planner.search.result import SearchResult
from planner.search.search import find_plans
from tests.search.test_short_front import complete, place

JOBS = {
    "70b on 64 H100": Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000),
    "mixtral": Request(model="mixtral-8x7b", gpus="16xH100", gbs=64, seq=4096),
}
RESOLUTIONS = ("0.5%,1GiB", "3%", "4GiB")
each = pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name in JOBS for text in RESOLUTIONS]
)


@cache
def coarse(name: str, text: str) -> SearchResult:
    return find_plans(JOBS[name].model_copy(update={"resolution": text}))


def stands_for(kept: Plan, other: Plan, asked: Resolution, slack: float) -> bool:
    """Whether a plan is no further from another than was asked, the solver's share apart."""
    (kept_s, held), (other_s, peak) = place(kept), place(other)
    heavier = kept_s <= other_s * (1.0 + slack) and held <= peak + asked.memory_bytes
    slower = kept_s <= other_s * (1.0 + asked.time + slack) and held <= peak
    return heavier or slower


@each
def test_a_coarser_front_is_shorter_and_stands_for_the_fine_one(name: str, text: str) -> None:
    found, fine, asked = coarse(name, text), complete(name), parse_resolution(text)
    assert found.complete
    assert found.proven
    assert len(found.plans) < len(fine.plans)
    for fast, slow in combinations(found.plans, 2):
        apart = place(slow)[0] > place(fast)[0] * (1.0 + asked.time)
        assert apart or place(fast)[1] - place(slow)[1] >= asked.memory_bytes
    # What is slower than this by the solver's share may be beyond the front's end.
    last = SLOWEST * place(fine.plans[0])[0] / (1.0 + OPTIMAL_WITHIN)
    for plan in (one for one in fine.plans if place(one)[0] <= last):
        assert any(stands_for(kept, plan, asked, OPTIMAL_WITHIN) for kept in found.plans), plan


@each
def test_the_recommended_plan_stays(name: str, text: str) -> None:
    fine, found = complete(name), coarse(name, text)
    assert found.plans[found.recommended - 1] == fine.plans[fine.recommended - 1]


@each
def test_its_certificate_holds(name: str, text: str) -> None:
    assert not verify(coarse(name, text)).problems


def test_a_certificate_knows_what_a_coarse_front_leaves_out() -> None:
    """What is complete at a resolution is not at the usual one."""
    found = coarse("70b on 64 H100", "0.5%,1GiB")
    request = found.request.model_copy(update={"resolution": "0.1%,0.1GiB"})
    problems = verify(found.model_copy(update={"request": request})).problems
    assert any("may be missing" in problem for problem in problems)


def test_a_finer_one_in_memory_has_no_fewer_plans() -> None:
    name = "mixtral"
    assert len(coarse(name, "0.02GiB").plans) >= len(complete(name).plans)


def test_the_sentence_says_the_resolution() -> None:
    printed = " ".join(str(search_report(coarse("mixtral", "0.5%,1GiB")).blocks).split())
    assert "differs by more than 0.5 % of the step time and 1.0 GiB is missing" in printed


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(row, None, *pair) for row, pair in enumerate(pairs)]  # type: ignore[arg-type]


def kept(front: list[Point], best: int, **asked: float) -> list[int]:
    return [point.row for point in at_resolution(front, Resolution(**asked), front[best])]


def test_which_points_stay() -> None:
    front = points(
        (100, 60), (100.4, 59), (101, 50), (103, 49.5), (110, 40), (110.5, 39), (140, 20)
    )
    assert kept(front, 0, time=TIME, memory_bytes=MEMORY_BYTES) == [0, 1, 2, 3, 4, 5, 6]
    assert kept(front, 0, time=0.01, memory_bytes=2) == [0, 2, 5, 6]
    assert kept(front, 0, time=0.001, memory_bytes=2) == [0, 2, 4, 6]
    assert kept(front, 1, time=0.01, memory_bytes=0.5) == [1, 2, 3, 5, 6]
    assert kept(front, 1, time=0.001, memory_bytes=0.5) == [0, 1, 2, 3, 4, 5, 6]
    assert kept(front, 2, time=0.1, memory_bytes=1) == [2, 5, 6]


def test_a_resolution_is_a_share_a_size_or_both() -> None:
    assert parse_resolution("0.5%,1GiB") == Resolution(0.005, 2**30)
    assert parse_resolution("1GiB, 0.5%") == Resolution(0.005, 2**30)
    assert parse_resolution("10%") == Resolution(0.1, MEMORY_BYTES)
    assert parse_resolution("0.01GiB") == Resolution(TIME, 0.01 * 2**30)
    assert Request(model="8b").resolution == "0.1%,0.1GiB"
    assert parse_resolution(Request(model="8b").resolution) == Resolution(TIME, MEMORY_BYTES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", r"0.1 % \(the precision of proofs\) and 10 %"),
        ("0.05%", r"0.1 % \(the precision of proofs\) and 10 %"),
        ("0GiB", "the memory must be 0.01GiB or more"),
        ("10.1%,1GiB", "and 10 %"),
        ("1MiB", "the memory must be 0.01GiB or more"),
        ("1%,2%", "one share and one size, for example 0.5%,1GiB"),
        ("1%,1GiB,1GiB", "one share and one size, for example 0.5%,1GiB"),
        ("1", "for gibibytes write 1GiB"),
        ("", "write a share"),
        ("nan", "write a share"),
        ("-1%", "write a share"),
    ],
)
def test_other_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--resolution .*{said}"):
        parse_resolution(text)


def test_no_more_than_a_gpu_has() -> None:
    request = Request(model="8b", gpus="8xH100", gbs=64, resolution="90GiB")
    with pytest.raises(UsageError, match="'90GiB': a GPU has 79"):
        request.resolve()


def test_the_usual_text_is_the_usual_resolution() -> None:
    assert parse_resolution(Request.model_fields["resolution"].default) == Resolution()
