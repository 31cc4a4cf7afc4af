"""Fixes problems in launch files and leaves everything else as it was written. Each fix is checked
again, and so is the result."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.job.errors import CannotTellError, UsageError
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.changes import LaunchChange, Watch, best_changes
from planner.launch.check.request import as_request
from planner.launch.check.spelling import NotInFileError, edits_for
from planner.launch.languages.text import SourceFile, Span, Text
from planner.launch.read.found import Edit, Found, Problem, Setting
from planner.launch.registry import Form, formats
from planner.predict.evaluate import Proposal

# A trailing backslash before an empty line or the end.
_DANGLING = re.compile(r"[ \t]*\\\n[ \t]*(?=\n|\Z)")


@dataclass(frozen=True)
class Replacement:
    """A span of a file, and the `text` to write in its place."""

    span: Span
    text: str


def applied(found: Found, replacements: Sequence[Replacement]) -> dict[str, str]:
    """The files' texts after the replacements, which are made from the end backwards.
    NotInFileError if two overlap."""
    texts: dict[str, str] = {}
    ordered = sorted(
        dict.fromkeys(replacements),
        key=lambda replacement: (replacement.span.file.path, -replacement.span.start),
    )
    last: dict[str, int] = {}
    for item in ordered:
        file, span = item.span.file.path, item.span
        if span.end > last.get(file, len(span.file.text) + 1):
            raise NotInFileError("two settings share one value in the file")
        text = texts.get(file, span.file.text)
        texts[file] = text[: span.start] + item.text + text[span.end :]
        last[file] = span.start
    for file, text in texts.items():
        # If the last option was removed, remove the backslash that led to it too.
        if not _DANGLING.search(found.files[file].text):
            texts[file] = _DANGLING.sub("", text)
    return texts


def without_line(span: Span) -> Replacement:
    """The replacement that removes a span, and its whole line if only a backslash would be left on
    it."""
    text = span.file.text
    start = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.end)
    end = len(text) if end < 0 else end
    if not text[start : span.start].strip() and text[span.end : end].strip() in ("", "\\"):
        last = not text[span.end : end].strip()
        # The line's end stays behind a backslash on the line above: the command ends there.
        return Replacement(Span(span.file, start, end if last else end + 1), "")
    before = span.start
    while before > start and text[before - 1] in " \t":
        before -= 1
    return Replacement(Span(span.file, before, span.end), "")


def edited(found: Found, edits: Sequence[Edit], *, at_use: bool = False) -> dict[str, str]:
    """Texts of the files that the edits change. NotInFileError if an edit has no place in them.

    `at_use`: replace a value where it is used, not where its variable is defined.
    """
    replacements: list[Replacement] = []
    fresh: list[Edit] = []
    for edit in edits:
        setting = found.setting(edit.key)
        if edit.rename:
            replacements.append(_renaming(setting, edit))
        elif _says_so(setting, edit.value):
            continue
        elif setting is None or not (setting.spans or setting.whole):
            if setting is not None and _form(found) in ("toml", "yaml"):
                raise NotInFileError(f"{edit.key} is not written in the file as one value")
            fresh.append(edit)
        elif edit.value is None:
            replacements.append(_removal(found, setting))
        elif edit.value != "":
            replacements.append(_replacement(found, setting, edit.value, at_use=at_use))
    return applied(found, replacements + _insertions(found, fresh))


def _form(found: Found) -> Form:
    """The format in which the launch's settings are written; JSON counts as YAML."""
    form = formats()[found.format].form
    text = "" if found.document is None else found.document.value
    return "json" if form == "yaml" and text.lstrip().startswith("{") else form


def _says_so(setting: Setting | None, new: str | None) -> bool:
    """Whether the setting already has the value of the edit."""
    if setting is None or new is None:
        return setting is None and new is None
    old = setting.value
    text = " ".join(old) if isinstance(old, tuple) else str(old)
    return text == new or text.lower() == new


