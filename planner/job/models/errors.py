"""The one error that a wrong model name or model file raises."""

from __future__ import annotations

from pydantic import ValidationError

from planner.job.errors import UsageError


class ModelError(UsageError):
    """A model that cannot be found or read; the message says what, where and what would do."""


def validation_message(error: ValidationError, where: str) -> str:
    """Pydantic's findings on one line, led by the file they are about."""
    findings = []
    for detail in error.errors():
        field = ".".join(str(part) for part in detail["loc"])
        found = "" if isinstance(detail["input"], dict) else f", found {detail['input']!r}"
        findings.append(f"{field}: {detail['msg']}{found}" if field else detail["msg"])
    return f"{where}: " + "; ".join(findings)
