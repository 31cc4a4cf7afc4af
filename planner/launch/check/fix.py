"""Edits made in the text of a launch file, everything else left as it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.job.errors import CannotTellError, UsageError
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.changes import Change, Watch, best_changes
from planner.launch.check.request import as_request
from planner.launch.check.spelling import NotInFileError, edits_for
from planner.launch.read.document import line_span
from planner.launch.read.found import Edit, Found, Hints, Setting
from planner.launch.read.launch import read_launch
from planner.launch.read.text import SourceFile, Span
from planner.predict.memory.advice import Setup

# Mended files may have problems that the first ones hid.
_MOST_ROUNDS = 4


@dataclass(frozen=True)
class Fixed:
    """`texts`: new content by file; `done`: what was written, in words; `left`: what was not."""

    texts: dict[str, str]
    done: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True)
class _Replacement:
    span: Span
    text: str


def fixed_files(
    assessment: Assessment,
    changes: Sequence[Change],
    paths: Sequence[str],
    hints: Hints,
    watch: Watch,
) -> Fixed:
    """The files with their problems mended and the best change that they can hold made.

    What is written is read back: a change whose file would not read as the configuration that was
    costed is left out, and said to be. Problems are mended first and the launch looked at anew.
    """
    texts: dict[str, str] = {}
    done: list[str] = []
    left: list[str] = []
    for _ in range(_MOST_ROUNDS):
        mends, mended, unmended = _mends(assessment)
        left += [text for text in unmended if text not in left]
        if not mends:
            break
        done += mended
        texts = texts | edited(assessment.found, mends)
        assessment = _again(assessment, read_launch(paths, hints, contents=texts))
    if done:
        changes = best_changes(assessment, watch)
    for change in changes:
        try:
            made = _with_change(assessment, change, texts, paths, hints)
        except NotInFileError as error:
            left.append(f"{change.change}: {error}")
            continue
        return Fixed(made, (*done, change.change), tuple(left))
    return Fixed(texts, tuple(done), tuple(left))


def _again(before: Assessment, found: Found) -> Assessment:
    """The assessment of what the mended files say, on the same machine."""
    request = before.setup.request if before.setup else None
    if request is None:
        return assess(found)
    return assess(found, request.gpus, request.cluster)


def _mends(assessment: Assessment) -> tuple[tuple[Edit, ...], tuple[str, ...], list[str]]:
    """Edits of problems that have one, those in words, and what has no place in the files."""
    edits: list[Edit] = []
    done, left = [], []
    for problem in assessment.problems:
        if not problem.edits or problem.severity == "note":
            continue
        try:
            edited(assessment.found, [*edits, *problem.edits])
        except NotInFileError as error:
            left.append(f"{problem.fix}: {error}")
            continue
        edits += [edit for edit in problem.edits if edit not in edits]
        done.append(f"{problem.fix} [{problem.rule}]")
    return tuple(edits), tuple(dict.fromkeys(done)), left


def _with_change(
    assessment: Assessment,
    change: Change,
    texts: dict[str, str],
    paths: Sequence[str],
    hints: Hints,
) -> dict[str, str]:
    """New texts, edited where values are defined or, failing that, where they are used."""
    found, setup, wanted = assessment.found, assessment.setup, change.candidate.setup
    if setup is None:
        raise NotInFileError("the configuration is not known")
    edits = edits_for(found, setup, wanted)
    reason = "the file sets it in a way that cannot be edited in place"
    for at_use in (False, True):
        try:
            made = texts | edited(found, edits, at_use=at_use)
            if _reads_as(read_launch(paths, hints, contents=made), wanted):
                return made
        except (UsageError, CannotTellError) as error:
            reason = str(error)
        except NotInFileError as error:
            if at_use:
                raise
            reason = str(error)
    raise NotInFileError(reason)


def _reads_as(found: Found, wanted: Setup) -> bool:
    """Whether files read as a configuration."""
    request = wanted.request
    try:
        one_request = as_request(found, request.gpus, request.cluster)
    except (UsageError, CannotTellError):
        return False
    same_layers = _layers(one_request) == _layers(wanted)
    return same_layers and (one_request.degrees, one_request.recompute, one_request.request) == (
        wanted.degrees,
        wanted.recompute,
        request,
    )


def _layers(setup: Setup) -> tuple[tuple[int, ...], bool]:
    """Layers of each block, and whether multi-token prediction is apart."""
    from constraints.layout import even_split

    layers = setup.request.find_model().spec.layers
    blocks = setup.degrees.pp * setup.degrees.vpp
    return setup.block_layers or even_split(layers, blocks), setup.mtp_standalone


def edited(found: Found, edits: Sequence[Edit], *, at_use: bool = False) -> dict[str, str]:
    """Texts of the files that edits change. NotInFileError where one has no place.

    `at_use`: replace a value where it is used, not where its variable is defined.
    """
    replacements: list[_Replacement] = []
    fresh: list[Edit] = []
    for edit in edits:
        setting = found.setting(edit.key)
        if edit.rename:
            replacements.append(_renaming(found, setting, edit))
        elif setting is None or not (setting.spans or setting.whole):
            if edit.value is not None:
                fresh.append(edit)
        elif edit.value is None:
            replacements.append(_removal(found, setting))
        elif edit.value != "" and not _same(setting.value, edit.value):
            if not setting.spans:
                raise NotInFileError(f"{edit.key} has no place of its own in the file")
            span = setting.spans[-1 if at_use else 0]
            quoted = _was_quoted(found, span)
            replacements.append(_Replacement(span, _literal(found, edit.value, quoted=quoted)))
    replacements += _insertions(found, fresh)
    return _apply(found, replacements)


def _renaming(found: Found, setting: Setting | None, edit: Edit) -> _Replacement:
    """The key of a setting, spelt as it should be."""
    whole = setting.whole if setting else None
    if whole is None:
        raise NotInFileError(f"{edit.key} has no place of its own in the file")
    name = edit.key.rpartition(".")[2]
    start = found.files[whole.file].text.index(name, whole.start)
    new = edit.rename.rpartition(".")[2]
    return _Replacement(Span(whole.file, start, start + len(name)), new)


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


def _removal(found: Found, setting: Setting) -> _Replacement:
    whole = setting.whole
    if whole is None:
        raise NotInFileError(f"{setting.key} cannot be taken out in place")
    text = found.files[whole.file].text
    if found.format == "megatron":
        start = whole.start
        while start > 0 and text[start - 1] in " \t":
            start -= 1
        return _Replacement(Span(whole.file, start, whole.end), "")
    if found.format.startswith("torchtitan-0.2") or found.format in ("accelerate", "nanotron"):
        return _Replacement(line_span(whole, text), "")
    raise NotInFileError(f"{setting.key} cannot be taken out in place")


# --- new keys -------------------------------------------------------------------------------------


def _insertions(found: Found, edits: Sequence[Edit]) -> list[_Replacement]:
    if not edits:
        return []
    if found.format.startswith("megatron"):
        return _megatron_insertions(found, edits)
    if found.format == "torchtitan-0.2":
        return [_toml_insertion(found, table, item) for table, item in _by_table(edits).items()]
    if found.format in ("accelerate", "nanotron"):
        return [_yaml_insertion(found, table, item) for table, item in _by_table(edits).items()]
    if found.format == "deepspeed":
        return [_json_insertion(found, table, item) for table, item in _by_table(edits).items()]
    return [_python_insertion(found, table, item) for table, item in _by_table(edits).items()]


def _by_table(edits: Sequence[Edit]) -> dict[str, list[Edit]]:
    tables: dict[str, list[Edit]] = {}
    for edit in edits:
        tables.setdefault(edit.key.rpartition(".")[0], []).append(edit)
    return tables


# New options go behind one of these, the first that stands in the file.
_ANCHORS = (
    "--micro-batch-size", "--global-batch-size", "--tensor-model-parallel-size", "--seq-length",
    "--hidden-size", "--num-layers",
    "train.micro_batch_size", "train.global_batch_size", "model.tensor_model_parallel_size",
    "model.seq_length",
)  # fmt: skip


def _megatron_insertions(found: Found, edits: Sequence[Edit]) -> list[_Replacement]:
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
        made.append(_Replacement(Span(whole.file, whole.end, whole.end), text))
    return made


def _option_text(edit: Edit) -> str:
    """`--option value`, or `section.field=value` with Hydra's quotes where it needs them."""
    value = edit.value or ""
    if edit.key.startswith("--"):
        return f"{edit.key} {value}".rstrip()
    if re.fullmatch(r"[\w.+-]+", value):
        return f"{edit.key}={value}"
    return f"'{edit.key}={value}'" if value.startswith("[") else f"'{edit.key}=\"{value}\"'"


