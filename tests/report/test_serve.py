"""`planner serve` without a browser: what it takes, what it refuses, what it remembers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from socket import SO_RCVBUF, SOL_SOCKET, create_connection, socket
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from planner.cli import pages as serve_command
from planner.report.serve import answers, app
from planner.report.serve.answers import MOST_GPUS, BusyError, Desk, Inputs, Remembered, Session
from planner.report.serve.app import MOST_BODY_BYTES, make_app
from planner.search.plan_file import to_json
from planner.search.result import SearchResult

HOME = "http://127.0.0.1:8000"
JOB = {"model": "llama-3.2-1b", "gpus": "8xH100", "batch": "512K"}


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A browser's session."""
    with TestClient(make_app(300.0), base_url=HOME, raise_server_exceptions=False) as client:
        client.get("/")
        yield client


def _search(client: TestClient, **fields: str) -> dict[str, Any]:
    answer = client.post("/search", json=JOB | fields, headers={"Origin": HOME})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_a_search_is_answered_and_its_plans_can_be_taken_away(client: TestClient) -> None:
    found = _search(client)
    assert "proven" in found["state"] and found["has_plans"]
    assert "front" in found["data"]["charts"] and "llama-3.2-1b" in found["html"]
    result = SearchResult.model_validate(client.get("/plans.json").json())
    assert result.job.num_gpus == 8
    assert "default-src 'none'" in client.get("/report.html").text
    plan = client.get(f"/plans/{len(result.plans)}").json()
    assert f"stages-{len(result.plans)}" in plan["data"]["charts"]


def test_an_answer_is_remembered(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _search(client)
    monkeypatch.setattr(answers, "find_plans", None)
    assert _search(client)["state"] == first["state"]


def test_the_front_before_is_drawn(client: TestClient) -> None:
    assert "the front before" not in _search(client)["html"]
    assert "the front before" in _search(client, gpus="16xH100")["html"]


def test_what_fits_nowhere_is_an_answer(client: TestClient) -> None:
    found = _search(client, model="8b", conditions="dp == 8; zero == 0; mbs == 1")
    assert not found["has_plans"] and "No configuration fits" in found["html"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "/etc/passwd"}, "unknown model '/etc/passwd'"),
        ({"model": "pyproject.toml"}, "unknown model"),
        ({"gpus": f"{MOST_GPUS * 2}xH100"}, "16,384 at most"),
        ({"gpus": "8xH100+8xA100"}, "several types"),
        ({"gpus": "lots"}, "lots"),
        ({"gpus": "8x/etc/a.toml"}, "must lie where"),
        ({"batch": "many"}, "not a number of tokens"),
        ({"batch": "nan"}, "not a number of tokens"),
        ({"framework": "nanogpt"}, "unknown framework"),
        ({"precision": "int1"}, "int1"),
        ({"sure": "nan%"}, "fit_probability"),
        ({"sure": "surely"}, "write a probability"),
        ({"reserve": "-1"}, "hbm-reserve"),
        ({"conditions": "import os"}, "cannot read this"),
        ({"conditions": "x" * 401}, "at most 400"),
        ({"seq": "0"}, "whole number"),
        ({"unknown": "1"}, "unknown"),
    ],
)
def test_wrong_input_is_said(client: TestClient, fields: dict[str, str], said: str) -> None:
    found = _search(client, **fields)
    assert said in found["error"] and len(found["error"]) < 1200
    (name,) = fields
    assert found["field"] == ("" if name == "unknown" else name)


