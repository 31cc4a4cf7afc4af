"""Memory terms against the closed forms of their papers."""

from __future__ import annotations
