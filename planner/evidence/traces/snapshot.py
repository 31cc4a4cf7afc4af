"""Memory snapshots of `torch.cuda.memory._dump_snapshot`, read without running anything in them.

A snapshot is a pickle of dictionaries, lists, texts and numbers. The unpickler here builds only
these and refuses every reference to code, so a file that requests a function is an error.
"""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from hardware.errors import HardwareError
from hardware.files import demand_file, shipped_toml
from planner.job.errors import UsageError

# A snapshot with hundreds of thousands of events has a few hundred MB.
MOST_BYTES = 1 << 30
# Memory that objects take per byte of the file, and that any file may take.
_MOST_EXPANSION, _LEAST_BYTES = 64, 1 << 28
_ALLOCATED, _FREED = "alloc", "free_completed"
_CATEGORIES = shipped_toml("planner.evidence.traces", "names.toml")["categories"]
OTHER = "other"
# Errors that damaged pickles raise; MemoryError or OverflowError if a stated length is not in the
# file.
_DAMAGED = (
    EOFError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, MemoryError,
    RecursionError,
)  # fmt: skip
_SHOWN_FRAMES = 3
# More than any program's stack and names.
_MOST_FRAMES, _LONGEST_NAME = 1000, 1000


class _NoCode(pickle.Unpickler):
    """An unpickler for plain data only."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 (pickle's signature)
        """Refuse references to objects outside the file."""
        raise pickle.UnpicklingError("it refers to objects outside the file")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation: bytes, category, and the frames that made it, innermost first."""

    size_bytes: int
    category: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    """The memory of one device. `peak_bytes`: the most bytes in use at once during the recorded
    history; `categories`: those bytes by category; `made`: the allocation that reached the peak,
    None if it is older than the history. Without a history, the bytes in use at the end count.

    `reserved_bytes`, `allocated_bytes`: sums over the allocator's segments at the end.
    `fragmentation`: the share of reserved bytes that no live block uses. `retries`: how often the
    allocator gave a segment back to the driver.
    """

    path: Path
    peak_bytes: int
    categories: dict[str, int]
    made: Allocation | None
    reserved_bytes: int
    allocated_bytes: int
    fragmentation: float
    retries: int
    events: int


