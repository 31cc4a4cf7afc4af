"""A plan launched, its files read back and costed again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from planner.job.written_folder import write_folder
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.given import RULE, read_given
from planner.launch.contract import Launch
from planner.launch.folder import launch_folder
from planner.launch.read.found import Hints
from planner.predict.evaluate import Proposal

EXACT = 1e-9


@dataclass(frozen=True)
class Back:
    """What a folder says of its launch."""

    assessment: Assessment
    proposal: Proposal


def read_back(launch: Launch, folder: Path) -> Back:
    """Write the launch, read the folder as `planner check` does, and cost what was found."""
    write_folder(folder, launch_folder(launch).files, False)
    return read_folder(folder)


def read_folder(folder: Path) -> Back:
    """What a folder holds, costed."""
    given = read_given([str(folder)], Hints(), 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.proposal is not None
    return Back(found, found.proposal)


def assert_same(launch: Launch, back: Back) -> None:
    """The same plan, with the same memory on each stage and the same time."""
    plan, found = launch.plan, back.assessment.plan
    assert back.assessment.errors == ()
    assert [problem.text for problem in back.assessment.problems if problem.rule == RULE] == []
    assert found is not None
    assert found.degrees == plan.degrees
    # A mode may be read by another of its names.
    one, two = asdict(found.layout), asdict(plan.layout)
    assert [*one.pop("recomputed").values()] == [*two.pop("recomputed").values()]
    assert one == two
    assert _modules(back, found.recompute) == _modules(back, plan.recompute)
    assert found.schedule == plan.schedule
    assert (found.gbs, found.seq) == (plan.gbs, plan.seq)
    assert (found.cp_comm_type, found.cp_sizes) == (plan.cp_comm_type, plan.cp_sizes)
    assert found.optimizer_offload == plan.optimizer_offload
    assert found.activation_offload == plan.activation_offload
    assert found.activation_offload_fraction == plan.activation_offload_fraction
    job = back.assessment.job
    assert job is not None
    assert job.precision == launch.job.precision
    assert job.optimizer.states == launch.job.optimizer.states
    assert [stage.peak for stage in found.stages] == pytest.approx(
        [stage.peak for stage in plan.stages], rel=EXACT
    )
    assert found.step_time_s == pytest.approx(plan.step_time_s, rel=EXACT)


def _modules(back: Back, mode: str) -> tuple[str, ...]:
    """What a recompute mode runs again: several names may say the same."""
    job = back.assessment.job
    assert job is not None
    return tuple(sorted(job.framework.recompute_mode(mode).modules))
