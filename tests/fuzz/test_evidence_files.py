"""Snapshots, traces and logs made to be hostile: pickles by a grammar, numbers that nothing has,
nesting, files that unpack to anything. Each is read, or refused with 2, in bounded work."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.errors import HardwareError
from planner.cli.errors import ExitStatus, refusal
from planner.evidence.traces import events, snapshot
from planner.evidence.traces.rank import read_rank
from planner.job.errors import UsageError
from tests.evidence.traces.made_up import trace
from tests.evidence.traces.test_snapshot import snapshot as good_snapshot
from tests.fuzz.material import RUNS
from tests.fuzz.mutations import NUMBERS
from tests.fuzz.test_found import tried

_ODD = (*NUMBERS, float("nan"), float("inf"), 10**4000, "", "x" * 5_000, None, True, b"\xff")


def _grown(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Containers, in which one value may stand many times."""
    shared = children.map(lambda one: [one] * 3)
    tuples = children.map(lambda one: (one, one))
    tables = st.dictionaries(st.sampled_from(["frames", "name", "addr", "size"]), children)
    return st.one_of(shared, tuples, tables, st.lists(children, max_size=3))


VALUES = st.recursive(st.sampled_from(_ODD), _grown, max_leaves=6)
KEYS = st.sampled_from(["x", 0, 1.5, None, (1, 2)])


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, dict | list):
        return [at]
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return [at, *(place for key, one in inside for place in _places(one, (*at, key)))]


PLACES = _places(good_snapshot())[1:]


def changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a place."""
    content = copy.deepcopy(content)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return content


@given(place=st.sampled_from(PLACES), value=VALUES, key=KEYS)
@settings(max_examples=150)
def test_pickles_by_a_grammar(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Any, ...], value: Any, key: Any
) -> None:
    """Any value in any field: read, or refused by name; and never for long."""
    path = tmp_path_factory.getbasetemp() / "grammar.pickle"
    path.write_bytes(pickle.dumps(changed(good_snapshot(), place, value) | {key: value}))
    try:
        snapshot._snapshot(path)
    except (UsageError, HardwareError) as error:
        assert str(error)


def _doubled(levels: int) -> list[Any]:
    """A list of two lists, which are the same, and so on: 2**levels words as a text."""
    found: list[Any] = ["ha"]
    for _ in range(levels):
        found = [found, found]
    return found


def _hashing_bomb(levels: int) -> bytes:
    """{t: 1}, where t is a tuple of twice the same tuple, and so on: hashing it takes 2**levels
    steps, inside one instruction of the unpickler. Python itself could not write it."""
    doubled = b"".join(
        b"0h" + bytes([level]) + b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
        for level in range(levels)
    )
    return b"\x80\x02}K\x01q\x00" + doubled + b"K\x01s."


BLOCK = ("segments", 0, "blocks", 0)
FRAME = [{"filename": "a.py", "line": 1, "name": _doubled(60)}]
LAUGHS = {
    "a name": pickle.dumps(changed(good_snapshot(), (*BLOCK, "frames"), FRAME)),
    "an address": pickle.dumps(changed(good_snapshot(), (*BLOCK, "address"), _doubled(60))),
    "a key": _hashing_bomb(60),
}


@pytest.mark.parametrize("kind", LAUGHS)
def test_a_few_bytes_do_not_ask_for_work_without_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_LEAST_S", 1.0)
    path = tmp_path / "laughs.pickle"
    path.write_bytes(LAUGHS[kind])
    with pytest.raises(UsageError, match=r"is a list|processor time"):
        snapshot.read_snapshot(path)


@pytest.mark.parametrize("name", ["addr_list", "dev_list"])
def test_lists_where_numbers_belong(name: str, tmp_path: Path) -> None:
    place = {
        "addr_list": ("segments", 0, "blocks", 0, "address"), "dev_list": ("segments", 0, "device")
    }[name]  # fmt: skip
    content = pickle.dumps(changed(good_snapshot(), place, [1]))
    found = tried(tmp_path, "trace", "a.pickle", a_pickle=content)
    assert found.status == ExitStatus.WRONG_INPUT
    assert f"the field '{place[-1]}' is a list" in " ".join(found.stderr.split())


# --- traces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1e999", "9" * 5_000, "[" * 60_000, "NaN", '{"a": [1]}', "[]"])
@pytest.mark.parametrize("field", ["ts", "dur", "name", "cat", "args", "tid"])
def test_odd_values_in_traces(field: str, value: str, tmp_path: Path) -> None:
    content = trace(steps=1)
    content["traceEvents"][2][field] = "HERE"
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content).replace('"HERE"', value))
    try:
        read_rank(path, 0)
    except (UsageError, HardwareError) as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("start", ["", '{"traceEvents": [', '{"traceEvents": [{"a": "'])
def test_what_unpacks_to_anything_is_refused(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_LEAST_UNPACKED", 1 << 20)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(start.encode() + b" " * (12 << 20)))
    with pytest.raises(UsageError, match="unpacks to more than"):
        list(events.EventStream(path))


# --- logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        ':::MLLOG {"key":"global_batch_size","value":1e999}',
        ':::MLLOG {"key":"global_batch_size","value":' + "9" * 4_000 + "}",
        ':::MLLOG {"key":"global_batch_size","value":' + "9" * 5_000 + "}",
        ':::MLLOG {"key":"tracked_stats","value":{"throughput":1e999}}',
        ':::MLLOG {"key":"tracked_stats","value":{"train_step_time":' + "9" * 4_000 + "}}",
        ":::MLLOG " + "[" * 60_000,
        "iteration 1/ 9 | elapsed time per iteration (ms): 900.0 | global batch size: "
        + "9" * 4_000 + " |",
    ],
    ids=lambda line: line[:60],
)  # fmt: skip
def test_figures_that_no_run_has_are_refused_with_the_line(line: str, tmp_path: Path) -> None:
    found = tried(tmp_path, "calibrate", "--from", "a.log", "--gpus", "8xH100", "-q",
                  a_log=f"a first line\n{line}\n")  # fmt: skip
    assert (found.status, "a.log, line 2" in " ".join(found.stderr.split())) == (
        ExitStatus.WRONG_INPUT, True), found.describe()  # fmt: skip


# --- libraries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError("libllvmlite.so: cannot open shared object file"), ExitStatus.CANNOT_TELL),
        (ImportError("libstdc++.so.6: no such file", name="numpy"), ExitStatus.CANNOT_TELL),
        (ModuleNotFoundError("No module named 'ortools'", name="ortools"), ExitStatus.CANNOT_TELL),
        (ModuleNotFoundError("No module named 'planner.x'", name="planner.x"), ExitStatus.CRASH),
        (OSError(28, "No space left on device"), ExitStatus.FILE_TROUBLE),
    ],
    ids=str,
)
def test_a_broken_library_is_not_called_the_output(error: Exception, status: ExitStatus) -> None:
    found = refusal(error)
    assert found.exit_code == status
    assert ("the output" in found.message) == (status == ExitStatus.FILE_TROUBLE)
    if status == ExitStatus.CANNOT_TELL:
        assert str(error) in found.message


def test_a_run_of_exactly_a_second(tmp_path: Path) -> None:
    """Its logarithm is 0, which is a measurement like any other."""
    runs = "".join(f"{line.rpartition(',')[0]},1.0\n" for line in RUNS.splitlines()[1:])
    text = f"{RUNS.splitlines()[0]}\n{runs}".replace(",4,512,8,1024,", ",48,8192,64,1024,")
    found = tried(tmp_path, "calibrate", "--from", "a.csv", "--gpus", "8xH100", "-q", a_csv=text)
    assert found.status == ExitStatus.DONE, found.describe()
