"""Connections of `planner serve` that end where somebody sends or reads slowly, or has too many."""

from __future__ import annotations

import asyncio
import math

from uvicorn.protocols.http.h11_impl import H11Protocol

# A request's head must be there this soon; a page on this machine sends it at once.
HEAD_S = 10.0
# An answer that fills the buffers must be read this soon.
READ_S = 10.0
# Connections at a time. A browser opens six.
MOST_CONNECTIONS = 128


class HastyProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for the rest of a request's head, and for
    somebody to read an answer."""

    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request. One connection too many ends the one that has waited
        longest, for a request or for an answer to be read, so that slow ones keep nobody out."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [each for each in self.connections if isinstance(each, HastyProtocol)]
            min(waiting, key=HastyProtocol._ends_s).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The buffers are full: wait for the answer to be read."""
        super().pause_writing()
        self._is_read()
        self._unread = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It is being read."""
        self._is_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request that has begun; a whole one is answered."""
        super().data_received(data)
        if self._is_answering():
            self._stop()
        elif self._waiting is None:
            self._wait()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _ends_s(self) -> float:
        """When the wait is over; at once where an answer is done and nothing was asked since, never
        while one is made."""
        ends = [handle.when() for handle in (self._waiting, self._unread) if handle is not None]
        return min(ends, default=math.inf if self._is_answering() else -math.inf)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEAD_S, self._give_up)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self._is_answering():
            self.transport.abort()
