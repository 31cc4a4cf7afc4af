"""The page and where it lies."""

from __future__ import annotations

from pathlib import Path

from tests.documents.components import components
from tests.documents.corrected import corrected
from tests.documents.foundations import foundations
from tests.documents.guide import guide
from tests.documents.nanogpt import nanogpt
from tests.documents.rows import Document, page
from tests.documents.swiglu import swiglu

PAGE = Path(__file__).parents[2] / "docs" / "documents.md"


def page_text() -> str:
    """The page as the program would write it today."""
    return page(documents())


def documents() -> tuple[Document, ...]:
    """All five; the first is of two parts."""
    return (
        Document(
            "A",
            "Scaling Distributed Training: Foundations and First Principles",
            "Author and address unknown. Its second part, the phase-by-phase correction, follows "
            "from the row on the naive 16 bytes on.",
            (*foundations(), *corrected()),
        ),
        Document("B", "A guide to training memory", "Solenya, 2025. Address unknown.", guide()),
        Document(
            "C",
            "Transformer Memory Arithmetic: Understanding all the Bytes in nanoGPT",
            "Edward Rees. Code: https://github.com/erees1/nanoGPT, branch feature/mem_checks.",
            nanogpt(),
        ),
        Document(
            "D",
            "Problem (adamwAccounting): Resource accounting for training with AdamW "
            "(SwiGLU edition)",
            "Author and address unknown; after CS336 (Stanford 2025), assignment 1.",
            swiglu(),
        ),
        Document(
            "E",
            "Memory Calculation of LLM on GPU",
            "2025-06-02. Author and address unknown.",
            components(),
        ),
    )
