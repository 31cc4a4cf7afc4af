"""The page of the documents is what the program says today."""

from __future__ import annotations

import re

import pytest

from tests.documents.data_tables import FOLDER
from tests.documents.page import PAGE, documents, page_text
from tests.documents.rows import figure, run, table


def test_the_page_is_what_the_program_says() -> None:
    """If this fails, read the difference: `python -m tests.documents` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page_text()
    for name, text in table(documents()).files().items():
        assert (PAGE.parent / FOLDER / name).read_text(encoding="utf-8") == text


def test_nothing_differs_without_a_reason() -> None:
    verdicts = [row.verdict for document in documents() for row in document.rows]
    assert len(verdicts) > 150
    assert not [verdict for verdict in verdicts if "**differs**" in verdict]


def test_every_command_of_the_page_runs_as_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the repository, as a reader would; searches and `validate` are run by other pages."""
    monkeypatch.chdir(PAGE.parents[1])
    data = PAGE.parent / FOLDER / "documents.csv"
    printed = re.findall(r"`planner ([^`]+)`", data.read_text(encoding="utf-8"))
    assert {words.split()[0] for words in printed} >= {"memory", "evaluate", "models", "trace"}
    for words in dict.fromkeys(printed):
        if words.split()[0] not in ("search", "validate"):
            assert run(words), words


def test_a_verdict_that_the_figures_deny_is_refused() -> None:
    with pytest.raises(ValueError, match="theirs 100 B, ours 110 B"):
        figure("too far apart", 100.0, 110.0, "-")
    with pytest.raises(ValueError, match="erratum 'wrong'"):
        figure("no erratum", 100.0, 100.0, "-", erratum="wrong")
