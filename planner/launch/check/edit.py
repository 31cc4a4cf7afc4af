"""Edits made in the text of a launch file, everything else left as it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from planner.launch.check.documents import document_edits, is_document
from planner.launch.check.replacement import Replacement, applied, without_line
from planner.launch.check.spelling import NotInFileError
from planner.launch.megatron_bridge_schema import fields_of
from planner.launch.megatron_table import option
from planner.launch.options import MEGATRON
from planner.launch.read.found import Edit, Found, Setting
from planner.launch.read.text import SourceFile, Span


def edited(found: Found, edits: Sequence[Edit], *, at_use: bool = False) -> dict[str, str]:
    """Texts of the files that edits change. NotInFileError where one has no place.

    `at_use`: replace a value where it is used, not where its variable is defined.
    """
    replacements: list[Replacement] = []
    fresh: list[Edit] = []
    inside: list[Edit] = []
    for edit in edits:
        setting = found.setting(edit.key)
        if edit.rename:
            replacements.append(_renaming(found, setting, edit))
        elif _says_so(setting, edit):
            continue
        elif not edit.key.startswith("$") and is_document(found, setting):
            inside.append(edit)
        elif setting is None or not (setting.spans or setting.whole):
            fresh.append(edit)
        elif edit.value is None:
            replacements.append(_removal(found, setting))
        elif edit.value != "":
            replacements.append(_replacement(found, setting, edit.value, at_use=at_use))
    replacements += document_edits(found, inside) + _insertions(found, fresh)
    return applied(found, replacements)


def _says_so(setting: Setting | None, edit: Edit) -> bool:
    """Whether the file says already what an edit would make it say."""
    if setting is None or edit.value is None:
        return setting is None and edit.value is None
    return _same(setting.value, edit.value)


def _replacement(found: Found, setting: Setting, value: str, *, at_use: bool) -> Replacement:
    """Another value, where it is defined or where it is used."""
    if not setting.spans:
        raise NotInFileError(f"{setting.key} has no place of its own in the file")
    span = setting.spans[-1 if at_use else 0]
    return Replacement(span, _literal(found, value, quoted=_was_quoted(found, span)))


def _renaming(found: Found, setting: Setting | None, edit: Edit) -> Replacement:
    """The key of a setting, spelt as it should be."""
    whole = setting.whole if setting else None
    if whole is None:
        raise NotInFileError(f"{edit.key} has no place of its own in the file")
    name = edit.key.rpartition(".")[2]
    start = found.files[whole.file].text.index(name, whole.start)
    new = edit.rename.rpartition(".")[2]
    return Replacement(Span(whole.file, start, start + len(name)), new)


def _same(old: object, new: str) -> bool:
    text = " ".join(old) if isinstance(old, tuple) else str(old)
    return text == new or text.lower() == new


def _was_quoted(found: Found, span: Span) -> bool:
    return found.files[span.file].text[span.start : span.start + 1] in ("'", '"')


def _literal(found: Found, value: str, *, quoted: bool) -> str:
    """A value as the file's format writes it."""
    form, number = found.format, re.fullmatch(r"-?\d+(\.\d+)?", value)
    if form.startswith("megatron") or value.startswith('"'):
        return value
    if form == "torchtitan-0.3" and value in ("true", "false"):
        return value.capitalize()
    if (number and not quoted) or value in ("true", "false"):
        return value
    if form in ("accelerate", "nanotron") and not quoted:
        return value
    return json.dumps(value)


def _removal(found: Found, setting: Setting) -> Replacement:
    whole = setting.whole
    if whole is None or found.format not in ("megatron",):
        raise NotInFileError(f"{setting.key} cannot be taken out in place")
    return without_line(found.files[whole.file].text, whole)


# --- new keys -------------------------------------------------------------------------------------


def _insertions(found: Found, edits: Sequence[Edit]) -> list[Replacement]:
    edits = [edit for edit in edits if edit.value is not None]
    if not edits:
        return []
    if found.format.startswith("megatron"):
        return _megatron_insertions(found, edits)
    insertion = _json_insertion if found.format == "deepspeed" else _python_insertion
    return [insertion(found, table, item) for table, item in _by_table(edits).items()]


def _by_table(edits: Sequence[Edit]) -> dict[str, list[Edit]]:
    tables: dict[str, list[Edit]] = {}
    for edit in edits:
        tables.setdefault(edit.key.rpartition(".")[0], []).append(edit)
    return tables