def _replacement(found: Found, setting: Setting, value: str, *, at_use: bool) -> Replacement:
    """The replacement that gives a setting another value, where it is defined or (`at_use`)
    used."""
    if not setting.spans:
        raise NotInFileError(f"{setting.key} is not written separately in the file")
    span = setting.spans[-1 if at_use else 0]
    quoted = span.written[:1] in ("'", '"')
    return Replacement(span, _literal(found, value, quoted=quoted))


def _renaming(setting: Setting | None, edit: Edit) -> Replacement:
    """The replacement that corrects the spelling of a key."""
    whole = setting.whole if setting else None
    if whole is None:
        raise NotInFileError(f"{edit.key} is not written separately in the file")
    name = edit.key.rpartition(".")[2]
    start = whole.file.text.index(name, whole.start)
    new = edit.rename.rpartition(".")[2]
    return Replacement(Span(whole.file, start, start + len(name)), new)


def _literal(found: Found, value: str, *, quoted: bool) -> str:
    """A value in the syntax of the file's format."""
    form, number = _form(found), re.fullmatch(r"-?\d+(\.\d+)?", value)
    if form == "options" or value.startswith('"'):
        return value
    if form == "python" and value in ("true", "false"):
        return value.capitalize()
    plain = number or form == "yaml"
    return value if (plain and not quoted) or value in ("true", "false") else json.dumps(value)


def _removal(found: Found, setting: Setting) -> Replacement:
    whole = setting.whole
    removes = formats()[found.format].removes or _form(found) in ("toml", "yaml")
    if whole is None or not removes:
        raise NotInFileError(f"{setting.key} cannot be removed in place")
    return without_line(whole)


# --- new keys -------------------------------------------------------------------------------------


def _insertions(found: Found, edits: Sequence[Edit]) -> list[Replacement]:
    edits = [edit for edit in edits if edit.value is not None]
    if not edits:
        return []
    form = _form(found)
    if form == "options":
        return _option_insertions(found, edits)
    insertion = {"json": _json_insertion, "python": _python_insertion}.get(form, _line_insertion)
    tables: dict[str, dict[str, str]] = {}
    for edit in edits:
        table, _, name = edit.key.rpartition(".")
        written = _literal(found, edit.value or "", quoted=False)
        tables.setdefault(table, {})[name] = written
    return [insertion(found, table, item) for table, item in tables.items()]


def _anchors(found: Found) -> tuple[str, ...]:
    """Options behind which new ones are inserted; the first one that the file contains is used."""
    return formats()[found.format].anchors


def _option_insertions(found: Found, edits: Sequence[Edit]) -> list[Replacement]:
    options = [edit for edit in edits if not edit.key.startswith("$")]
    made = [_export(found, edit) for edit in edits if edit.key.startswith("$")]
    if options:
        anchors = (found.setting(name) for name in _anchors(found))
        whole = next(
            (anchor.whole for anchor in anchors if anchor is not None and anchor.whole), None
        )
        if whole is None:
            raise NotInFileError("no place in the file for a new option")
        text = "".join(f" {_option_text(option)}" for option in options)
        made.append(Replacement(Span(whole.file, whole.end, whole.end), text))
    return made


def _option_text(edit: Edit) -> str:
    """`--option value`, or `section.field=value`, quoted for Hydra if needed."""
    value = edit.value or ""
    if edit.key.startswith("--"):
        return f"{edit.key} {value}".rstrip()
    if re.fullmatch(r"[\w.+-]+", value):
        return f"{edit.key}={value}"
    return f"'{edit.key}={value}'" if value.startswith("[") else f"'{edit.key}=\"{value}\"'"


def _export(found: Found, edit: Edit) -> Replacement:
    """Insert `export NAME=1` before the script's first command, or replace the variable's value."""
    name, source = edit.key[1:], found.files[found.main_file]
    match = re.search(rf"(?m)^\s*(?:export\s+)?{name}=(\S*)", source.text)
    if match:
        return Replacement(Span(source, match.start(1), match.end(1)), edit.value or "")
    has_batch = any(found.setting(anchor) is not None for anchor in _anchors(found))
    if source.text.lstrip().startswith("--") or not has_batch:
        raise NotInFileError(f"{edit.key[1:]} must be set in the environment")
    at = _first_code(source)
    return Replacement(Span(source, at, at), f"export {name}={edit.value}\n")


