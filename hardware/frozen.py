"""Base classes of records that are read from files or written as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from hardware.plain_text import demand_plain


class Frozen(BaseModel):
    """An immutable record that rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Named(Frozen):
    """A record whose text fields are names. Names reach scripts, so control characters are
    rejected."""

    @model_validator(mode="after")
    def _demand_plain_names(self) -> Self:
        for field, value in self.__dict__.items():
            for text in _texts(value):
                demand_plain(text, field)
        return self


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _texts(item)
