"""The base of all records that are read from files or written as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record that stays as it is made, and takes no field that it does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid")
