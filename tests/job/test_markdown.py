"""Tables in Markdown."""

from __future__ import annotations

from planner.job.written import markdown_table


def test_cells_cannot_break_the_table() -> None:
    text = markdown_table(("a", "b"), [("x|y", "1\n2"), ("", "3")], right=(1,))
    assert text.split("\n") == ["| a | b |", "|---|--:|", "| x\\|y | 1 2 |", "|  | 3 |"]
