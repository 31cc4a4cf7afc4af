"""`evaluate` costs one given configuration and names every rule it breaks."""

from __future__ import annotations

import pytest

from planner import Degrees, Request, evaluate
from planner.job.errors import UsageError
from planner.predict.configuration import decided_request
from planner.predict.ops.table import flop_per_token
from planner.search.search import find_plans

REQUEST = Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000)
DEGREES = Degrees(tp=8, pp=4, dp=2, zero=1, mbs=1, grad_acc=244)


def test_mfu_is_model_flop_over_peak() -> None:
    plan = evaluate(REQUEST, DEGREES)
    job = REQUEST.resolve()
    flop = flop_per_token(job.model, job.seq) * plan.gbs_tokens
    assert plan.mfu == pytest.approx(flop / (plan.step_time_s * 64 * 989.4e12), rel=1e-3)
    assert plan.hfu == pytest.approx(plan.mfu)
    assert plan.mfu_causal < plan.mfu
    assert plan.status == "evaluated"


def test_full_recompute_adds_a_forward_pass_to_hfu() -> None:
    plan = evaluate(REQUEST, DEGREES, "full")
    # All layers run forward again, the head does not: just below 4/3.
    assert 1.30 < plan.hfu / plan.mfu < 4 / 3


def test_partial_recompute_lies_between() -> None:
    none, full = evaluate(REQUEST, DEGREES), evaluate(REQUEST, DEGREES, "full")
    some = evaluate(REQUEST, DEGREES, "full", recomputed=[5, 5, 5, 5])
    assert none.step_time_s < some.step_time_s < full.step_time_s
    assert full.peak_bytes < some.peak_bytes < none.peak_bytes


def test_uneven_layers_move_time_between_stages() -> None:
    even = evaluate(REQUEST, DEGREES)
    uneven = evaluate(REQUEST, DEGREES, block_layers=[20, 21, 21, 18])
    assert [stage.layers for stage in uneven.stages] == [20, 21, 21, 18]
    assert uneven.stages[3].forward_s < even.stages[3].forward_s


def test_what_does_not_fit_is_still_costed() -> None:
    plan = evaluate(
        Request(model="70b", gpus="8xH100", gbs=8),
        Degrees(tp=8, dp=1, zero=0, mbs=1, grad_acc=8),
    )
    assert not plan.fits
    assert plan.fit_probability < 0.01


def test_evaluate_agrees_with_search() -> None:
    best = find_plans(REQUEST, top=1).plans[0]
    decided, layout = decided_request(REQUEST, best), best.layout
    again = evaluate(decided, best.degrees, best.recompute, layout.block_layers, layout.recomputed)
    assert again.step_time_s == pytest.approx(best.step_time_s, rel=1e-12)
    assert again.peak_bytes == pytest.approx(best.peak_bytes, rel=1e-12)


def test_every_broken_rule_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        evaluate(REQUEST, Degrees(tp=7, pp=4, dp=2, zero=1, mbs=1, grad_acc=244))
    assert "heads-by-tp" in str(caught.value)
    assert "world-size" in str(caught.value)


@pytest.mark.parametrize(
    ("blocks", "recomputed", "message"),
    [
        ([20, 20, 20], None, "one for each of the pp·vpp blocks"),
        (
            [20, 20, 20, 19],
            None,
            r"they add up to 79, but llama-3-70b has 80; .* \[20, 20, 20, 20\]",
        ),
        (
            [30, 0, 30, 20],
            None,
            "but the first and the last must hold at least one transformer layer",
        ),
        (None, [3, 3, 3, 4], "recomputes the same number of layers in every block"),
        (None, [3, 3, 3], "one for each of the pp stages"),
    ],
)
def test_bad_layouts_are_refused(
    blocks: list[int] | None, recomputed: list[int] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate(REQUEST, DEGREES, "full", blocks, recomputed)
