"""A YAML parser reads in the written files what the writers mean."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from planner.launch import accelerate, nanotron
from tests.launch import accelerate_cases, test_nanotron
from tests.launch.torch_plans import Case, launch_of

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Needs = Callable[[str], ModuleType]


@pytest.mark.parametrize("case", test_nanotron.MATRIX, ids=lambda item: item.name)
def test_nanotron(case: Case, needs: Needs) -> None:
    launch = launch_of(case, "nanotron", "nanotron")
    read = needs("yaml").safe_load(nanotron.files(launch)["nanotron.yaml"])
    assert read == nanotron.as_document(launch)


@pytest.mark.parametrize("case", accelerate_cases.MATRIX, ids=lambda item: item.name)
def test_accelerate(case: Case, needs: Needs) -> None:
    launch = launch_of(case, "hf-fsdp2", "accelerate")
    read = needs("yaml").safe_load(accelerate.files(launch)["accelerate.yaml"])
    assert read == accelerate.as_document(launch)