def _first_code(source: SourceFile) -> int:
    """Offset of the first line that is neither blank nor a comment."""
    at = 0
    for line in source.text.splitlines(keepends=True):
        if line.strip() and not line.lstrip().startswith("#"):
            return at
        at += len(line)
    return at


def _sibling(found: Found, table: str) -> Span | None:
    """The first entry of a table in the configuration file; None if the table is absent."""
    inside = (one.whole for one in found.settings if one.key.rpartition(".")[0] == table)
    files = (found.main_file,) if found.main_file in found.files else (*found.files,)
    return next((one for one in inside if one and one.file.path in files), None)


def _line_insertion(found: Found, table: str, entries: dict[str, str]) -> Replacement:
    """Insert lines after the first entry of a TOML or YAML table, or add the table at the end."""
    toml, sibling = _form(found) == "toml", _sibling(found, table)
    lines = [f"{name}{' = ' if toml else ': '}{value}" for name, value in entries.items()]
    places = [item for item in (found.document or Text("")).origin if isinstance(item, tuple)]
    if not places:
        raise NotInFileError("the configuration is not in a file")
    file, first = places[0]
    at, text = places[-1][1] + 1, file.text
    if sibling is not None:
        file, first, text = sibling.file, sibling.start, sibling.file.text
        at = text.find("\n", sibling.end)
        at = len(text) if at < 0 else at
    elif toml:
        lines = ["", f"[{table}]", *lines]
    else:
        for name in reversed(table.split(".")):
            lines = [f"{name}:", *(f"  {line}" for line in lines)]
    indent = text[text.rfind("\n", 0, first) + 1 : first]
    if indent.strip():
        raise NotInFileError("the table is written on one line")
    written = "\n".join(indent + line if line else line for line in lines)
    before, after = ("", "\n") if text[at - 1 : at] == "\n" else ("\n", "")
    return Replacement(Span(file, at, at), f"{before}{written}{after}")


def _python_insertion(found: Found, table: str, entries: dict[str, str]) -> Replacement:
    """Insert arguments after an existing one in the call that configures a table."""
    sibling = _sibling(found, table)
    if sibling is None:
        key = f"{table}.{next(iter(entries))}"
        raise NotInFileError(f"{key} is not in the file; add it by hand")
    text = "".join(f", {name}={value}" for name, value in entries.items())
    return Replacement(Span(sibling.file, sibling.end, sibling.end), text)


def _json_insertion(found: Found, table: str, entries: dict[str, str]) -> Replacement:
    sibling, items = _sibling(found, table), [f'"{k}": {v}' for k, v in entries.items()]
    if sibling is None:
        sibling, items = _sibling(found, ""), [f'"{table}": {{{", ".join(items)}}}']
    if sibling is None:
        raise NotInFileError("the file is empty")
    text = sibling.file.text
    start = text.rfind("\n", 0, sibling.start) + 1
    indent = text[start : sibling.start]
    gap = f"\n{indent}" if not indent.strip() else " "
    whole = "".join(f"{item},{gap}" for item in items)
    return Replacement(Span(sibling.file, sibling.start, sibling.start), whole)


# Fixed files may have problems that earlier ones hid.
_MOST_MENDS = 50
# Reads the launch again, with other texts for some of its files.
Read = Callable[[Mapping[str, str]], Found]


@dataclass(frozen=True)
class Fixed:
    """`texts`: new content by file; `done`: descriptions of the edits made; `left`: problems and
    changes that were not applied."""

    texts: dict[str, str]
    done: tuple[str, ...]
    left: tuple[str, ...]


@dataclass
class _Files:
    """The files as fixed so far, their assessment, and the problems already tried."""

    assessment: Assessment
    read: Read
    texts: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    tried: set[tuple[str, str]] = field(default_factory=set)

    def assessed(self, texts: Mapping[str, str]) -> Assessment:
        """Assess other texts of the files on the same machine. UsageError and CannotTellError as
        when reading."""
        before = self.assessment
        request = before.proposal.request if before.proposal else None
        gpus, cluster = (request.gpus, request.cluster) if request else (None, None)
        return assess(self.read(texts), gpus, cluster, before.ignored)