def test_numbers_instead_of_texts_are_refused(client: TestClient) -> None:
    answer = client.post("/search", content=json.dumps({"gpus": 8}), headers={
        "Content-Type": "application/json"})  # fmt: skip
    assert "gpus" in answer.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "planner.example"}, 400),
        ({"Host": "127.0.0.1.example"}, 400),
        ({"Origin": "http://planner.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_other_sites_are_refused(client: TestClient, headers: dict[str, str], status: int) -> None:
    given = {"Content-Type": "application/json"} | headers
    answer = client.post("/search", content=json.dumps(JOB), headers=given)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_pages_may_load_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "samesite=strict" in client.get("/").headers["set-cookie"].lower()
    for path in ("/page.js", "/serve.js", "/page.css", "/charts.js"):
        assert client.get(path).status_code == 200
    assert client.get("/docs").status_code == 404
    assert client.get("/search").status_code == 405


def test_too_much_is_refused(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/search", content=b" " * (MOST_BODY_BYTES + 1), headers=headers)
    assert answer.status_code == 413


def test_a_session_without_plans_has_none_to_take_away(client: TestClient) -> None:
    assert "search first" in client.get("/plans.json").json()["error"]
    assert "search first" in client.get("/plans/1").json()["error"]


def test_a_crash_is_called_one(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(answers, "find_plans", broken)
    answer = client.post("/search", json=JOB)
    assert answer.status_code == 500 and "secret" not in answer.text
    assert "the planner crashed" in answer.json()["error"]


def test_one_search_at_a_time_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    started, released = Event(), Event()

    def slow(*_: Any, **__: Any) -> None:
        started.set()
        released.wait(30)
        raise RuntimeError

    monkeypatch.setattr(answers, "find_plans", slow)
    desk, session = Desk(1.0), Session()

    def first() -> None:
        with pytest.raises(RuntimeError):
            desk.answer(session, Inputs())

    thread = Thread(target=first)
    thread.start()
    assert started.wait(30)
    with pytest.raises(BusyError):
        desk.answer(session, Inputs(gpus="16xH100"))
    released.set()
    thread.join()
    assert session.lock.acquire(blocking=False)


def test_sessions_cannot_be_guessed_nor_pile_up() -> None:
    desk = Desk(1.0)
    token, session = desk.session("mine")
    assert token != "mine" and len(token) >= 32
    assert desk.session(token) == (token, session)
    few: Remembered[int, int] = Remembered(2)
    for number in range(4):
        few.put(number, number)
    assert [few.get(number) for number in range(4)] == [None, None, 2, 3]


def test_the_plan_file_is_the_one_of_the_command_line(client: TestClient) -> None:
    _search(client)
    text = client.get("/plans.json").text
    assert to_json(SearchResult.model_validate_json(text)) == text


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The server as the command starts it, which waits half a second for slow senders."""
    monkeypatch.setattr(app, "HEAD_S", 0.5)
    monkeypatch.setattr(app, "READ_S", 0.5)
    monkeypatch.setattr(app, "MOST_CONNECTIONS", 16)
    monkeypatch.setattr(app, "MOST_BODY_S", 0.5)
    servers: list[uvicorn.Server] = []
    begun, real = Event(), uvicorn.Server.startup

    async def startup(self: uvicorn.Server, sockets: list[socket] | None = None) -> None:
        await real(self, sockets)
        servers.append(self)
        begun.set()

    monkeypatch.setattr(uvicorn.Server, "startup", startup)
    listening = serve_command._listening(0)
    thread = Thread(target=serve_command._serve, args=(listening, 1.0))
    number = listening.getsockname()[1]
    thread.start()
    assert begun.wait(30)
    yield number
    servers[0].should_exit = True
    thread.join(30)
    assert not thread.is_alive()


HALF_HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow"
WHOLE = b"GET /page.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", HALF_HEAD, WHOLE + HALF_HEAD])
def test_half_a_request_ends(port: int, sent: bytes) -> None:
    """Nothing, half a head, and half a second one behind a whole request."""
    with closing(create_connection(("127.0.0.1", port), timeout=30)) as slow:
        slow.sendall(sent)
        while True:
            try:
                if not slow.recv(65_536):
                    break
            except ConnectionResetError:
                break


def test_half_a_body_ends(port: int) -> None:
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as slow:
        slow.putrequest("POST", "/search")
        slow.putheader("Content-Type", "application/json")
        slow.putheader("Content-Length", "400")
        slow.endheaders(b"{")
        assert slow.getresponse().status == 408


def test_answers_that_nobody_reads_end(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep nobody out meanwhile, and their connections are closed."""
    monkeypatch.setattr(app, "MOST_CONNECTIONS", 4)
    lazy = [socket() for _ in range(6)]
    for each in lazy:
        each.setsockopt(SOL_SOCKET, SO_RCVBUF, 2048)
        each.settimeout(30)
        each.connect(("127.0.0.1", port))
        each.sendall(WHOLE.replace(b"page.css", b"charts.js") * 8)
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as page:
        page.request("GET", "/charts.js")
        answer = page.getresponse()
        assert answer.status == 200
        size = len(answer.read())
    sleep(1.5)
    for each in lazy:
        with closing(each):
            assert _received(each) < 8 * size


def _received(connection: socket) -> int:
    """Bytes until the connection ends."""
    count = 0
    with suppress(ConnectionResetError):
        while got := len(connection.recv(1 << 20)):
            count += got
    return count


# What stands in the head of a request -> its status.
HEADS = {
    b"GET / HTTP/1.1": 400,
    b"GET / HTTP/1.1\r\nHost: evil.example": 400,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example": 400,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:80@evil.example": 400,
    b"GET / HTTP/1.0": 400,
    b"PUT / HTTP/1.1\r\nHost: 127.0.0.1": 405,
    b"TRACE / HTTP/1.1\r\nHost: 127.0.0.1": 405,
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1": 404,
    b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: 127.0.0.1": 404,
    b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1": 404,
    b"GET /plans/" + b"9" * 5000 + b" HTTP/1.1\r\nHost: 127.0.0.1": 200,
    b"GET /plans/-1 HTTP/1.1\r\nHost: 127.0.0.1": 200,
    b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -2": 400,
    b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 9": 400,
    b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
    b"Content-Type: application/json\r\n\r\n" + b" " * 9000: 413,
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head[:50])
def test_odd_requests_are_answered(port: int, head: bytes) -> None:
    """DNS that is rebound, paths out of the folder, methods and lengths that nothing has."""
    with closing(create_connection(("127.0.0.1", port), timeout=30)) as odd:
        odd.sendall(head + b"\r\nConnection: close\r\n\r\n")
        assert odd.recv(12) == b"HTTP/1.1 %d" % HEADS[head]


def test_requests_in_one_breath_are_answered_in_turn(port: int) -> None:
    with closing(create_connection(("127.0.0.1", port), timeout=30)) as pipe:
        last = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        pipe.sendall(WHOLE * 20 + last)
        answers = b"".join(iter(lambda: pipe.recv(1 << 16), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == 21


def test_many_slow_connections_keep_nobody_out(port: int) -> None:
    slow = [create_connection(("127.0.0.1", port), timeout=30) for _ in range(40)]
    for each in slow:
        each.send(HALF_HEAD)
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as page:
        page.request("GET", "/page.css")
        assert page.getresponse().status == 200
    for each in slow:
        each.close()
