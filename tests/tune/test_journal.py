"""The journal of a study: kept whole whatever ends the driver, by one driver at a time."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.tune.journal import NAME, Chosen, Ended, Journal, TrialRecord, opened, study_name

KEYS = ("slow", "fast")


def chosen(number: int) -> Chosen:
    return Chosen("fast", f"tune-x-{number:03d}", 2, 8, 1.0, 0.9, 50.0, 10.0, "it may pay", 1e9)


def measured(at: float = 2e9) -> Ended:
    return Ended("measured", "1.2 s a step", at, 60.0, 1.2, 0.008, 12, 2.0**33, "reserved")


def begun(folder: Path) -> TrialRecord:
    """A study with one trial that runs."""
    with opened(folder, anew=True) as journal:
        journal.begin({"planner": "1.0", "name": "tune-x"})
        record = journal.submitted(journal.choose(KEYS, chosen), "4711")
        return journal.running(record, 1.5e9)


def test_what_was_written_is_read_by_the_next_driver(tmp_path: Path) -> None:
    record = begun(tmp_path / "study")
    with opened(tmp_path / "study", anew=False) as journal:
        assert journal.header == {"planner": "1.0", "name": "tune-x"}
        assert journal.records == [record]
        assert (record.handle, record.running_since) == ("4711", 1.5e9)
        done = journal.ended(record, measured())
        journal.begin({"planner": "another"})
    with opened(tmp_path / "study", anew=False) as journal:
        assert journal.records == [done]
        assert journal.header["planner"] == "1.0"


def test_it_is_a_study_of_optuna(tmp_path: Path) -> None:
    """What optuna-dashboard shows: each trial with its plan and GPU-seconds a sequence."""
    import optuna

    record = begun(tmp_path / "study")
    with opened(tmp_path / "study", anew=False) as journal:
        journal.ended(record, measured())
        second = journal.choose(KEYS, chosen)
        journal.ended(second, Ended("out-of-memory", "it ran out of memory", 2e9))
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study' / NAME}")
    study = optuna.load_study(study_name="tune", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]
    assert study.best_trial.params == {"plan": "fast"}
    assert study.best_value == pytest.approx(1.2 * 2 / 8)
    storage.engine.dispose()


def test_a_driver_killed_between_two_notes(tmp_path: Path) -> None:
    """Trials that Optuna was asked for and nobody chose, or that ended and it was not told of."""
    import optuna

    storage = optuna.storages.InMemoryStorage()
    journal = Journal.of_storage(storage, tmp_path)
    record = journal.choose(KEYS, chosen)
    study = optuna.load_study(study_name="tune", storage=storage)
    study.ask()
    storage.set_trial_user_attr(0, "ended", asdict(Ended("lost", "it is lost", 2e9)))
    again = Journal.of_storage(storage, tmp_path)
    again.mend()
    assert [one.number for one in again.records] == [record.number]
    assert all(trial.state.is_finished() for trial in study.get_trials())


def test_two_drivers_are_refused(tmp_path: Path) -> None:
    begun(tmp_path / "study")
    with (
        opened(tmp_path / "study", anew=False),
        pytest.raises(UsageError, match="another driver has this study"),
        opened(tmp_path / "study", anew=False),
    ):
        pass


def test_a_study_is_not_begun_twice(tmp_path: Path) -> None:
    begun(tmp_path / "study")
    with pytest.raises(UsageError, match="--resume"), opened(tmp_path / "study", anew=True):
        pass


@pytest.mark.parametrize("made", ["nothing", "text", "another"])
def test_what_is_no_study(made: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    if made == "text":
        path.write_text("years of work")
    elif made == "another":
        with closing(sqlite3.connect(path)) as base:
            base.execute("CREATE TABLE mine (name TEXT)")
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(UsageError, match=r"(no|not a) study"), opened(tmp_path, anew=False):
        pass
    assert before == (path.read_bytes() if path.exists() else None)


def test_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="not empty"), opened(tmp_path, anew=True):
        pass


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / NAME).symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="is a link"), opened(tmp_path / "study", anew=True):
        pass


def test_a_full_disk_keeps_the_study(tmp_path: Path) -> None:
    """SQLite's own limit of pages stands for the disk's."""
    record = begun(tmp_path / "study")
    with opened(tmp_path / "study", anew=False) as journal:
        with closing(sqlite3.connect(tmp_path / "study" / NAME)) as base:
            (pages,) = base.execute("PRAGMA page_count").fetchone()
        from sqlalchemy import event

        engine = journal._storage.engine  # type: ignore[attr-defined]
        engine.dispose()

        @event.listens_for(engine, "connect")
        def limit(connection: sqlite3.Connection, _: object) -> None:
            connection.execute(f"PRAGMA max_page_count = {pages}")

        with pytest.raises(OSError, match="full; the study is kept") as told:
            for _ in range(200):
                journal.choose(KEYS, chosen)
        assert told.value.errno == errno.ENOSPC
        assert told.value.filename == str(tmp_path / "study" / NAME)
    with opened(tmp_path / "study", anew=False) as journal:
        assert journal.records[0] == record


def test_names_are_those_of_kubernetes(tmp_path: Path) -> None:
    assert study_name(tmp_path / "My Study_1", "ab12") == "tune-my-study-1-ab12"
    assert study_name(tmp_path / "Ü", "ab12") == "tune-ab12"
