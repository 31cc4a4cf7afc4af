"""Translates a changed configuration into edits of the file that it was read from.

Settings that the file cannot express give no edit. The caller reads the edited file again and
notices that it differs from the changed configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.launch.options import GONE, DialectOption, run_options
from planner.launch.read.found import Edit, Found
from planner.launch.registry import Format, formats, function
from planner.predict.evaluate import Proposal


class NotInFileError(Exception):
    """Raised for a change that the file's format cannot express. The message says where the user
    can make it."""


def edits_for(found: Found, before: Proposal, after: Proposal) -> tuple[Edit, ...]:
    """Edits that turn the file's configuration `before` into `after`. NotInFileError if files of
    this format cannot be edited."""
    written = formats().get(found.format)
    if written is None:
        raise NotInFileError("a plan file cannot be edited; search again: planner search")
    if not written.is_written:
        raise NotInFileError("files of this kind cannot be edited automatically: change it by hand")
    if written.edits:
        return tuple(function(written.dialect, written.edits)(found, before, after))
    return tuple(_of_table(written, found, before, after))


def variations(proposal: Proposal) -> tuple[str, ...]:
    """Names of the configuration's variations: settings that change its profile."""
    launched = proposal.request.overrides.launched
    return tuple(launched.variations) if launched else ()


def state(option: DialectOption, value: object) -> Edit:
    """The edit that gives an option `value`, one of our values; it removes a switch that is left
    out for this value."""
    text = option.text(value)
    return Edit(option.key, None if text == GONE else text)


# These are stated together: if the number of ranks changes, all are written again.
_BATCH = ("mbs", "microbatch", "grad_acc", "gbs")


def _of_table(written: Format, found: Found, before: Proposal, after: Proposal) -> Iterator[Edit]:
    """Edits of the settings whose values differ, for formats that `options.toml` describes."""
    tables = run_options(written.dialect)
    options = {ours: row for name in written.options for ours, row in tables[name].items()}
    if {"gbs", "grad_acc"} <= options.keys() and found.setting(options["gbs"].key) is None:
        # The global batch follows from the others.
        del options["gbs"]
    old, new = _said(written, found, before), _said(written, found, after)
    changed = {name for name in new if new[name] != old.get(name)}
    if changed & {*_BATCH, "dp", "pp"}:
        changed |= {*_BATCH}
    if "pp" in changed and after.degrees.zero > 1:
        changed.add("zero")
    for name, option in options.items():
        if name in changed & new.keys():
            yield state(option, new[name])
    for name in sorted({*variations(before)} ^ {*variations(after)}):
        if name in options:
            yield state(options[name], name in variations(after))


def _said(written: Format, found: Found, proposal: Proposal) -> Mapping[str, Any]:
    """A configuration's values as a file of this format states them, under our names."""
    if written.says:
        said: Mapping[str, Any] = function(written.dialect, written.says)(found, proposal)
        return said
    return proposal.degrees.model_dump() | {
        "recompute": proposal.recompute,
        "gbs": proposal.degrees.gbs,
    }