def fixed_files(
    assessment: Assessment, changes: Sequence[LaunchChange], read: Read, watch: Watch
) -> Fixed:
    """Fix the problems of the files, then make the best change that they can express.

    The result is read back and assessed: it runs, and it fits or may fit. If fixes do not achieve
    that, `texts` is empty and `left` says why.
    """
    files = _Files(assessment, read)
    for _ in range(_MOST_MENDS):
        problem = _next_problem(files)
        if problem is None:
            break
        _mend(files, problem)
    if files.done:
        changes = best_changes(files.assessment, watch)
    for change in changes:
        try:
            made = _with_change(files, change)
        except NotInFileError as error:
            files.left.append(f"{change.change}: {error}")
            continue
        return Fixed(made, (*files.done, change.change), tuple(files.left))
    return _without_change(files)


def _without_change(files: _Files) -> Fixed:
    """The result of the fixes without a further change, if they are enough."""
    verdict = files.assessment.verdict
    if not files.done or verdict in ("runs and fits", "cannot tell"):
        return Fixed(files.texts, tuple(files.done), tuple(files.left))
    why = "; ".join(error.text for error in files.assessment.errors) or "it would not fit"
    mends = ", ".join(files.done)
    return Fixed({}, (), (*files.left, f"{mends}: {verdict} even so: {why}"))


def _next_problem(files: _Files) -> Problem | None:
    """The first problem not yet tried that comes with a fix."""
    for problem in files.assessment.problems:
        tried = (problem.rule, problem.text) in files.tried
        if problem.edits and problem.severity != "note" and not tried:
            return problem
    return None


def _mend(files: _Files, problem: Problem) -> None:
    """Apply a problem's edits if they solve it and the number of errors does not grow."""
    files.tried.add((problem.rule, problem.text))
    try:
        texts = files.texts | edited(files.assessment.found, problem.edits)
        after = files.assessed(texts)
    except (NotInFileError, UsageError, CannotTellError) as error:
        files.left.append(f"{problem.fix}: {error}")
        return
    before = {(error.rule, error.text) for error in files.assessment.errors}
    new = [error for error in after.errors if (error.rule, error.text) not in before]
    stays = any((item.rule, item.text) == (problem.rule, problem.text) for item in after.problems)
    if stays or len(after.errors) > len(files.assessment.errors):
        why = new[0].text if new else "the file still says the same after the edit"
        files.left.append(f"{problem.fix}: {why}")
        return
    files.assessment, files.texts = after, texts
    files.done.append(f"{problem.fix} [{problem.rule}]")


def _with_change(files: _Files, change: LaunchChange) -> dict[str, str]:
    """New texts with the change, edited where values are defined or, if that fails, where they are
    used."""
    found, proposal, wanted = files.assessment.found, files.assessment.proposal, change.proposal
    if proposal is None:
        raise NotInFileError("the configuration is not known")
    edits = edits_for(found, proposal, wanted)
    reason = "the file does not state it in a form that can be edited in place"
    for at_use in (False, True):
        try:
            made = files.texts | edited(found, edits, at_use=at_use)
            after = files.assessed(made)
            if _reads_as(after.found, wanted):
                if after.verdict == "runs and fits":
                    return made
                raise NotInFileError("; ".join(item.text for item in after.errors) or after.verdict)
        except (UsageError, CannotTellError) as error:
            reason = str(error)
        except NotInFileError as error:
            if at_use:
                raise
            reason = str(error)
    raise NotInFileError(reason)


def _reads_as(found: Found, wanted: Proposal) -> bool:
    """Whether the launch, read back, is the wanted configuration."""
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


def _layers(proposal: Proposal) -> tuple[tuple[int, ...], bool]:
    """Layers of each block, and whether multi-token prediction has a block to itself."""
    from planner.cost.layout import usual_split

    layers = proposal.request.find_model().spec.layers
    blocks = proposal.degrees.pp * proposal.degrees.vpp
    return proposal.block_layers or usual_split(layers, blocks), proposal.mtp_standalone