# New options go behind one of these, the first that stands in the file.
_ANCHORS = tuple(
    key
    for flag in (
        *(MEGATRON[name].key for name in ("mbs", "gbs", "tp", "seq")),
        f"--{option('hidden')}",
    )
    for key in (flag, *fields_of(flag))
)


def _megatron_insertions(found: Found, edits: Sequence[Edit]) -> list[Replacement]:
    options = [edit for edit in edits if not edit.key.startswith("$")]
    made = [_export(found, edit) for edit in edits if edit.key.startswith("$")]
    if options:
        anchors = (found.setting(name) for name in _ANCHORS)
        whole = next(
            (anchor.whole for anchor in anchors if anchor is not None and anchor.whole), None
        )
        if whole is None:
            raise NotInFileError("no place in the file for a new option")
        text = "".join(f" {_option_text(option)}" for option in options)
        made.append(Replacement(Span(whole.file, whole.end, whole.end), text))
    return made


def _option_text(edit: Edit) -> str:
    """`--option value`, or `section.field=value` with Hydra's quotes where it needs them."""
    value = edit.value or ""
    if edit.key.startswith("--"):
        return f"{edit.key} {value}".rstrip()
    if re.fullmatch(r"[\w.+-]+", value):
        return f"{edit.key}={value}"
    return f"'{edit.key}={value}'" if value.startswith("[") else f"'{edit.key}=\"{value}\"'"


def _export(found: Found, edit: Edit) -> Replacement:
    """`export NAME=1` before the first command of the script, or a new value of it."""
    name, source = edit.key[1:], found.files[found.main_file]
    match = re.search(rf"(?m)^\s*(?:export\s+)?{name}=(\S*)", source.text)
    if match:
        return Replacement(Span(source.path, match.start(1), match.end(1)), edit.value or "")
    has_batch = any(found.setting(anchor) is not None for anchor in _ANCHORS)
    if source.text.lstrip().startswith("--") or not has_batch:
        raise NotInFileError(f"{edit.key[1:]} belongs into the environment")
    at = _first_code(source)
    return Replacement(Span(source.path, at, at), f"export {name}={edit.value}\n")


def _first_code(source: SourceFile) -> int:
    """Offset of the first line that is neither blank nor a comment."""
    at = 0
    for line in source.text.splitlines(keepends=True):
        if line.strip() and not line.lstrip().startswith("#"):
            return at
        at += len(line)
    return at


def _sibling(found: Found, table: str) -> Span | None:
    """First entry of a table."""
    prefix = f"{table}." if table else ""
    inside = (
        setting.whole
        for setting in found.settings
        if setting.key.startswith(prefix) and setting.whole
    )
    return next((item for item in inside if item.file == found.main_file), None)


def _python_insertion(found: Found, table: str, edits: list[Edit]) -> Replacement:
    """More arguments behind one of the call that configures a table."""
    sibling = _sibling(found, table)
    if sibling is None:
        raise NotInFileError(f"{edits[0].key} is not in the file; add it by hand")
    text = "".join(
        f", {edit.key.rpartition('.')[2]}={_literal(found, edit.value or '', quoted=False)}"
        for edit in edits
    )
    return Replacement(Span(sibling.file, sibling.end, sibling.end), text)


def _json_insertion(found: Found, table: str, edits: list[Edit]) -> Replacement:
    sibling = _sibling(found, table)
    entries = {edit.key.rpartition(".")[2]: edit.value or "" for edit in edits}
    if sibling is None:
        inner = ", ".join(f'"{k}": {_literal(found, v, quoted=False)}' for k, v in entries.items())
        sibling, items = _sibling(found, ""), [f'"{table}": {{{inner}}}']
    else:
        items = [f'"{k}": {_literal(found, v, quoted=False)}' for k, v in entries.items()]
    if sibling is None:
        raise NotInFileError("the file is empty")
    text = found.files[found.main_file].text
    start = text.rfind("\n", 0, sibling.start) + 1
    indent = text[start : sibling.start]
    gap = f"\n{indent}" if not indent.strip() else " "
    whole = "".join(f"{item},{gap}" for item in items)
    return Replacement(Span(found.main_file, sibling.start, sibling.start), whole)
