"""One kernel per function, whatever the number types of a profile, and a cache that is shared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from functools import partial
from pathlib import Path

import pytest

from planner.cost import _machine_code, _private_folder, _shipped
from planner.cost._private_folder import (
    CACHE_VARIABLE,
    private_folder,
    read_mine,
    roots,
    why_not_private,
)
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
    inputs = as_declared(FrameworkInputs(*[1] * (len(fields) - 2)))
    assert type(inputs.schedule) is int
    assert type(inputs.issue_s) is float
    job = as_declared(JobInputs(*[2.0] * len(JobInputs.__annotations__)))  # type: ignore[arg-type]
    assert type(job.layers) is int
    assert type(job.seq) is float


def test_a_file_that_is_damaged_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_machine_code, "cache_folder", lambda: tmp_path)
    assert _machine_code.read_code("kernel") is None
    _machine_code.write_code("kernel", "symbol", b"code\0more")
    assert _machine_code.read_code("kernel") == ("symbol", b"code\0more")
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert _machine_code.read_code("kernel") is None


def test_a_full_disk_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(ENOSPC, "no space left on device")

    monkeypatch.setattr(_machine_code, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(Path, "replace", full)
    _machine_code.write_code("kernel", "symbol", b"code")
    assert (_machine_code.read_code("kernel"), [*tmp_path.iterdir()]) == (None, [])


@pytest.mark.parametrize("part", ["compiler", "processor", "sources"])
def test_another_version_has_a_folder_of_its_own(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = _machine_code.source_hash()
    _machine_code.source_hash.cache_clear()
    if part == "compiler":
        monkeypatch.setattr(_machine_code, "version", lambda _: "0.1")
    elif part == "processor":
        monkeypatch.setenv("NUMBA_CPU_NAME", "i386")
    else:
        (tmp_path / "kernel.py").write_text("another", encoding="utf-8")
        monkeypatch.setattr(_shipped, "_COST_FOLDER", tmp_path)
        _shipped.sources_hash.cache_clear()
    after = _machine_code.source_hash()
    _machine_code.source_hash.cache_clear()
    _shipped.sources_hash.cache_clear()
    assert after != before


@pytest.mark.parametrize("damage", ["two at once", "read-only", "rubbish", "a file in its place"])
def test_any_cache_folder_will_do(damage: str, tmp_path: Path) -> None:
    """A first run, two of them, and one that finds what they left, or what someone did to it, count
    alike."""
    folder = tmp_path / "cache"
    if damage == "a file in its place":
        folder.write_text("not a folder", encoding="utf-8")
    elif damage == "read-only":
        folder.mkdir(mode=0o500)
    for processes in (2 if damage == "two at once" else 1, 1):
        started = [
            subprocess.Popen(
                [sys.executable, "-c", COUNT],
                env=os.environ
                | {CACHE_VARIABLE: str(folder), "TMPDIR": str(tmp_path)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(processes)
        ]  # fmt: skip
        for process in started:
            found, error = process.communicate()
            assert (process.returncode, found.strip()) == (0, "[inf, 3.0, 4.0, 8.0]"), error
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


INSIDE = Path("kernels") / "0123"


def _linked(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    root.symlink_to(root.parent / "elsewhere")


def _linked_inside(root: Path) -> None:
    root.mkdir(mode=0o700)
    (root.parent / "elsewhere").mkdir()
    (root / "kernels").symlink_to(root.parent / "elsewhere")


def _of_another(root: Path) -> None:
    (root / INSIDE).mkdir(parents=True)
    os.chown(root / INSIDE, 65534, 65534)


def _open(level: str, mode: int, root: Path) -> None:
    (root / INSIDE).mkdir(parents=True)
    {"above": root.parent, "root": root, "inside": root / INSIDE}[level].chmod(mode)


PLANTED: dict[str, Callable[[Path], None]] = {
    "a link": _linked,
    "a link inside": _linked_inside,
    "a file": Path.touch,
    "a group's": partial(_open, "root", 0o770),
    "everybody's": partial(_open, "root", 0o777),
    "everybody's inside": partial(_open, "inside", 0o703),
    "everybody's above": partial(_open, "above", 0o777),
}
if os.getuid() == 0:
    PLANTED["another user's"] = _of_another


@pytest.mark.parametrize("kind", PLANTED)
def test_a_folder_in_which_others_can_plant_code_is_not_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as the user's cache nor as the one for temporary files; a fresh one is."""
    home, temporary = tmp_path / "home" / ".cache", tmp_path / "tmp"
    for folder in (home, temporary):
        folder.mkdir(parents=True)
    _environment(monkeypatch, HOME=str(home.parent))
    monkeypatch.setattr(_private_folder.tempfile, "tempdir", str(temporary))
    for root in roots():
        PLANTED[kind](root)
        assert why_not_private(root, INSIDE) is not None
        assert [*root.parent.glob("elsewhere/*")] == []
    monkeypatch.setattr(_private_folder, "refused", [])
    found = private_folder(INSIDE)
    assert found.stat().st_mode & 0o777 == 0o700
    assert not any(found.is_relative_to(root) for root in (home / "trainplan", roots()[-1]))
    assert _private_folder.refused


def _environment(monkeypatch: pytest.MonkeyPatch, **given: str) -> None:
    for name in (CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def test_where_caches_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG_CACHE_HOME is none; no HOME and no entry for the user leave one."""
    last = f"trainplan-{os.getuid()}"
    _environment(monkeypatch, HOME="/home/me", XDG_CACHE_HOME="/scratch/me")
    assert [str(root) for root in roots()][:-1] == ["/scratch/me/trainplan"]
    _environment(monkeypatch, HOME="/home/me", XDG_CACHE_HOME="caches")
    assert [str(root) for root in roots()][:-1] == ["/home/me/.cache/trainplan"]
    _environment(monkeypatch, HOME="home")
    assert [root.name for root in roots()] == [last]
    _environment(monkeypatch)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert [root.name for root in roots()] == [last]


def test_a_file_that_others_can_write_is_not_loaded(tmp_path: Path) -> None:
    file, link = tmp_path / "code", tmp_path / "link"
    file.write_bytes(b"code")
    file.chmod(0o600)
    assert read_mine(file) == b"code"
    link.symlink_to(file)
    assert read_mine(link) is None
    for mode in (0o660, 0o602):
        file.chmod(mode)
        assert read_mine(file) is None
    file.chmod(0o600)
    if os.getuid() == 0:
        os.chown(file, 65534, 65534)
        assert read_mine(file) is None
