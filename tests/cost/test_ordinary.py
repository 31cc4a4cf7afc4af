"""Where our compiler cannot compile the core, numba does, and a line says so."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from planner.cost import (
    _entry,
    _llvm,
    _machine_code,
    _ordinary,
    _shipped,
    build_core,
    stage_sums,
)
from planner.cost._entry import Entry
from planner.cost.tables import Array


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of its own, and nothing known of other ways to compile."""
    for module in (_machine_code, _ordinary, _entry):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(_ordinary, "why", [])
    return tmp_path


def least_seconds(entry: Entry, *, plain: bool = False) -> tuple[Array, Array]:
    """What two stages take together that choose among three options each."""
    options = np.array([[0, 3], [3, 6]])
    places, seconds = np.array([0, 1, 2, 0, 1, 2]), np.array([5.0, 3.0, 2.5, 4.0, 1.0, np.inf])
    totals, chosen = np.zeros((3, 4)), np.zeros(2, dtype=np.int64)
    call = entry.plain if plain else entry
    call(options, places, seconds, False, totals, chosen)
    return totals, chosen


def unplanned(*_: object) -> None:
    raise AttributeError("module 'llvmlite.binding' has no attribute 'create_pass_builder'")


def test_another_llvm_is_no_end(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_llvm, "_target_machine", unplanned)
    entry, whole, numbers = Entry(stage_sums.least_together), np.zeros(1, np.int64), np.zeros(1)
    assert _ordinary.note() == "" and entry.way() == "translated"
    # Compiled beforehand, as `planner warmup` does. numba's own cache is below ours: an edit starts
    # a fresh one.
    entry.compile_for(np.zeros((1, 2), np.int64), whole, numbers, False, np.zeros((1, 1)), whole)
    assert list((apart / _ordinary.ORDINARY).rglob("*.nbi"))
    assert entry.is_on_disk() and entry.way() == "numba"
    # Another process, which has not tried yet, sees it in the cache.
    with monkeypatch.context() as another:
        another.setattr(_ordinary, "why", [])
        assert entry.way() == "numba"
    for mine, plain in zip(least_seconds(entry), least_seconds(entry, plain=True), strict=True):
        np.testing.assert_array_equal(mine, plain)
    for words in ("no attribute 'create_pass_builder'", "figures are the same"):
        assert words in _ordinary.note()


def test_it_can_be_asked_for(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_ordinary.ASKED, _ordinary.ORDINARY)
    assert _ordinary.is_asked()
    assert _ordinary.ASKED in _ordinary.note()
    np.testing.assert_array_equal(
        *[
            least_seconds(Entry(stage_sums.least_together), plain=plain)[0]
            for plain in (False, True)
        ]
    )
    assert apart.exists()


def wrong(options: Array) -> float:
    """What no compiler can compile."""
    return options.no_such_thing  # type: ignore[attr-defined, no-any-return]


def test_a_mistake_in_the_core_is_still_one(apart: Path) -> None:
    """What numba cannot compile either is an error, not an answer."""
    import numba.core.errors

    with pytest.raises(numba.core.errors.TypingError):
        Entry(wrong)(np.zeros(3))
    assert _ordinary.why[0].startswith("wrong: `options.no_such_thing` is not in the language")
    assert apart.exists()


def test_a_mistake_in_the_compiler_is_one_too(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is known to be beyond it goes to numba."""
    monkeypatch.setattr(_llvm, "translated", unplanned)
    with pytest.raises(AttributeError):
        least_seconds(Entry(stage_sums.least_together))
    assert (_ordinary.why, apart.exists()) == ([], True)


def test_a_library_is_used_where_it_is_of_these_sources(
    apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `build_core` does, for one entry; nothing is compiled when it is called then."""
    monkeypatch.setattr(_shipped, "FOLDER", apart / "machine")
    monkeypatch.setenv(build_core.LINKABLE, "1")
    monkeypatch.setenv("NUMBA_CPU_NAME", build_core.BASELINE[platform.machine()][0])
    entry = Entry(stage_sums.least_together)
    kept = least_seconds(entry)
    (path,) = apart.glob("least_together-*")
    code = build_core._read(path)
    path.unlink()
    if shutil.which("cc") is None:
        with pytest.raises(FileNotFoundError):
            build_core._link(apart, {path.name: code})
        return
    build_core._link(apart, {path.name: code})
    _forget()
    monkeypatch.setattr(_llvm, "machine_code", unplanned)
    shipped = Entry(stage_sums.least_together)
    assert shipped.is_on_disk() and shipped.way() == "shipped"
    np.testing.assert_array_equal(least_seconds(shipped)[0], kept[0])
    assert _ordinary.why == []
    for source in _shipped.sources():
        changed = apart / source.name
        changed.write_bytes(source.read_bytes() + b"\n")
        others = [changed if each == source else each for each in _shipped.sources()]
        with monkeypatch.context() as patched:
            patched.setattr(_shipped, "sources", lambda others=others: others)
            _forget()
            assert _shipped.address(path.name) is None, source
    _forget()
    assert _shipped.address(path.name) is not None
    _forget()


def _forget() -> None:
    """The sources and the library are looked at again."""
    for known in (_shipped.symbols, _shipped._library, _shipped.sources_hash):
        known.cache_clear()
