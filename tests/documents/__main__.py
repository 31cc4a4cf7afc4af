"""`python -m tests.documents` writes the page."""

from __future__ import annotations

from tests.documents.page import PAGE, page_text

PAGE.write_text(page_text(), encoding="utf-8")
