"""Launch folders for TRL: SFT, preferences and reward models."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.folder import launch_folder
from planner.launch.plans import writer_of
from planner.launch.read.document import LIMIT_ALONE
from planner.launch.read.found import Hints
from planner.launch.registry import targets
from tests.launch.round_trip import Back, assert_same
from tests.launch.torch_contract import assert_complete
from tests.launch.torch_plans import Case
from tests.launch.trl_cases import CASES, NAMES, as_run


@pytest.mark.parametrize(("profile", "item"), CASES, ids=NAMES)
def test_there_and_back(profile: str, item: Case, tmp_path: Path) -> None:
    launch = as_run(profile, item)
    writer = writer_of(targets()["trl"])
    assert_complete(writer, launch)
    files = writer.files(launch)
    program = next(text for name, text in files.items() if name.startswith("train_"))
    ast.parse(program)
    assert max(map(len, program.splitlines())) <= 100
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(launch).files, force=False)
    given = read_given([str(folder)], Hints(lengths=launch.request.lengths), 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.proposal is not None, found.problems
    assert_same(launch, Back(found, found.proposal))
    assert found.found.unknown == ()
    # Of samples that are padded, how long they are is told with --lengths alone.
    left_out = [setting.key for setting, _ in found.found.unmodelled]
    assert set(left_out) <= {LIMIT_ALONE}
    assert found.job is not None
    assert found.job.objective == launch.job.objective
    assert found.job.tuning.frozen == launch.job.tuning.frozen
