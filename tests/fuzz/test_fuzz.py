"""A thousand hostile inputs, the same in every run; `python -m tests.fuzz` looks for new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from planner.cli.program import COMMANDS
from tests.fuzz.command_line import BASES, command_of, values
from tests.fuzz.properties import PROPERTIES, search_all


@pytest.fixture(scope="module", autouse=True)
def _searched() -> None:
    search_all()


@pytest.mark.parametrize(
    ("promise", "inputs", "examples"), PROPERTIES, ids=lambda item: getattr(item, "__name__", "")
)
def test_hostile_inputs(
    promise: Callable[[Any], None], inputs: st.SearchStrategy[Any], examples: int
) -> None:
    quiet = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # to shrink a failure may take minutes
        suppress_health_check=list(HealthCheck),
    )
    quiet(given(inputs)(promise))()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_has_a_range_with_two_ends(name: str) -> None:
    assert name in BASES
    for param in command_of(name).params:
        kind = param.type
        values(param)
        if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
            assert getattr(kind, "max", None) is not None, param.name