def _export(found: Found, edit: Edit) -> _Replacement:
    """`export NAME=1` before the first command of the script, or a new value of it."""
    name, source = edit.key[1:], found.files[found.main_file]
    match = re.search(rf"(?m)^\s*(?:export\s+)?{name}=(\S*)", source.text)
    if match:
        return _Replacement(Span(source.path, match.start(1), match.end(1)), edit.value or "")
    has_batch = any(found.setting(anchor) is not None for anchor in _ANCHORS)
    if source.text.lstrip().startswith("--") or not has_batch:
        raise NotInFileError(f"{edit.key[1:]} belongs into the environment")
    at = _first_code(source)
    return _Replacement(Span(source.path, at, at), f"export {name}={edit.value}\n")


def _first_code(source: SourceFile) -> int:
    """Offset of the first line that is neither blank nor a comment."""
    at = 0
    for line in source.text.splitlines(keepends=True):
        if line.strip() and not line.lstrip().startswith("#"):
            return at
        at += len(line)
    return at


def _toml_insertion(found: Found, table: str, edits: list[Edit]) -> _Replacement:
    text = found.files[found.main_file].text
    entries = "".join(
        f"{edit.key.rpartition('.')[2]} = {_literal(found, edit.value or '', quoted=False)}\n"
        for edit in edits
    )
    header = re.search(rf"(?m)^\s*\[\s*{re.escape(table)}\s*\][^\n]*\n", text)
    if header:
        return _Replacement(Span(found.main_file, header.end(), header.end()), entries)
    end = len(text)
    gap = "" if text.endswith("\n") else "\n"
    return _Replacement(Span(found.main_file, end, end), f"{gap}\n[{table}]\n{entries}")


