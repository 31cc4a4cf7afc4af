"""The journal of a study: an Optuna study whose trials record the driver's actions, step by step.

A trial is written when it is chosen, with the name of its job, before anything is submitted; then
when it was submitted, when it was first seen to run, and how it ended. Each entry is one SQLite
transaction, so after a killed driver or a full disk a later driver can continue the study. One
driver writes, under a lock.
"""

from __future__ import annotations

import errno
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner.job.errors import UsageError, demand_installed
from planner.job.written_folder import refuse_folder

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

NAME, LOCK, STUDY = "study.sqlite3", ".tune.lock", "tune"
PARAMETER = "plan"

Kind = Literal[
    "measured", "out-of-memory", "not-a-number", "hang", "failed", "no-log", "foreign-log",
    "too-few-gpus", "not-installed", "refused", "time-over", "lost", "interrupted",
]  # fmt: skip
# Ends that every further trial would have too.
SETUP: tuple[Kind, ...] = ("no-log", "foreign-log", "too-few-gpus", "not-installed", "refused")
# Ends that give a step time, or show that memory is not enough.
TELLING: tuple[Kind, ...] = ("measured", "out-of-memory")
# Ends that say something about the plan.
OF_THE_PLAN: tuple[Kind, ...] = (
    "measured", "out-of-memory", "not-a-number", "hang", "failed", "time-over",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """A trial before it starts: the candidate's key, the job's name, the predicted seconds of a
    step and probability of fitting, the expected GPU-seconds, and the reason for its choice; `at`:
    Unix time of the choice."""

    key: str
    job_name: str
    gpus: int
    gbs: int
    predicted_s: float
    fits: float
    expected_saved_gpu_s: float
    expected_cost_gpu_s: float
    sentence: str
    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """How a trial ended. `sentence`: in words; `at`: Unix time of the end; `gpu_s`: GPU-seconds
    that it took; `step_s`: seconds of a step, `relative_sd`: their standard error as a share, both
    None if unknown; `peak_bytes`: the peak of memory, None if unknown, and `memory_kind`: how it
    was counted; `parts`: seconds of parts of a step, by the names of their phases joined with +."""

    kind: Kind
    sentence: str
    at: float
    gpu_s: float = 0.0
    step_s: float | None = None
    relative_sd: float | None = None
    steps: int = 0
    peak_bytes: float | None = None
    memory_kind: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial so far. `handle`: the scheduler's name for its job, None before it is submitted;
    `running_since`: when it was first seen to run, in Unix time."""

    number: int
    chosen: Chosen
    handle: str | None = None
    running_since: float | None = None
    ended: Ended | None = None

    @property
    def folder(self) -> str:
        """Its folder, relative to the study's."""
        return trial_folder(self.number)


def trial_folder(number: int) -> str:
    """The folder of a trial, relative to the study's."""
    return f"trials/{number:03d}"


class Journal:
    """The trials of a study, in the order of their choice; `header`: the study's settings, for a
    later driver."""

    def __init__(self, study: Study, storage: BaseStorage, folder: Path) -> None:
        self._study, self._storage, self.folder = study, storage, folder
        with self._told():
            self.header: dict[str, Any] = dict(study.user_attrs.get("header", {}))

    @classmethod
    def of_storage(cls, storage: BaseStorage, folder: Path) -> Journal:
        """The journal in an Optuna storage, created if it does not exist."""
        import optuna

        study = optuna.create_study(
            storage=storage, study_name=STUDY, sampler=_model_sampler(), direction="minimize",
            load_if_exists=True,
        )  # fmt: skip
        return cls(study, storage, folder)

    @property
    def resume(self) -> str:
        """The command that continues this study."""
        return f"planner tune --resume {shlex.quote(str(self.folder))}"

    def _told(self) -> AbstractContextManager[None]:
        """A context in which errors of Optuna's storage become OSErrors, with the command that
        continues the study."""
        kept = f"; the study is kept; {self.resume} goes on"
        return _telling(self.folder, kept)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write the study's settings, unless they are already written."""
        if not self.header:
            with self._told():
                self._study.set_user_attr("header", dict(header))
            self.header = dict(header)

    @property
    def records(self) -> list[TrialRecord]:
        """Every trial that was chosen."""
        with self._told():
            found = self._study.get_trials(deepcopy=False)
        return [_record(trial) for trial in found if "chosen" in trial.user_attrs]

    def choose(self, keys: Sequence[str], made: Callable[[int], Chosen]) -> TrialRecord:
        """Ask Optuna for a new trial, and store the chosen candidate in it before anything is
        started. `keys`: those of all candidates; `made`: called with the trial's number, returns
        the chosen candidate."""
        with self._told():
            trial = self._study.ask()
            chosen = made(trial.number)
            self._study.sampler.key = chosen.key
            trial.suggest_categorical(PARAMETER, keys)
            trial.set_user_attr("chosen", asdict(chosen))
        return TrialRecord(trial.number, chosen)

    def submitted(self, record: TrialRecord, handle: str) -> TrialRecord:
        """Record that the job was submitted."""
        self._keep(record, "handle", handle)
        return replace(record, handle=handle)

    def running(self, record: TrialRecord, since: float) -> TrialRecord:
        """Record since when the job has been running."""
        self._keep(record, "running_since", since)
        return replace(record, running_since=since)

    def ended(self, record: TrialRecord, ended: Ended) -> TrialRecord:
        """Record how the trial ended, and return the trial with its end. Optuna gets the
        GPU-seconds per sequence as the trial's value, because trials of different sizes can be
        compared by it."""
        self._keep(record, "ended", asdict(ended))
        done = replace(record, ended=ended)
        self._tell(done)
        return done

    def _keep(self, record: TrialRecord, name: str, value: object) -> None:
        with self._told():
            study = self._storage.get_study_id_from_name(STUDY)
            at = self._storage.get_trial_id_from_study_id_trial_number(study, record.number)
            self._storage.set_trial_user_attr(at, name, value)

    def _tell(self, record: TrialRecord) -> None:
        from optuna.trial import TrialState

        ended = record.ended
        with self._told():
            if ended is not None and ended.step_s is not None:
                value = ended.step_s * record.chosen.gpus / record.chosen.gbs
                self._study.tell(record.number, value, skip_if_finished=True)
            else:
                self._study.tell(record.number, state=TrialState.FAIL, skip_if_finished=True)

    def mend(self) -> None:
        """Close the Optuna trials that a killed driver left open. A trial whose end is stored is
        closed with its result; one that has no candidate yet is closed as failed. A trial that has
        begun and not ended stays open."""
        from optuna.trial import TrialState

        with self._told():
            found = self._study.get_trials(deepcopy=False)
        for trial in found:
            if trial.state.is_finished():
                continue
            if "chosen" not in trial.user_attrs:
                with self._told():
                    self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            elif "ended" in trial.user_attrs:
                self._tell(_record(trial))


def _record(trial: FrozenTrial) -> TrialRecord:
    kept = trial.user_attrs
    ended = kept.get("ended")
    return TrialRecord(
        trial.number, Chosen(**kept["chosen"]), kept.get("handle"), kept.get("running_since"),
        None if ended is None else Ended(**ended),
    )  # fmt: skip


def _model_sampler() -> BaseSampler:
    """A sampler that suggests the candidate that the planner's model has chosen."""
    from optuna.samplers import BaseSampler

    class ModelSampler(BaseSampler):  # type: ignore[misc]
        key = ""

        def infer_relative_search_space(self, *_: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, *_: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, *_: Any) -> str:
            return self.key

    return ModelSampler()


@contextmanager
def opened(folder: Path, *, anew: bool) -> Iterator[Journal]:
    """The journal of a folder, locked against other drivers; `anew`: create one, which must not
    exist yet. UsageError, OSError."""
    demand_installed("planner tune needs", "tune", "optuna", "filelock")
    from filelock import FileLock, Timeout

    path = _demanded(folder, anew=anew)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / LOCK, timeout=0).acquire()
    except Timeout:
        raise UsageError(
            f"{folder}: another driver has this study; wait until it ends, or end it"
        ) from None
    with lock, _quiet():
        from optuna.storages import RDBStorage

        with _all_or_nothing(path), _telling(folder):
            storage = RDBStorage(f"sqlite:///{path.resolve()}", {"connect_args": {"timeout": 60}})
        with closing_storage(storage):
            journal = Journal.of_storage(storage, folder)
            journal.mend()
            yield journal


