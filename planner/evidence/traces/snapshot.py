"""Memory snapshots of `torch.cuda.memory._dump_snapshot`, read without running anything in them.

A snapshot is a pickle of dictionaries, lists, texts and numbers. The unpickler here builds those
alone and refuses every reference to code, so that a file which asks for a function is an error.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hardware.files import demand_file, shipped_toml
from planner.job.errors import UsageError

# A snapshot with hundreds of thousands of events has some hundred MB.
MOST_BYTES = 1 << 30
# Memory that objects take by the bytes that spell them, and what any file may take.
_MOST_EXPANSION, _LEAST_BYTES = 64, 1 << 28
_ALLOCATED, _FREED = "alloc", "free_completed"
_CATEGORIES = shipped_toml("planner.evidence.traces", "names.toml")["categories"]
OTHER = "other"
# What damaged pickles raise; no memory, or an overflow, where a stated length is not there.
_DAMAGED = (
    EOFError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, MemoryError,
)  # fmt: skip
_SHOWN_FRAMES = 3


class _NoCode(pickle.Unpickler):
    """An unpickler of plain data."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 (pickle's signature)
        """Refuse what lies outside the file."""
        raise pickle.UnpicklingError("it refers to objects outside the file")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation: bytes, category, and the frames that made it, innermost first."""

    size_bytes: int
    category: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    """One device's memory. `peak_bytes`: most live at once in the recorded history, at which
    `categories` held it and `made` was allocated; without history what was live at the end.

    `reserved_bytes`, `allocated_bytes`: of the segments at the end, and the share of what is
    reserved but in no live block, `fragmentation`; `retries`: times that the allocator gave
    memory back to the driver.
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
    """A snapshot of the device with the most memory. UsageError for what is none, or holds
    code."""
    content = _content(path)
    segments = _segments(path, content)
    device = _fullest(segments)
    mine = [segment for segment in segments if segment.get("device", 0) == device]
    traces = content.get("device_traces")
    history: list[Any] = []
    if isinstance(traces, list) and isinstance(device, int) and 0 <= device < len(traces):
        history = [event for event in traces[device] if isinstance(event, dict)]
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
            f"{path} is no memory snapshot: {error}; a snapshot holds plain data alone, and no "
            "code of it was run"
        ) from None
    except _DAMAGED as error:
        raise UsageError(
            f"{path}: cut short, or no pickle at all ({error}); write it with "
            "torch.cuda.memory._dump_snapshot"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no table of segments; it is no memory snapshot")
    return content


@contextmanager
def _limited_memory(size_bytes: int) -> Iterator[None]:
    """MemoryError beyond what a pickle of a size takes: a few of its bytes may ask for any amount
    (the number under which an object is kept). Without effect where the system has no such limit.
    """
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
        raise UsageError(f"{path}: no 'segments'; it is no memory snapshot")
    if not (found := _listed(content, "segments")):
        raise UsageError(f"{path}: no segment: nothing was on a GPU when it was written")
    return found


def _fullest(segments: Iterable[dict[str, Any]]) -> Any:
    sizes: Counter[Any] = Counter()
    for segment in segments:
        sizes[segment.get("device", 0)] += _size(segment.get("total_size"))
    return sizes.most_common(1)[0][0]


def _size(value: object) -> int:
    return value if type(value) is int and 0 < value < 1 << 63 else 0


def _peak(
    segments: list[dict[str, Any]], history: list[dict[str, Any]]
) -> tuple[int, dict[str, int], Allocation | None]:
    """(bytes, by category, the allocation that made the peak; None where it is older than the
    history)."""
    live = _live_at_start(segments, history)
    held: Counter[str] = Counter()
    for one in live.values():
        held[one.category] += one.size_bytes
    total = most = sum(held.values())
    at, made = dict(held), None
    for event in history:
        address = event.get("addr")
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
    """What was live before the history: from what is live at the end, walked backwards."""
    live = {
        block.get("address"): _allocation(block)
        for segment in segments
        for block in _listed(segment, "blocks")
        if block.get("state") == "active_allocated"
    }
    for event in reversed(history):
        if event.get("action") == _ALLOCATED:
            live.pop(event.get("addr"), None)
        elif event.get("action") == _FREED:
            live[event.get("addr")] = _allocation(event)
    return live


def _listed(entry: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The tables of a list that an entry may have."""
    found = entry.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _allocation(entry: dict[str, Any]) -> Allocation:
    names = tuple(
        f"{frame.get('filename', '')}:{frame.get('line', '')} {frame.get('name', '')}"
        for frame in _listed(entry, "frames")
    )
    return Allocation(_size(entry.get("size")), _category(names), names[:_SHOWN_FRAMES])


def _category(frames: Iterable[str]) -> str:
    """Whose memory it is, by all frames of the stack."""
    text = " ".join(frames).lower()
    known = (name for name, words in _CATEGORIES if any(word in text for word in words))
    return next(known, OTHER)
