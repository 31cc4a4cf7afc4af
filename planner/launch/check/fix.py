"""Launch files with their problems mended; every mend, and the result, is checked again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.job.errors import CannotTellError, UsageError
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.changes import Change, Watch, best_changes
from planner.launch.check.edit import edited
from planner.launch.check.request import as_request
from planner.launch.check.spelling import NotInFileError, edits_for
from planner.launch.read.found import Found, Problem
from planner.predict.memory.advice import Setup

# Mended files may have problems that the first ones hid.
_MOST_MENDS = 50
# Reads the launch again, with other texts for some of its files.
Read = Callable[[Mapping[str, str]], Found]


@dataclass(frozen=True)
class Fixed:
    """`texts`: new content by file; `done`: what was written, in words; `left`: what was not."""

    texts: dict[str, str]
    done: tuple[str, ...]
    left: tuple[str, ...]


@dataclass
class _Files:
    """Files as mended so far, what they say, and which problems were tried."""

    assessment: Assessment
    read: Read
    texts: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    tried: set[tuple[str, str]] = field(default_factory=set)

    def assessed(self, texts: Mapping[str, str]) -> Assessment:
        """What other texts say, on the same machine. UsageError, CannotTellError as reading."""
        before = self.assessment
        request = before.setup.request if before.setup else None
        gpus, cluster = (request.gpus, request.cluster) if request else (None, None)
        return assess(self.read(texts), gpus, cluster, before.ignored)


def fixed_files(
    assessment: Assessment, changes: Sequence[Change], read: Read, watch: Watch
) -> Fixed:
    """The files with their problems mended and the best change that they can hold made.

    What is written was read back and assessed: it runs, and fits unless nobody can tell. If nothing
    makes it so, there are no texts, and `left` says why.
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
    """The mends alone, if they are enough."""
    verdict = files.assessment.verdict
    if not files.done or verdict in ("runs and fits", "cannot tell"):
        return Fixed(files.texts, tuple(files.done), tuple(files.left))
    why = "; ".join(error.text for error in files.assessment.errors) or "it would not fit"
    mends = ", ".join(files.done)
    return Fixed({}, (), (*files.left, f"{mends}: {verdict} all the same: {why}"))


def _next_problem(files: _Files) -> Problem | None:
    """The first that says how to mend it and was not tried."""
    return next(
        (
            problem
            for problem in files.assessment.problems
            if problem.edits
            and problem.severity != "note"
            and (problem.rule, problem.text) not in files.tried
        ),
        None,
    )


def _mend(files: _Files, problem: Problem) -> None:
    """Make a problem's edits, if they take it away and bring no other."""
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
        why = new[0].text if new else "the file says the same all the same"
        files.left.append(f"{problem.fix}: {why}")
        return
    files.assessment, files.texts = after, texts
    files.done.append(f"{problem.fix} [{problem.rule}]")


def _with_change(files: _Files, change: Change) -> dict[str, str]:
    """New texts, edited where values are defined or, failing that, where they are used."""
    found, setup, wanted = files.assessment.found, files.assessment.setup, change.candidate.setup
    if setup is None:
        raise NotInFileError("the configuration is not known")
    edits = edits_for(found, setup, wanted)
    reason = "the file sets it in a way that cannot be edited in place"
    for at_use in (False, True):
        try:
            made = files.texts | edited(found, edits, at_use=at_use)
            after = files.assessed(made)
            if _reads_as(after.found, wanted):
                return _demand_running(after, made)
        except (UsageError, CannotTellError) as error:
            reason = str(error)
        except NotInFileError as error:
            if at_use:
                raise
            reason = str(error)
    raise NotInFileError(reason)


def _demand_running(after: Assessment, made: dict[str, str]) -> dict[str, str]:
    """The texts, if what they say runs and fits. NotInFileError."""
    if after.verdict == "runs and fits":
        return made
    raise NotInFileError("; ".join(error.text for error in after.errors) or after.verdict)


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
    """Layers of each block, and whether multi-token prediction stands alone."""
    from constraints.layout import even_split

    layers = setup.request.find_model().spec.layers
    blocks = setup.degrees.pp * setup.degrees.vpp
    return setup.block_layers or even_split(layers, blocks), setup.mtp_standalone
