"""What the compiler of the cost core knows of Python means compiled what it means to Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from planner.cost import _entry, _machine_code, _ordinary
from planner.cost._entry import Entry
from planner.cost._jit import jit
from planner.cost._llvm import translated
from planner.cost._types import UnplannedError
from planner.cost.tables import Array

ROW = np.dtype((np.record, [("one", "f8"), ("two", "f8"), ("three", "f8", (3,))]))
_STEPS = (1.0, 2.5, 4.0)


class Colour(IntEnum):
    RED = 3
    BLUE = 5


class Pair(NamedTuple):
    first: float
    second: float


@jit
def whole_numbers(numbers: Array, out: Array) -> None:
    a, b = int(numbers[0]), int(numbers[1])
    out[0], out[1], out[2], out[3] = a // b, a % b, a & b, a - b * 2
    out[4] = -a
    out[5] = a / b
    out[6] = max(a, b, 1)
    out[7] = float(a < b <= 9) + (a in (1, b)) + (a not in (Colour.RED, Colour.BLUE))
    out[8] = abs(a)


@jit
def floats(numbers: Array, out: Array) -> None:
    a, b = numbers[0], numbers[1]
    out[0], out[1] = a // b, a % b
    out[2] = min(a, b, 2.0)
    out[3] = math.floor(a / b) + math.ceil(a * b)
    out[4] = math.exp(-abs(a)) + math.log(abs(a) + 1.0) + math.log2(abs(b)) + math.sqrt(abs(a))
    out[5] = (1.0 + abs(a)) ** b
    out[6] = 1.0 if math.isinf(a / 0.0) and not a < b else 2.0
    out[7] = np.floor(a)


@jit
def loops(numbers: Array, out: Array) -> None:
    found = 0
    for index in range(numbers.shape[0]):
        if numbers[index] < 0.0:
            continue
        if numbers[index] > 7.0:
            break
        last = index
        found = found + 0.5  # type: ignore[assignment]
    out[0], out[1] = found, last
    for at in range(2, -1, -1):
        out[2] = 10.0 * out[2] + at
    for step in _STEPS:
        if step > 3.0:
            break
        out[3] += step
    count = 0
    while count < 5:
        count += 2
    out[4] = count
    out[5] = numbers[-1] + out[int(numbers[1]) - 2]


@jit
def indices(numbers: Array, out: Array) -> None:
    back, table = int(numbers[2]) - 5, np.zeros((2, 3))
    for down in range(-1, -3, -1):
        table[down, back] += numbers[down]
        table[back + 1, down] -= 1.0
    for at in range(2):
        for each in range(3):
            out[3 * at + each] = table[at, each]
    out[back] = _STEPS[back + 1]
    out[6] = numbers[:back].shape[0] + sum_of(numbers[:-9]) + sum_of(numbers[:back])
    out[8] = sum_of(numbers[: 9 + back])


@jit
def made(size: int, value: float) -> tuple[Array, Array]:
    first, second = np.zeros(size), np.zeros((2, size))
    dropped = np.zeros(size)
    for at in range(size):
        dropped[at] = value * at
        first[at] = second[1, at] = dropped[at]
    return first, second


@jit
def arrays(numbers: Array, out: Array) -> None:
    for turn in range(3):
        first, second = made(4, numbers[turn])
        row = second[1]
        rest = row[:3]
        out[turn] = sum_of(first) + rest[2] + rest.shape[0] + len(rest)


@jit
def sum_of(values: Array) -> float:
    total = 0.0
    for at in range(values.shape[0]):
        total += values[at]
    return total


@jit
def paired(first: float, second: float = 0.25) -> Pair:
    if first > second:
        return Pair(first, 1)
    return Pair(second, first)


@jit
def tuples(numbers: Array, out: Array) -> None:
    both = paired(numbers[0]), paired(numbers[1], 9)
    for at in range(len(both)):
        out[at] = both[at].first - both[at].second
    chosen = both[0] if numbers[0] > 100.0 else both[1]
    out[2] = sum(chosen) + both[0][1]
    out[3] = paired(*both[1]).second
    start = (1.0, 2.0, *both[1])[1:-1]
    out[4] = start[0] * len(start)


@jit
def records(rows: Any, out: Array) -> None:
    rows[1] = rows[0]
    rows[1].three[2] += rows[0].two
    wide = rows[1].three
    for at in range(len(wide)):
        out[at] = wide[at]
    rows[0].one = rows[0].two = 4


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for module in (_machine_code, _ordinary, _entry):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(_ordinary, "why", [])
    return tmp_path


@pytest.mark.parametrize("numbers", [(7.0, 2.0), (-7.0, 2.0), (7.0, -3.0), (3.0, 5.0), (0.5, 1.5)])
@pytest.mark.parametrize("function", [whole_numbers, floats, loops, indices, arrays, tuples])
def test_compiled_code_means_what_python_means(
    function: Callable[..., None], numbers: tuple[float, ...], apart: Path
) -> None:
    given = np.array([*numbers, 3.0, -1.0, 9.0, 2.0])
    if function is whole_numbers:
        given = np.ceil(given)
    found, wanted = np.zeros(9), np.zeros(9)
    entry = Entry(function)
    entry(given, found)
    entry.plain(given, wanted)
    np.testing.assert_array_equal(found, wanted)
    assert _ordinary.why == [] and [*apart.glob(f"{function.__name__}-*")]


def test_records_are_copied_and_filled(apart: Path) -> None:
    table, found = np.arange(10.0).reshape(2, 5), np.zeros(3)
    Entry(records, rows=ROW)(table, found)
    np.testing.assert_array_equal(found, [2.0, 3.0, 5.0])
    np.testing.assert_array_equal(table, [[4, 4, 2, 3, 4], [0, 1, 2, 3, 5]])
    assert apart.exists()


@jit
def with_keyword(numbers: Array) -> float:
    return made(size=3, value=numbers[0])[0][0]  # type: ignore[no-any-return]


@jit
def with_list(numbers: Array) -> float:
    return sum([each + 1.0 for each in numbers])  # type: ignore[no-any-return]


@jit
def with_stranger(numbers: Array) -> float:
    return math.sin(numbers[0])


@jit
def with_two_kinds(numbers: Array) -> float:
    found: Any = 1.0
    found = numbers
    return found[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (with_keyword, "with_keyword: `made(size=3, value=numbers[0])` is not in the language"),
        (with_list, "with_list: `[each + 1.0 for each in numbers]` is not in the language"),
        (with_stranger, "with_stranger: `math.sin(numbers[0])` is not in the language"),
        (with_two_kinds, "with_two_kinds: "),
    ],
)
def test_what_it_does_not_know_it_names(function: Callable[..., float], text: str) -> None:
    with pytest.raises(UnplannedError) as raised:
        translated("entry", function, [np.zeros(3)])
    assert str(raised.value).startswith(text)
