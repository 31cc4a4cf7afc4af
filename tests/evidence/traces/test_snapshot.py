"""Memory snapshots in torch's format; none of them may run code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from planner.evidence.traces.snapshot import read_snapshot
from planner.job.errors import UsageError

MIB = 2**20


def frames(*names: str) -> list[dict[str, Any]]:
    return [{"filename": "train.py", "line": 1, "name": name} for name in names]


def event(action: str, address: int, mib: int, *names: str) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": mib * MIB,
        "stream": 0,
        "frames": frames(*names),
    }


def snapshot() -> dict[str, Any]:
    """100 MiB of weights from before the history; 60 of activations come, then 50 of backward,
    which is the peak (210); both go, 30 of optimizer state stay."""
    blocks = [
        {"address": 1, "size": 100 * MIB, "state": "active_allocated", "frames": frames("_apply")},
        {"address": 4, "size": 30 * MIB, "state": "active_allocated", "frames": frames("adam")},
        {"address": 9, "size": 126 * MIB, "state": "inactive", "frames": []},
    ]
    segment = {
        "device": 0,
        "address": 1,
        "total_size": 256 * MIB,
        "allocated_size": 130 * MIB,
        "blocks": blocks,
    }
    history = [
        event("alloc", 2, 60, "forward"),
        event("alloc", 3, 50, "run_backward"),
        event("free_requested", 2, 60, "forward"),
        event("free_completed", 2, 60, "forward"),
        event("free_completed", 3, 50, "run_backward"),
        event("alloc", 4, 30, "adam"),
        event("segment_free", 0, 256),
    ]
    return {"segments": [segment], "device_traces": [history]}


def written(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


def test_peak_by_category_and_what_made_it(tmp_path: Path) -> None:
    found = read_snapshot(written(tmp_path / "a.pickle", snapshot()))
    assert found.peak_bytes == 210 * MIB
    assert found.categories == {"weights": 100 * MIB, "activations": 60 * MIB, "backward": 50 * MIB}
    assert found.made is not None
    assert found.made.size_bytes == 50 * MIB
    assert found.made.frames == ("train.py:1 run_backward",)
    assert found.reserved_bytes == 256 * MIB
    assert found.fragmentation == pytest.approx(126 / 256)
    assert found.retries == 1


def test_without_history_what_is_live_at_the_end(tmp_path: Path) -> None:
    found = read_snapshot(written(tmp_path / "a.pickle", snapshot() | {"device_traces": [[]]}))
    assert found.peak_bytes == 130 * MIB
    assert found.made is None


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def test_a_snapshot_that_tries_to_run_code(tmp_path: Path) -> None:
    target = tmp_path / "owned"
    path = written(tmp_path / "a.pickle", {"segments": [Attack(target)]})
    with pytest.raises(UsageError, match=r"asks for (posix|nt)\.system"):
        read_snapshot(path)
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short"),
        (b"not a pickle", "not a (memory snapshot|pickle)"),
        (pickle.dumps([1, 2]), "no table of segments"),
        (pickle.dumps({"segments": []}), "nothing was on a GPU"),
        (pickle.dumps({"other": 1}), "no 'segments'"),
        (pickle.dumps(snapshot())[:200], "cut short|not a memory snapshot"),
        (b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"x", "cut short"),
    ],
)
def test_what_is_no_snapshot(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_snapshot(path)


def test_odd_values_are_no_crash(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0].append({"action": "alloc", "addr": 70, "size": 10**400})
    content["segments"][0]["blocks"].append(
        {"address": 71, "size": "y", "state": "active_allocated"}
    )
    content["device_traces"][0] += [{"action": "alloc", "addr": None, "size": float("nan")}, 7]
    assert read_snapshot(written(tmp_path / "a.pickle", content)).peak_bytes == 210 * MIB
