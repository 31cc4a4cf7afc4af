"""JSON schemas of the documents that commands read and print: `planner schemas`.

`schemas.toml` lists the documents. A schema's `$id` ends with its version; fields may be added
without another version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import click
from pydantic import TypeAdapter

from hardware.files import shipped_toml
from planner.cli.declared import options_of
from planner.job.errors import unknown_name

Record = dict[str, Any]
Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Document:
    """A row of `schemas.toml`, which says what its fields are."""

    words: str
    version: int = 1
    of: tuple[str, ...] = ()
    record: str = ""
    fields: Fields = field(default_factory=dict)
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    list: bool = False
    input: bool = False

    @property
    def schema(self) -> Record:
        """The schema of one record."""
        found = self._of_record() if self.record else _of_fields(self.fields)
        found["properties"] |= {
            spelled.removeprefix("--"): {"description": option.help or ""}
            for group in self.options
            for option in options_of(group)
            if isinstance(option, click.Option)
            for spelled in option.opts
        }
        # Later versions may have more fields, and `--json` of some commands prints more than the
        # record.
        return found | {"additionalProperties": True}

    def _of_record(self) -> Record:
        module, _, name = self.record.rpartition(".")
        adapter = TypeAdapter(getattr(import_module(module), name))
        schema = adapter.json_schema(mode="validation" if self.input else "serialization")
        records = {name: schema, **schema.get("$defs", {})}
        for record, fields in self.lacks.items():
            needed = records[record]["required"]
            records[record]["required"] = [one for one in needed if one not in fields]
        return schema


DOCUMENTS: Mapping[str, Document] = {
    name: Document(**row) for name, row in shipped_toml("planner.cli", "schemas.toml").items()
}


def schema_of(name: str) -> Record:
    """The JSON schema of a document. For an unknown name, raises a UsageError that lists the known
    ones."""
    if name not in DOCUMENTS:
        raise unknown_name("document", name, DOCUMENTS, f"known are {', '.join(DOCUMENTS)}")
    document = DOCUMENTS[name]
    schema = document.schema
    if document.list:
        shared = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        schema = {"type": "array", "items": schema} | shared
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:trainplan:{name}:{document.version}",
        "description": document.words,
    }
    return head | {key: value for key, value in schema.items() if key not in head}


def _of_fields(fields: Fields) -> Record:
    types = {name: text.removesuffix("?").split("|") for name, text in fields.items()}
    return {
        "type": "object",
        "properties": {
            name: {"type": some[0] if len(some) == 1 else some} for name, some in types.items()
        },
        "required": [name for name, text in fields.items() if not text.endswith("?")],
    }
