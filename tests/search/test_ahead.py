"""Work done ahead: only questions that were started have an answer, the very one of the solver."""

from __future__ import annotations

import threading

from planner.search.ahead import Ahead, Question
from planner.search.layout_model import LayoutSolution

QUESTION: Question = (3, 1e9, (0.5, 2.0))
OTHER: Question = (3, 1e9, (0.5, 1.5))
SOLUTION = LayoutSolution("infeasible", None, 2.0, 0.0)


def test_a_question_is_answered_once() -> None:
    ahead = Ahead(2)
    ahead.start(QUESTION, lambda: SOLUTION)
    assert ahead.has(QUESTION) and not ahead.has(OTHER)
    assert ahead.answer(OTHER) is None
    assert ahead.answer(QUESTION) is SOLUTION
    assert ahead.answer(QUESTION) is None
    ahead.forget()


def test_one_worker_has_no_room_and_others_as_many_as_are_idle() -> None:
    assert Ahead(1).idle_workers == 0
    ahead, wait = Ahead(3), threading.Event()

    def solve() -> LayoutSolution:
        wait.wait(10.0)
        return SOLUTION

    ahead.start(QUESTION, solve)
    assert ahead.idle_workers == 1
    wait.set()
    assert ahead.answer(QUESTION) is SOLUTION
    assert ahead.idle_workers == 2
    ahead.forget()


def test_what_is_forgotten_has_no_answer() -> None:
    ahead = Ahead(2)
    ahead.start(QUESTION, lambda: SOLUTION)
    ahead.forget()
    assert ahead.answer(QUESTION) is None
    ahead.start(OTHER, lambda: SOLUTION)
    assert ahead.answer(OTHER) is SOLUTION
    ahead.forget()
