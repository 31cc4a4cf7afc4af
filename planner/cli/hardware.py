"""`planner hardware`: GPUs and node shapes, with sources."""

from __future__ import annotations

from planner.cli.output import show
from planner.report.models import (
    hardware_documents,
    hardware_report,
    named_document,
    named_report,
)


def run(name: str | None, as_json: bool) -> None:
    if name is None:
        show(as_json, hardware_documents, hardware_report)
    else:
        show(as_json, lambda: named_document(name), lambda: named_report(name))
