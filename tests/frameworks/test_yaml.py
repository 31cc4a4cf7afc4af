"""A YAML parser reads in the written files what the writers mean."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from planner.launch import accelerate, nanotron
from planner.launch.nanotron_schema import nanotron_problems
from tests.launch import accelerate_cases, test_nanotron
from tests.launch.torch_plans import Case, launch_of

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Needs = Callable[[str], ModuleType]


@pytest.mark.parametrize("own", test_nanotron.MATRIX, ids=lambda own: own.name)
def test_nanotron(own: Case, needs: Needs) -> None:
    launch = launch_of(own, "nanotron", "nanotron")
    read = needs("yaml").safe_load(nanotron.files(launch)["nanotron.yaml"])
    assert read == nanotron.as_document(launch)
    assert nanotron_problems(read) == ()


@pytest.mark.parametrize("own", accelerate_cases.MATRIX, ids=lambda own: own.name)
def test_accelerate(own: Case, needs: Needs) -> None:
    launch = launch_of(own, "hf-fsdp2", "accelerate")
    read = needs("yaml").safe_load(accelerate.files(launch)["accelerate.yaml"])
    assert read == accelerate.as_document(launch)
