"""A plugin of pytest's: the cost core runs as plain Python where the environment has
MUTATION_PLAIN, so that a mutant of it needs no compiler.

A test that computes for longer than TEST_SECONDS fails. If the environment names a file in
MUTATION_COVERED and a folder in MUTATION_CODE, that file tells afterwards, as JSON, of each test
that passed how long it took and which lines of the folder it ran, or its file as it was read.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from threading import Lock
from time import process_time
from typing import Any

import pytest

from planner.cost._entry import Entry

TEST_SECONDS = 20
_ONE_AT_A_TIME = Lock()
_PASSED: dict[str, dict[str, Any]] = {}
_COVERAGE: list[Any] = []


def _plain(entry: Entry, *arguments: Any) -> Any:
    """One call at a time: plain code writes back whole tables, which threads share."""
    with _ONE_AT_A_TIME:
        return entry.plain(*arguments)


if "MUTATION_PLAIN" in os.environ:
    Entry.__call__ = _plain  # type: ignore[method-assign]


class TooSlow(BaseException):
    """A test took too long; no `Exception`, of which hypothesis would look for a smaller case."""


def _too_slow(*_: object) -> None:
    raise TooSlow(f"more than {TEST_SECONDS} s of the processor")


def pytest_sessionstart() -> None:
    signal.signal(signal.SIGPROF, _too_slow)
    if "MUTATION_COVERED" in os.environ:
        from coverage import Coverage

        _COVERAGE.append(Coverage(data_file=None, source=[os.environ["MUTATION_CODE"]]))
        _COVERAGE[0].start()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    for coverage in _COVERAGE:
        coverage.switch_context(collector.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    for coverage in _COVERAGE:
        coverage.switch_context(item.nodeid)
    # Again and again: a test may catch the first, or wait for what that stopped.
    signal.setitimer(signal.ITIMER_PROF, TEST_SECONDS, 1.0)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    start_s = process_time()
    result = yield
    _PASSED[item.nodeid] = {"seconds": process_time() - start_s, "lines": []}
    return result


def pytest_sessionfinish() -> None:
    for coverage in _COVERAGE:
        coverage.stop()
        data = coverage.get_data()
        for name in data.measured_files():
            for line, contexts in data.contexts_by_lineno(name).items():
                running = set(contexts)
                for test, found in _PASSED.items():
                    if test in running or test.split("::")[0] in running:
                        found["lines"].append(f"{name}:{line}")
        Path(os.environ["MUTATION_COVERED"]).write_text(json.dumps(_PASSED), encoding="utf-8")
