"""`python -m tests.documents` writes the page and its table."""

from __future__ import annotations

from tests.documents.page import PAGE, documents, page_text
from tests.documents.rows import table

PAGE.write_text(page_text(), encoding="utf-8")
table(documents()).write(PAGE.parent)