@contextmanager
def _all_or_nothing(path: Path) -> Iterator[None]:
    """Remove a new database if a full disk left its tables half made, so that the folder can be
    used again."""
    new = not path.exists()
    try:
        yield
    except OSError:
        if new:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def _telling(folder: Path, kept: str = "") -> Iterator[None]:
    """A context in which errors of Optuna's storage, and of the database below it, become
    OSErrors."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        cause = error if isinstance(error, SQLAlchemyError) else error.__cause__ or error
        full = errno.ENOSPC if "full" in str(cause) else errno.EIO
        text = str(getattr(cause, "orig", cause)).splitlines()[0]
        raise OSError(full, text + kept, str(folder / NAME)) from error


@contextmanager
def closing_storage(storage: Any) -> Iterator[Any]:
    """A storage whose connections are closed at the end of the block."""
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _demanded(folder: Path, *, anew: bool) -> Path:
    """The path of the journal. UsageError if there is a study but must be none, if there is none
    but must be one, for links, and for files of other programs."""
    path = folder / NAME
    for each in (path, folder / LOCK):
        if each.is_symlink() or (each.exists() and not each.is_file()):
            raise UsageError(f"{each} is a link, or not a file; give another folder")
    if not anew and not path.is_file():
        raise UsageError(
            f"{folder} contains no study; begin one: planner tune plans.json -o {folder}"
        )
    if anew and path.exists():
        raise UsageError(
            f"{folder} contains a study: --resume {folder} goes on with it, or give another -o"
        )
    if anew:
        if folder.is_dir() and any(each.name != LOCK for each in folder.iterdir()):
            raise UsageError(f"{folder} exists and is not empty; give another folder to -o")
        refuse_folder(folder, force=True)
    elif "trials" not in _tables(path):
        raise UsageError(f"{path} is not a study of planner tune; give another folder")
    return path


def _tables(path: Path) -> set[str]:
    """Names of the tables in a database; empty if the file is damaged or not a database."""
    # Not `mode=ro`, which cannot roll back the journal that a killed process leaves.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as base:
        try:
            return {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
        except sqlite3.DatabaseError:
            return set()


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without Optuna's own lines on each trial, which the driver reports instead."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def study_name(folder: Path, seed: str) -> str:
    """The prefix of a study's job names, in letters, digits and dashes: from its folder and from
    `seed`, which is unique to the study."""
    words = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:20].strip("-")
    return f"tune-{words}-{seed}" if words else f"tune-{seed}"
