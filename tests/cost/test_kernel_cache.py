"""One kernel per function, whatever the number types of a profile, and a cache that is shared."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cost import _machine_code
from planner.cost.inputs import as_declared
from planner.cost.tables import FrameworkInputs, JobInputs
from planner.predict.cost_model import CostModel
from tests.cost.jobs import make_job


def types_of(inputs: tuple[object, ...]) -> list[type]:
    return [type(value) for value in inputs]


def test_inputs_have_the_same_types_for_every_framework() -> None:
    names = ("megatron-core", "torchtitan", "deepspeed", "nanotron", "hf-transformers", "textbook")
    models = [CostModel(make_job("llama-3-8b", "8xH100", name)) for name in names]
    first = models[0]
    for model in models[1:]:
        assert types_of(model.framework_inputs) == types_of(first.framework_inputs)
        assert types_of(model.gpu_inputs) == types_of(first.gpu_inputs)
        assert types_of(model.link_inputs) == types_of(first.link_inputs)


def test_profile_changed_to_whole_numbers_keeps_its_types() -> None:
    job = make_job("llama-3-8b", "8xH100", "megatron-core")
    state = job.framework.state.model_copy(update={"weight_bytes": 2, "gathered_layers": 2.0})
    changed = replace(job, framework=job.framework.model_copy(update={"state": state}))
    inputs = CostModel(changed).framework_inputs
    assert types_of(inputs) == types_of(CostModel(job).framework_inputs)
    assert inputs.weight_bytes == 2.0


def test_declared_types_of_ints_and_floats() -> None:
    fields = FrameworkInputs.__annotations__
    inputs = as_declared(FrameworkInputs(*[1] * len(fields)))
    assert type(inputs.schedule) is int
    assert type(inputs.issue_s) is float
    job = as_declared(JobInputs(*[2.0] * len(JobInputs.__annotations__)))  # type: ignore[arg-type]
    assert type(job.layers) is int
    assert type(job.seq) is float


def test_a_file_that_is_damaged_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_machine_code, "cache_folder", lambda: tmp_path)
    assert _machine_code.read("kernel") is None
    _machine_code.write("kernel", "symbol", b"code\0more")
    assert _machine_code.read("kernel") == ("symbol", b"code\0more")
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert _machine_code.read("kernel") is None


@pytest.mark.parametrize("damage", ["nothing", "read-only", "rubbish", "a file in its place"])
def test_any_cache_folder_will_do(damage: str, tmp_path: Path) -> None:
    """A first run and one that finds what it left, or what someone did to it, count alike."""
    folder = tmp_path / "cache"
    if damage == "a file in its place":
        folder.write_text("not a folder", encoding="utf-8")
    elif damage == "read-only":
        folder.mkdir(mode=0o500)
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "-c", COUNT],
            env=os.environ | {_machine_code.CACHE_VARIABLE: str(folder), "TMPDIR": str(tmp_path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (result.returncode, result.stdout.strip()) == (0, "[inf, 3.0, 4.0, 8.0]"), (
            result.stderr
        )
        if damage == "rubbish":
            kept = [*folder.rglob("least_together-*")]
            assert kept
            for path in kept:
                path.write_bytes(b"rubbish")


COUNT = """
import numpy as np
from planner.cost import compiled

reached = np.empty((3, 4))
places, seconds = np.array([1, 2, 0, 1]), np.array([1.0, 5.0, 2.0, 3.0])
options, chosen = np.array([[0, 2], [2, 4]]), np.zeros(2, np.int64)
compiled.least_together(options, places, seconds, False, reached, chosen)
print(reached[2].tolist())
"""
