"""Models of the reference counts, by the names of the counts and of the catalogue."""

from __future__ import annotations

from planner.evidence.fit.truth import reference_model

__all__ = ["reference_model"]
