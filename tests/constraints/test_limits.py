"""Reading the user's limits, and what they allow."""

from __future__ import annotations

import numpy as np
import pytest

from constraints.errors import ConstraintError
from constraints.rule import Layout
from constraints.user import parse_degree_limit


@pytest.mark.parametrize(
    ("text", "allowed", "named"),
    [
        ("4", [4], (4,)),
        ("1,2,4,8", [1, 2, 4, 8], (1, 2, 4, 8)),
        ("..3", [1, 2, 3], (3,)),
        ("7..", [7, 8, 9], (7,)),
        ("2..4", [2, 3, 4], (2, 4)),
        (" 1 , 4 .. 5, 8..", [1, 4, 5, 8, 9], (1, 4, 5, 8)),
        ("2,2", [2], (2,)),
    ],
)
def test_limits_read(text: str, allowed: list[int], named: tuple[int, ...]) -> None:
    limit = parse_degree_limit(text, "tp")
    candidates = np.arange(10)
    assert candidates[limit.allows(candidates)].tolist() == allowed
    assert [value for value in range(10) if limit.allows_value(value)] == allowed
    assert limit.named == named


def test_zero_may_be_zero() -> None:
    assert parse_degree_limit("..1", "zero").allows_value(0)
    assert not parse_degree_limit("..1", "tp").allows_value(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read ''"),
        ("..", r"cannot read '\.\.'"),
        ("two", "cannot read 'two'; write a number, a list 1,2,4,8 or a range"),
        ("4 8", "cannot read '4 8'"),
        ("-2", "cannot read '-2'"),
        ("1.5", "cannot read '1.5'"),
        ("1,,2", "cannot read ''"),
        ("0", "tp must be at least 1"),
        ("8..2", r"8\.\.2 is empty; did you mean 2\.\.8\?"),
    ],
)
def test_limits_refused(text: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        parse_degree_limit(text, "tp")
    assert str(caught.value).startswith(f"tp={text!r}")


@pytest.mark.parametrize(
    ("blocks", "recomputed", "message"),
    [((1, 2, 3), (0, 0), "makes 4 blocks"), ((1, 1, 1, 1), (0,), "each of 2 stages")],
)
def test_layout_refuses_wrong_lengths(
    blocks: tuple[int, ...], recomputed: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConstraintError, match=message):
        Layout(pp=2, vpp=2, block_layers=blocks, recomputed={"full": recomputed})
