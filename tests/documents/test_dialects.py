"""The page of the dialects is what the tables say."""

from __future__ import annotations

from tests.documents.data_tables import FOLDER
from tests.documents.dialects import PAGE, page_text, tables


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text()
    for name, text in (file for table in tables() for file in table.files().items()):
        assert (PAGE.parent / FOLDER / name).read_text(encoding="utf-8") == text