def _sibling(found: Found, table: str) -> Span | None:
    """First entry of a table."""
    prefix = f"{table}." if table else ""
    inside = (
        setting.whole
        for setting in found.settings
        if setting.key.startswith(prefix) and setting.whole
    )
    return next((item for item in inside if item.file == found.main_file), None)


def _yaml_insertion(found: Found, table: str, edits: list[Edit]) -> _Replacement:
    sibling = _sibling(found, table)
    text = found.files[found.main_file].text
    lines = [
        f"{edit.key.rpartition('.')[2]}: {_literal(found, edit.value or '', quoted=False)}\n"
        for edit in edits
    ]
    if sibling is not None:
        start = text.rfind("\n", 0, sibling.start) + 1
        indent = text[start : sibling.start]
        if indent.strip():
            raise NotInFileError(f"{edits[0].key}: the table stands on one line")
        return _Replacement(
            Span(found.main_file, start, start), "".join(indent + line for line in lines)
        )
    gap = "" if text.endswith("\n") else "\n"
    end = len(text)
    body = "".join(f"  {line}" for line in lines)
    return _Replacement(Span(found.main_file, end, end), f"{gap}{table}:\n{body}")


def _python_insertion(found: Found, table: str, edits: list[Edit]) -> _Replacement:
    """More arguments behind one of the call that configures a table."""
    sibling = _sibling(found, table)
    if sibling is None:
        raise NotInFileError(f"{edits[0].key} is not in the file; add it by hand")
    text = "".join(
        f", {edit.key.rpartition('.')[2]}={_literal(found, edit.value or '', quoted=False)}"
        for edit in edits
    )
    return _Replacement(Span(sibling.file, sibling.end, sibling.end), text)


def _json_insertion(found: Found, table: str, edits: list[Edit]) -> _Replacement:
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
    return _Replacement(Span(found.main_file, sibling.start, sibling.start), whole)


def _apply(found: Found, replacements: Sequence[_Replacement]) -> dict[str, str]:
    """Texts with replacements made, from the end backwards. NotInFileError if two overlap."""
    texts: dict[str, str] = {}
    ordered = sorted(
        dict.fromkeys(replacements),
        key=lambda replacement: (replacement.span.file, -replacement.span.start),
    )
    last: dict[str, int] = {}
    for item in ordered:
        file, span = item.span.file, item.span
        if span.end > last.get(file, len(found.files[file].text) + 1):
            raise NotInFileError("two settings share one value in the file")
        text = texts.get(file, found.files[file].text)
        texts[file] = text[: span.start] + item.text + text[span.end :]
        last[file] = span.start
    return texts
