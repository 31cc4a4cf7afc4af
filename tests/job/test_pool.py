"""What `--gpus 32xH100+32xA100` may say."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.job.pool import OneType, SeveralSizes, SeveralTypes, parse_pool, read_gpus


def test_parts_and_their_worlds() -> None:
    pool = parse_pool("32xH100 + 16xA100")
    assert [(part.gpu.name, part.num_gpus) for part in pool.parts] == [
        ("H100-SXM5-80GB", 32),
        ("A100-SXM4-80GB", 16),
    ]
    assert pool.num_gpus == 48
    assert [world.num_gpus for world in pool.worlds()] == [48, 48]


def test_a_domain_ends_with_the_part() -> None:
    pool = parse_pool("36xGB200+32xH100")
    assert [world.scale_up_domain_gpus for world in pool.worlds()] == [36, 8]


def places(text: str, pp: int) -> list[tuple[int, ...]]:
    pool = parse_pool(text)
    return [pool.places[row] for row in pool.places_of(pp)]


def test_every_order_of_the_parts() -> None:
    assert places("32xH100+16xA100", 3) == [(0, 0, 1), (1, 0, 0)]
    assert places("32xH100+16xA100", 2) == []
    assert len(places("8xH100+8xA100+8xH200", 3)) == 6


def test_parts_that_are_alike_change_places_without_effect() -> None:
    assert places("16xH100+16xH100", 2) == [(0, 1)]
    assert places("8xH100+8xH100+8xA100", 3) == [(0, 1, 2), (0, 2, 1), (2, 0, 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("32xH100+", "both sides"),
        ("+32xH100", "both sides"),
        ("8xH100+8xA100+8xH200+8xB200+8xV100", "at most 4"),
        ("32xH100+16xA101", "A101"),
        ("32xH100+32xMI300X", "different vendors"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises((UsageError, ValueError), match=said):
        parse_pool(text)


def test_only_a_plus_makes_a_pool() -> None:
    assert read_gpus("32xH100+32xA100") == SeveralTypes("32xH100+32xA100")
    assert read_gpus("64xH100") == OneType("64xH100")
    assert read_gpus("8..64xH100") == SeveralSizes("8..64xH100", 8, 64, "H100")