def read_snapshot(path: Path) -> Snapshot:
    """Read the snapshot of the device with the most memory. UsageError if it is not a snapshot,
    contains code, or takes far longer than its size suggests. A separate process with a time limit
    reads it, because a few bytes of a pickle can request any amount of work in one instruction."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    limit_s = _LEAST_S + size * _S_PER_BYTE
    command = [sys.executable, "-P", "-c", _READER, str(_ROOT), str(path), str(limit_s)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE * limit_s,
            check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise UsageError(
            f"{path}: it was not read within {limit_s:.0f} s of processor time, or not within the "
            "memory that its size lets expect; no snapshot of torch is like that"
        ) from None
    if "error" in answer:
        raise UsageError(answer["error"])
    made = answer.pop("made")
    if made is not None:
        made = Allocation(**(made | {"frames": tuple(made["frames"])}))
    return Snapshot(path, **answer, made=made)


_ROOT = Path(__file__).parents[3]
# The current folder is on no path: a file in it named like a module must not run.
_READER = """
import sys
sys.path.append(sys.argv[1])
from planner.evidence.traces.snapshot import answer
answer(*sys.argv[2:])
"""
# Processor time that a file may take, and the factor on it for elapsed time on busy processors.
_LEAST_S, _S_PER_BYTE, _PATIENCE = 5.0, 1e-6, 20.0


def answer(name: str, limit_s: str) -> None:
    """Print a snapshot, or an error message, as JSON."""
    with suppress(ImportError, ValueError):
        import resource

        seconds = math.ceil(float(limit_s))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        found = asdict(_snapshot(Path(name)))
        del found["path"]
    except (UsageError, HardwareError) as error:
        found = {"error": str(error) if name in str(error) else f"{name}: {error}"}
    sys.stdout.write(json.dumps(found))


def _snapshot(path: Path) -> Snapshot:
    content = _content(path)
    segments = _segments(path, content)
    device = _fullest(segments)
    mine = [segment for segment in segments if _whole(segment, "device", 0) == device]
    traces = content.get("device_traces")
    history: list[Any] = []
    if isinstance(traces, list) and 0 <= device < len(traces):
        history = _tables(traces[device])
    reserved = sum(_size(segment.get("total_size")) for segment in mine)
    allocated = sum(_size(segment.get("allocated_size")) for segment in mine)
    peak, categories, made = _peak(mine, history)
    return Snapshot(
        path,
        peak,
        categories,
        made,
        reserved,
        allocated,
        1.0 - allocated / reserved if reserved else 0.0,
        sum(event.get("action") == "segment_free" for event in history),
        len(history),
    )


def _content(path: Path) -> dict[str, Any]:
    try:
        found = path.stat()
        demand_file(path, found)
        if found.st_size > MOST_BYTES:
            raise UsageError(
                f"{path}: larger than {MOST_BYTES >> 30} GiB; record fewer events "
                "(_record_memory_history(max_entries=100000))"
            )
        with path.open("rb") as stream, _limited_memory(path.stat().st_size):
            content = _NoCode(stream).load()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} is not a memory snapshot: {error}; a snapshot contains only plain data, and "
            "no code of it was run"
        ) from None
    except _DAMAGED as error:
        raise UsageError(
            f"{path}: cut short, or not a pickle ({error}); write it with "
            "torch.cuda.memory._dump_snapshot"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} contains no table of segments; it is not a memory snapshot")
    return content


@contextmanager
def _limited_memory(size_bytes: int) -> Iterator[None]:
    """MemoryError if more memory is used than a pickle of this size needs: a few of its bytes may
    request any amount (as the number under which an object is stored). Without effect if the system
    has no such limit."""
    try:
        import resource

        before = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        yield
        return
    most = pages * resource.getpagesize() + _LEAST_BYTES + _MOST_EXPANSION * size_bytes
    allowed = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *allowed]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _segments(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    if not isinstance(content.get("segments"), list):
        raise UsageError(f"{path}: no 'segments'; it is not a memory snapshot")
    if not (found := _listed(content, "segments")):
        raise UsageError(f"{path}: no segment: nothing was on a GPU when it was written")
    return found


def _fullest(segments: Iterable[dict[str, Any]]) -> int:
    sizes: Counter[int] = Counter()
    for segment in segments:
        sizes[_whole(segment, "device", 0)] += _size(segment.get("total_size"))
    return sizes.most_common(1)[0][0]


def _whole(entry: dict[str, Any], name: str, missing: int | None = None) -> Any:
    """A whole number in an entry, or `missing` if there is none. UsageError names the field."""
    value = entry.get(name, missing)
    if value is None or type(value) is int:
        return missing if value is None else value
    kind = type(value).__name__
    raise UsageError(f"the field '{name}' is a {kind}, not a whole number")


def _size(value: object) -> int:
    return value if type(value) is int and 0 < value < 1 << 63 else 0


def _peak(
    segments: list[dict[str, Any]], history: list[dict[str, Any]]
) -> tuple[int, dict[str, int], Allocation | None]:
    """(bytes, bytes by category, the allocation that made the peak, None if it is older than the
    history)."""
    live = _live_at_start(segments, history)
    held: Counter[str] = Counter()
    for one in live.values():
        held[one.category] += one.size_bytes
    total = most = sum(held.values())
    at, made = dict(held), None
    for event in history:
        address = _whole(event, "addr")
        if event.get("action") == _ALLOCATED:
            one = live[address] = _allocation(event)
            total += one.size_bytes
            held[one.category] += one.size_bytes
            if total > most:
                most, at, made = total, dict(held), one
        elif event.get("action") == _FREED and (gone := live.pop(address, None)) is not None:
            total -= gone.size_bytes
            held[gone.category] -= gone.size_bytes
    return most, {name: size for name, size in at.items() if size > 0}, made


def _live_at_start(
    segments: list[dict[str, Any]], history: list[dict[str, Any]]
) -> dict[Any, Allocation]:
    """The allocations that were in use before the history began, by address. They are found by
    undoing the history, last event first, from the allocations in use at the end."""
    live = {
        _whole(block, "address"): _allocation(block)
        for segment in segments
        for block in _listed(segment, "blocks")
        if block.get("state") == "active_allocated"
    }
    for event in reversed(history):
        if event.get("action") == _ALLOCATED:
            live.pop(_whole(event, "addr"), None)
        elif event.get("action") == _FREED:
            live[_whole(event, "addr")] = _allocation(event)
    return live


def _listed(entry: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The tables in a list of an entry; empty if it has none."""
    return _tables(entry.get(name))


def _tables(found: object) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _allocation(entry: dict[str, Any]) -> Allocation:
    frames = _listed(entry, "frames")[:_MOST_FRAMES]
    names = tuple(
        f"{_word(frame, 'filename')}:{_word(frame, 'line')} {_word(frame, 'name')}"
        for frame in frames
    )
    return Allocation(_size(entry.get("size")), _category(names), names[:_SHOWN_FRAMES])


def _word(frame: dict[str, Any], name: str) -> str:
    """A text or a number in a frame. UsageError for anything else, which may be endless."""
    value = frame.get(name, "")
    if type(value) in (str, int, type(None)):
        return str(value if value is not None else "")[:_LONGEST_NAME]
    raise UsageError(f"the field '{name}' of a frame is a {type(value).__name__}, not a text")


def _category(frames: Iterable[str]) -> str:
    """The category of an allocation, from all frames of its stack."""
    text = " ".join(frames).lower()
    known = (name for name, words in _CATEGORIES if any(word in text for word in words))
    return next(known, OTHER)
