"""The web server of `planner serve`. It listens on this machine only, answers only its own pages,
and writes nothing. It closes connections of clients that send or read slowly or open too many."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable

import anyio
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from constraints.errors import ConstraintError
from hardware.errors import HardwareError, first_error
from hardware.files import shipped_text
from planner.job.errors import UsageError
from planner.job.models.catalog import model_names
from planner.report.charts.drawing import script
from planner.report.pages.page import environment
from planner.report.serve.answers import (
    FRAMEWORKS,
    PRECISIONS,
    BusyError,
    Desk,
    Inputs,
    Session,
    plan_file,
    plan_in_full,
    report_file,
    wrong_field,
)

# Time limit for a request's head, s; a page on this machine sends it at once.
HEAD_S = 10.0
# Time limit for reading an answer that fills the buffers, s.
READ_S = 10.0
# Most connections at a time. A browser opens six.
MOST_CONNECTIONS = 128


class HastyProtocol(H11Protocol):
    """uvicorn's protocol with time limits. Without them, uvicorn waits for ever for the rest of a
    request's head and for a client to read an answer."""

    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first request. If there are too many connections, close the
        one whose time limit would end first, so that slow clients cannot lock others out."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [each for each in self.connections if isinstance(each, HastyProtocol)]
            min(waiting, key=HastyProtocol._ends_s).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both timers."""
        self._stop()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The buffers are full: start a time limit for the client to read the answer."""
        super().pause_writing()
        self._is_read()
        self._unread = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again: stop that time limit."""
        self._is_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Start a time limit for the rest of a request; stop it when the request is complete."""
        super().data_received(data)
        if self._is_answering():
            self._stop()
        elif self._waiting is None:
            self._wait()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _ends_s(self) -> float:
        """When the current time limit ends, s. Minus infinity if the connection is idle after an
        answer, infinity while an answer is being made."""
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


HOSTS = ("127.0.0.1", "localhost")
MOST_BODY_BYTES, MOST_BODY_S = 8192, 10.0
# Extra time after the search's time limit for one costing pass and for drawing, s.
GRACE_S = 60.0
# Most searches at a time, over all sessions.
MOST_SEARCHES = 2
_COOKIE = "planner"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_STATIC = {"/page.css": "text/css", "/page.js": "text/javascript", "/serve.js": "text/javascript"}

# A typing error gets an answer; it is not an error of the page.
_WRONG_INPUT = 200

_Handler = Callable[[Request], Awaitable[Response]]


def make_app(time_limit_s: float) -> Starlette:
    """The application. A search ends after `time_limit_s` and returns what it has found."""
    app = Starlette(
        routes=[
            Route("/", _form),
            Route("/charts.js", _charts),
            *(Route(path, _static) for path in _STATIC),
            Route("/search", _search, methods=["POST"]),
            Route("/progress", _progress),
            Route("/plans/{number}", _plan),
            Route("/plans.json", _download(plan_file, "application/json")),
            Route("/report.html", _download(report_file, "text/html")),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
            Middleware(BaseHTTPMiddleware, dispatch=_guard),
        ],
    )
    for kind in (BusyError, UsageError, HardwareError, ConstraintError, Exception):
        app.add_exception_handler(kind, _failed)
    app.state.desk = Desk(time_limit_s)
    app.state.limiter = anyio.CapacityLimiter(MOST_SEARCHES)
    app.state.longest_s = time_limit_s + GRACE_S
    return app


async def _guard(request: Request, call_next: _Handler) -> Response:
    """Refuse requests from pages of other sites; add the security headers to every answer."""
    response = await call_next(request) if _is_ours(request) else _refused("another origin", 403)
    response.headers.update(_HEADERS)
    return response


def _is_ours(request: Request) -> bool:
    """Whether a request comes from a page of this server, or from no page."""
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{request.headers['host']}":
        return False
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _failed(_request: Request, error: Exception) -> Response:
    """The error message for the user. For a crash it points to the server's terminal."""
    match error:
        case BusyError():
            return _refused("this session's last search is still going on", 409)
        case UsageError() | HardwareError() | ConstraintError():
            return _refused(_said(error), _WRONG_INPUT)
        case _:
            return _refused("the planner crashed: its terminal shows where", 500)


def _said(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        field, wrong = first_error(error)
        return f"{field or 'fields'}: {wrong}"
    return str(error)


def _refused(text: str, status: int) -> JSONResponse:
    return JSONResponse({"error": text}, status)


async def _form(request: Request) -> Response:
    page = environment().get_template("serve.html.j2")
    fields = Inputs.model_json_schema()["properties"]
    suggested = {"model": model_names()}
    taken = {"framework": FRAMEWORKS, "precision": PRECISIONS}
    text = page.render(fields=fields, suggested=suggested, taken=taken)
    response = Response(text, media_type="text/html")
    token, _ = _session(request)
    response.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
    return response


def _session(request: Request) -> tuple[str, Session]:
    desk: Desk = request.app.state.desk
    return desk.session(request.cookies.get(_COOKIE, ""))


async def _static(request: Request) -> Response:
    path = request.url.path
    text = shipped_text("planner.report.pages", f"templates{path}")
    return Response(text, media_type=_STATIC[path])


async def _charts(_request: Request) -> Response:
    return Response(script(), media_type="text/javascript")


async def _search(request: Request) -> Response:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return _refused("send the fields as application/json", 415)
    try:
        with anyio.fail_after(MOST_BODY_S):
            body = await _body(request)
    except TimeoutError:
        return _refused(f"the fields were not sent within {MOST_BODY_S:.0f} s", 408)
    if body is None:
        return _refused(f"more than {MOST_BODY_BYTES:,} bytes were sent", 413)
    try:
        return await _answered(request, Inputs.model_validate_json(body))
    except ValueError as error:  # what a person may mistype is one, in every room
        return await _mistyped(body, error)


async def _mistyped(body: bytes, error: ValueError) -> Response:
    """The error message and the name of the wrong field, which the page marks."""
    text, given = _said(error), _fields(body)
    name = await anyio.to_thread.run_sync(wrong_field, given)
    return JSONResponse({"error": text, "field": name}, _WRONG_INPUT)


def _fields(body: bytes) -> dict[str, str]:
    """The fields of a request whose values are texts; empty if the body is not a JSON object."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str)}


async def _answered(request: Request, inputs: Inputs) -> Response:
    state, (_, session) = request.app.state, _session(request)
    with anyio.move_on_after(state.longest_s):
        answer = await anyio.to_thread.run_sync(
            state.desk.answer, session, inputs, limiter=state.limiter, abandon_on_cancel=True
        )
        return JSONResponse(answer.document)
    return _refused(f"no answer within {state.longest_s:.0f} s; ask for less", 503)


async def _body(request: Request) -> bytes | None:
    """The body of a request; None if it is too large."""
    found = b""
    async for chunk in request.stream():
        found += chunk
        if len(found) > MOST_BODY_BYTES:
            return None
    return found


async def _progress(request: Request) -> Response:
    return JSONResponse({"state": _session(request)[1].state})


async def _plan(request: Request) -> Response:
    text, (_, session) = request.path_params["number"], _session(request)
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
    return JSONResponse(await anyio.to_thread.run_sync(plan_in_full, session, number))


def _download(content: Callable[[Session], str], media_type: str) -> _Handler:
    async def answered(request: Request) -> Response:
        text = await anyio.to_thread.run_sync(content, _session(request)[1])
        return Response(text, media_type=media_type, headers={"Content-Disposition": "attachment"})

    return answered
