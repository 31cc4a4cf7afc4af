"""nanotron reads what the writer writes: PLANNER_NANOTRON names its checkout's `src`, and dacite,
datasets and transformers are installed. Kernels that its modules import are stood in for."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from planner.launch.dialects.nanotron import writer as nanotron
from planner.launch.dialects.nanotron.reader import _REQUIRED
from tests.launch.nanotron_cases import BASE, MATRIX
from tests.launch.torch_plans import Case, launch_of

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]


class _Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        stands_in = name.split(".", maxsplit=1)[0] in (
            "flash_attn",
            "triton",
            "grouped_gemm",
            "datatrove",
        )
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if stands_in else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return MagicMock(__path__=[], __name__=spec.name, __spec__=spec, __version__="2.8.0")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


@pytest.fixture(scope="module")
def load(needs: Callable[[str], ModuleType]) -> Callable[[Path], Any]:
    if not os.environ.get("PLANNER_NANOTRON"):
        pytest.fail("PLANNER_NANOTRON must name the src folder of a nanotron checkout")
    sys.path.insert(0, os.environ["PLANNER_NANOTRON"])
    sys.meta_path.append(_Kernels())
    loader: Callable[[Path], Any] = needs("nanotron.config").get_config_from_file
    return loader


def written(case: Case, tmp_path: Path) -> Path:
    path = tmp_path / "nanotron.yaml"
    path.write_text(nanotron.files(launch_of(case, "nanotron", "nanotron"))["nanotron.yaml"])
    return path


@pytest.mark.parametrize("case", MATRIX, ids=lambda item: item.name)
def test_nanotron_loads_it(case: Case, load: Callable[[Path], Any], tmp_path: Path) -> None:
    degrees = launch_of(case, "nanotron", "nanotron").plan.degrees
    config = load(written(case, tmp_path))
    mesh = config.parallelism
    assert (mesh.dp, mesh.tp, mesh.pp) == (degrees.dp, degrees.tp, degrees.pp)
    assert (config.global_batch_size, config.optimizer.zero_stage) == (degrees.gbs, degrees.zero)


@pytest.mark.parametrize("key", [f"{t}.{key}" for t, keys in _REQUIRED.items() for key in keys])
def test_nanotron_demands_what_check_says(
    key: str, load: Callable[[Path], Any], tmp_path: Path
) -> None:
    path, (table, _, name) = written(BASE, tmp_path), key.partition(".")
    content = yaml.safe_load(path.read_text())
    del content[table][name]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(Exception, match=name):
        load(path)
