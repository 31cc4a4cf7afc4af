"""The five documents that the memory model started from, held against the program row by row.

`python -m tests.documents` writes `docs/documents.md`; a test asserts that the page is what the
program says today.
"""
