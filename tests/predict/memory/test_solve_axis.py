"""The search along an axis of values, with borders that are known beforehand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner import Degrees, Request
from planner.job.errors import UsageError
from planner.predict.memory import solve as module
from planner.predict.memory.solve import solve
from tests.configurations import configure


@pytest.fixture(autouse=True)
def by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration is a pair (value, last value that fits)."""

    def footprint(pair: tuple[int, int]) -> SimpleNamespace:
        return SimpleNamespace(fit_probability=0.6 if pair[0] <= pair[1] else 0.4)

    monkeypatch.setattr(module, "footprint_of", footprint)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 12])
def test_border_is_found_wherever_it_lies(count: int) -> None:
    values = range(10, 10 + count)
    for last in range(9, 10 + count):
        axis = module._Axis(values, 1, "", lambda value, last=last: (value, last))  # type: ignore[arg-type]
        border = axis.border(0.5)
        assert (border.largest and border.largest.value) == (last if last >= 10 else None)
        assert (border.beyond and border.beyond.value) == (last + 1 if last < 9 + count else None)
        assert axis.border(0.7).largest is None
    # Every value twice as far as the one before: not each of them is looked at.
    assert len(axis.known) <= 6


@pytest.mark.parametrize(
    ("refused", "largest", "step"),
    [
        ((), 100, 1),
        ((1,), 100, 2),
        ((2,), 100, 4),
        ((3,), 100, 2),
        ((6,), 100, 1),
        ((3, 6), 100, 4),
        ((3, 6), 6, 4),
        ((3, 6), 5, 2),
        ((1, 2, 4, 8, 16, 32, 64), 1000, 128),
        ((1, 2, 4, 8, 16, 32, 64, 128), 1000, None),
        ((1, 2, 4), 7, None),
    ],
)
def test_values_are_multiples_that_are_legal(
    refused: tuple[int, ...], largest: int, step: int | None
) -> None:
    def place(value: int) -> Any:
        if value in refused:
            raise UsageError(f"{value} is refused")
        return value

    if step is None:
        with pytest.raises(UsageError, match="1 is refused"):
            module._stepped("", largest, 1, place)
        return
    axis = module._stepped("held", largest, 1, place)
    assert (axis.step, axis.held) == (step, "held")
    assert list(axis.values) == list(range(step, largest + 1, step))


@pytest.mark.parametrize(
    ("unknown", "fixed", "degrees", "changes", "step", "held"),
    [
        ("mbs", False, {}, {}, 1, "1 micro-batch a step"),
        ("mbs", False, {"grad_acc": 2}, {}, 1, "2 micro-batches a step"),
        ("mbs", True, {"mbs": 2, "dp": 2}, {}, 0, "the global batch of 4 sequences, which mbs·dp "),
        ("seq", False, {}, {}, 1, "a batch of one sequence"),
        ("seq", False, {"tp": 4, "dp": 2}, {}, 4, "a batch of 2 sequences"),
        ("seq", False, {"cp": 2, "tp": 3}, {"model": "gpt2"}, 12, "a batch of one sequence"),
        ("seq", False, {"cp": 3}, {}, 6, "a batch of one sequence"),
        ("seq", False, {}, {"precision": "fp8"}, 8, "a batch of one sequence"),
        ("seq", False, {"cp": 2}, {"precision": "mxfp8", "gpus": "B200"}, 64, "a batch of one"),
        ("layers", False, {"pp": 2, "vpp": 2, "grad_acc": 2}, {}, 4, "everything else, the layers"),
    ],
)
def test_steps_of_an_unknown(
    monkeypatch: pytest.MonkeyPatch,
    unknown: Any,
    fixed: bool,
    degrees: dict[str, int],
    changes: dict[str, Any],
    step: int,
    held: str,
) -> None:
    """The least common multiple of what degrees and blocks of low precision demand."""
    monkeypatch.setattr(module, "footprint_of", lambda _: SimpleNamespace(fit_probability=0.0))
    wanted = Degrees(**degrees)
    words = {"model": "llama-3-8b", "seq": 6144} | changes
    words["gpus"] = f"{wanted.gpus}x{changes.get('gpus', 'H100')}"
    if words["model"] == "gpt2":
        words["seq"] = 1020
    configuration = configure(Request(**words, gbs=wanted.gbs).resolve(), wanted)
    solution = solve(configuration, unknown, batch_is_fixed=fixed)
    assert (solution.unknown, solution.step) == (unknown, step)
    assert solution.held.startswith(held)
    assert solution.safe.largest is solution.even.largest is None
    assert solution.even.beyond is not None
    assert solution.even.beyond.value == max(step, 1)
