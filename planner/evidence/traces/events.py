"""Events of a Chrome trace, one after the other, whatever the file's size.

The field's readers (Holistic Trace Analysis, perfetto's trace processor) load a trace as a whole,
which takes some 20 times its compressed size. Here a file passes through a buffer, and only the
parts of an event that the terms need are kept.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hardware.errors import HardwareError
from hardware.files import demand_file, number_error
from planner.job.errors import UsageError

Event = dict[str, Any]

_CHUNK = 1 << 20
# No event is longer: a larger buffer contains something else.
_LONGEST_EVENT = 1 << 24
# Longest number or word (null, Infinity) that a buffer's end may cut.
_LONGEST_WORD = 64
# Before the events there are device properties and process groups.
_LONGEST_HEADER = 1 << 24
# A bare list; lines of many logs start with a bracket too.
_LIST = re.compile(r"\s*\[(?=\s*[{\]])")
_START = re.compile(r'"traceEvents"\s*:\s*\[')
_RANK = re.compile(r'"rank"\s*:\s*(\d{1,9})')
# Most bytes that a compressed trace may unpack to: in total, times its size, and in any case.
_MOST_UNPACKED, _MOST_RATIO, _LEAST_UNPACKED = 1 << 36, 200, 1 << 26
_BETWEEN = " \t\r\n,"
_EXPECTED = "give a trace of torch.profiler (export_chrome_trace, or tensorboard_trace_handler)"


class EventStream:
    """The events of one file; `rank` is known after the first event was read, if the file states
    it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rank: int | None = None
        self._decoder = json.JSONDecoder()

    def __iter__(self) -> Iterator[Event]:
        """Every event that is a JSON object. UsageError if the file is not a trace or ends too
        early."""
        try:
            with self._opened() as stream:
                yield from self._events(stream)
        except FileNotFoundError:
            raise UsageError(f"{self.path} does not exist") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(
                f"{self.path}: the compressed file is cut short or damaged ({error}); copy it again"
            ) from None
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.path} is not UTF-8 text ({error.reason}); {_EXPECTED}"
            ) from None
        except (UsageError, HardwareError):
            raise
        except ValueError as error:
            raise UsageError(f"{self.path}: {number_error(error)}; {_EXPECTED}") from None
        except RecursionError:
            raise UsageError(f"{self.path}: an event is nested too deep; {_EXPECTED}") from None

    def _opened(self) -> IO[str]:
        demand_file(self.path, self.path.stat())
        with self.path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        if packed:
            return io.TextIOWrapper(_Unpacked(self.path), encoding="utf-8")
        return self.path.open(encoding="utf-8")

    def _events(self, stream: IO[str]) -> Iterator[Event]:
        buffer, position = self._header(stream), 0
        while True:
            while position < len(buffer) and buffer[position] in _BETWEEN:
                position += 1
            if buffer[position : position + 1] == "]":
                return
            try:
                event, position = self._decoder.raw_decode(buffer, position)
            except json.JSONDecodeError as error:
                more = "" if _is_wrong(error, buffer) else stream.read(_CHUNK)
                if not more or len(buffer) - position > _LONGEST_EVENT:
                    raise self._broken(error, buffer) from None
                buffer, position = buffer[position:] + more, 0
                continue
            if isinstance(event, dict):
                yield event

    def _header(self, stream: IO[str]) -> str:
        """Read up to the list of events and return the rest of the buffer."""
        buffer = ""
        while len(buffer) < _LONGEST_HEADER:
            more = stream.read(_CHUNK)
            buffer += more
            if match := _LIST.match(buffer):
                return buffer[match.end() :]
            if match := _START.search(buffer):
                found = _RANK.search(buffer, 0, match.start())
                self.rank = int(found[1]) if found else None
                return buffer[match.end() :]
            if not more:
                break
        raise UsageError(f"{self.path}: no 'traceEvents': this is not a Chrome trace; {_EXPECTED}")

    def _broken(self, error: json.JSONDecodeError, buffer: str) -> UsageError:
        if not _is_wrong(error, buffer):
            return UsageError(
                f"{self.path}: ends within its events: the file is cut short; copy it again, or "
                "export it anew"
            )
        return UsageError(f"{self.path}: an event is not valid JSON ({error.msg}); {_EXPECTED}")


class _Unpacked(gzip.GzipFile):
    """A compressed file that raises UsageError if it unpacks to more than any trace would.

    Traces shrink to between a tenth and a thirtieth; zeros shrink to a thousandth.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._path = path
        packed = path.stat().st_size
        self._most = min(_MOST_UNPACKED, max(_LEAST_UNPACKED, _MOST_RATIO * packed))

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes."""
        return self._counted(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        """The next bytes, from one read of the file."""
        return self._counted(super().read1(size))

    def _counted(self, content: bytes) -> bytes:
        if self.tell() > self._most:
            raise UsageError(
                f"{self._path}: the compressed file unpacks to more than {self._most >> 20:,} MiB, "
                f"over {_MOST_RATIO} times its size or more than any trace; {_EXPECTED}"
            )
        return content


def _is_wrong(error: json.JSONDecodeError, buffer: str) -> bool:
    """Whether an error lies before the buffer's end, so that reading more of the file would not
    help."""
    return error.pos < len(buffer) - _LONGEST_WORD and not error.msg.startswith("Unterminated")
