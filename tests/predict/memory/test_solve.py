"""The largest value that fits, against trying every value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import Degrees, Request
from planner.job.errors import UsageError
from planner.job.models.catalog import load_model
from planner.job.specs import LayerKind
from planner.predict.configuration import Configuration
from planner.predict.memory.account import footprint_of
from planner.predict.memory.solve import (
    EVEN_PROBABILITY,
    SAFE_PROBABILITY,
    Border,
    Solution,
    repeated_kinds,
    solve,
)
from tests.configurations import configure, memory_footprint


def _request(degrees: Degrees, **changes: object) -> Request:
    fields = {"model": "llama-3-8b", "gpus": f"{degrees.gpus}xH100", "gbs": degrees.gbs}
    return Request.model_validate(fields | changes)


def _configuration(degrees: Degrees, recompute: str = "none", **changes: object) -> Configuration:
    return configure(_request(degrees, **changes).resolve(), degrees, recompute)


def _value(border: Border) -> int:
    assert border.largest is not None
    return border.largest.value


@pytest.mark.parametrize("probability", [SAFE_PROBABILITY, EVEN_PROBABILITY])
def test_mbs_equals_brute_force(probability: float) -> None:
    degrees = Degrees(tp=2, pp=2, grad_acc=8)
    border = _border(
        solve(_configuration(degrees, "full"), "mbs", batch_is_fixed=False), probability
    )
    fitting = []
    for mbs in range(1, 40):
        tried = degrees.model_copy(update={"mbs": mbs})
        footprint = memory_footprint(_request(tried), tried, "full")
        if footprint.fit_probability >= probability:
            fitting.append(mbs)
    assert fitting == list(range(1, _value(border) + 1))
    assert border.beyond is not None
    assert border.beyond.value == _value(border) + 1


def _border(solution: Solution, probability: float) -> Border:
    borders = (solution.safe, solution.even)
    return next(border for border in borders if border.probability == probability)


def test_seq_equals_brute_force_around_the_border() -> None:
    degrees = Degrees(tp=2, cp=2, zero=1)
    solution = solve(_configuration(degrees, "full"), "seq", batch_is_fixed=False)
    assert solution.step == 4
    best = _value(solution.even)
    for seq in range(best - 8, best + 9, 4):
        footprint = memory_footprint(_request(degrees, seq=seq), degrees, "full")
        assert (footprint.fit_probability >= EVEN_PROBABILITY) == (seq <= best)


def test_layers_equal_brute_force() -> None:
    degrees = Degrees(tp=2, pp=2, grad_acc=4)
    configuration = _configuration(degrees)
    solution = solve(configuration, "layers", batch_is_fixed=False)
    fitting = []
    for layers in range(2, 80, 2):
        model = configuration.job.model.model_copy(update={"layers": layers})
        job = replace(configuration.job, model=type(model).model_validate(model.model_dump()))
        if footprint_of(configure(job, degrees)).fit_probability >= SAFE_PROBABILITY:
            fitting.append(layers)
    assert max(fitting) == _value(solution.safe)
    assert fitting == list(range(2, _value(solution.safe) + 1, 2))


def test_a_fixed_batch_leaves_its_divisors() -> None:
    degrees = Degrees(tp=4, mbs=1, grad_acc=24)
    solution = solve(_configuration(degrees, "full"), "mbs", batch_is_fixed=True)
    best, beyond = solution.even.largest, solution.even.beyond
    assert best is not None
    assert beyond is not None
    divisors = [1, 2, 3, 4, 6, 8, 12, 24]
    assert divisors.index(beyond.value) == divisors.index(best.value) + 1
    for point in (best, beyond):
        assert point.footprint.configuration.degrees.gbs == 24
    assert best.footprint.fit_probability >= EVEN_PROBABILITY > beyond.footprint.fit_probability


def test_learned_positions_end_the_sequence() -> None:
    request = Request(model="gpt2", gpus="1xH100", gbs=1, framework="nanogpt")
    solution = solve(configure(request.resolve(), Degrees()), "seq", batch_is_fixed=False)
    assert (_value(solution.safe), solution.held) == (1024, "a batch of one sequence")
    assert solution.safe.beyond is None


def test_nothing_fits() -> None:
    degrees = Degrees()
    solution = solve(_configuration(degrees, model="llama-3-70b"), "mbs", batch_is_fixed=False)
    assert solution.held == "1 micro-batch a step"
    assert solution.even.largest is None
    assert solution.even.beyond is not None
    assert solution.even.beyond.value == 1


def test_what_is_illegal_at_any_length_is_refused() -> None:
    with pytest.raises(UsageError, match="no experts"):
        configure(_request(Degrees(ep=2, dp=2)).resolve(), Degrees(ep=2, dp=2))


def test_deeper_models_repeat_the_pattern_of_their_kinds() -> None:
    gemma = load_model("gemma-2-9b").spec
    deeper = repeated_kinds(gemma, gemma.layers + 4)
    assert deeper[: gemma.layers] == gemma.layer_kinds
    assert deeper[gemma.layers :] == gemma.layer_kinds[-2:] * 2
    deepseek = load_model("deepseek-v3").spec
    deeper = repeated_kinds(deepseek, deepseek.layers + 3)
    assert deeper.count(LayerKind(ffn="dense")) == 3
    assert set(deeper[3:]) == {LayerKind(ffn="moe")}
    assert repeated_kinds(deepseek, 2) == (LayerKind(ffn="dense"),) * 2
