"""Models whose layers are of unlike kinds get an answer with a stated gap, however little work a
search may do; where nothing fits, that is said before anything else is looked for."""

from __future__ import annotations

from typing import Any

import pytest

from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search import search
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits
from planner.search.limit_results import Effort, Look, Spent, looks
from planner.search.search import find_plans

# Seconds of work in which none of these is decided.
WORK_S = 0.3
# Degrees of which few layouts are even: what made searches of these models endless.
LIMITS: dict[str, Any] = {"tp": (2,), "cp": (1,), "pp": (4,), "mbs": (1,), "ep": (1, 8)}
UNLIKE = ("jamba-v0.1", "nemotron-h-8b", "nemotron-3-nano-30b", "gemma-3-27b")


@pytest.mark.parametrize("model", UNLIKE)
def test_little_work_gives_plans_with_a_gap(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_WORK_S", WORK_S)
    request = Request(model=model, gpus="64xH100", gbs_tokens=4_000_000, limits=LIMITS)
    said: list[str] = []
    result = find_plans(request, short=4, progress=lambda what, *_: said.append(what))
    assert result.plans
    assert not result.stopped
    assert result.gap is not None
    assert result.proven == (result.gap <= OPTIMAL_WITHIN)
    for plan in result.plans:
        assert plan.fits
        assert plan.gap is not None
        assert (plan.status == "optimal") == (plan.gap <= OPTIMAL_WITHIN)
    assert any("tokens/s so far" in text for text in said)


@pytest.mark.parametrize("model", ["llama-4-maverick", "nemotron-3-super-120b"])
def test_that_nothing_fits_is_said_first(model: str) -> None:
    """Before what would fit is searched, and of the same reasons."""
    request = Request(model=model, gpus="8xH100", gbs_tokens=4_000_000, limits={"tp": (8,)})
    said: list[WhyNothingFits] = []

    def verdict(why: WhyNothingFits) -> None:
        said.append(why)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_plans(request, verdict=verdict)
    assert said[0].proven
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, relaxed=False)
    assert said[0].conflict == caught.value.why.conflict


def test_the_looks_of_one_limit_leave_work_for_the_others() -> None:
    effort, spent = Effort(most_work_s=10.0), Spent()
    done = 0.0
    for _ in range(20):
        for look in looks(effort, spent):
            assert look.until_s < effort.most_work_s
            spent.work_s = look.until_s
        assert done < spent.work_s
        done = spent.work_s
    assert [look.again for look in looks(effort, spent)] == [False, False, True]


def test_jobs_share_the_work_of_a_look_alike() -> None:
    spent = Spent(work_s=1.0)
    part = Look(0.01, 4.0).part(spent, 3)
    assert part.until_s == pytest.approx(2.0)
    assert Look(0.01, 4.0).part(spent, 1).until_s == pytest.approx(4.0)
