"""Plans of reinforcement learning as launch files, which are read back equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.launch.check.rl import rl_layout, rl_request
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch
from planner.launch.rl import WRITERS, RlLaunch, rl_files
from tests.launch.rl_plans import CRITIC, LENGTHS, MODEL, drawn

VARIABLES = {
    "MODEL_PATH": MODEL, "CRITIC_PATH": CRITIC, "TRAIN_FILES": "a", "VAL_FILES": "b",
    "NEMO_RL": "/nemo", "DATASET": "d", "REWARD_FUNCS": "f",
}  # fmt: skip
SEEDS = range(60)


def written(launch: RlLaunch, folder: Path) -> list[Path]:
    files = rl_files(launch)
    for name, text in files.items():
        (folder / name).write_text(text)
    return [folder / name for name in files if not name.endswith(".md")]


def read_back(launch: RlLaunch, folder: Path) -> Found:
    paths = written(launch, folder)
    script = [path for path in paths if path.suffix == ".sh"]
    hints = Hints(
        model=MODEL, lengths=LENGTHS, environment=VARIABLES, gpus=launch.layout.trainer_gpus
    )
    return read_launch(script, hints)


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_written_reads_back_equal(framework: str, seed: int, tmp_path: Path) -> None:
    launch = drawn(framework, seed)
    found = read_back(launch, tmp_path)
    assert [one for one in found.problems if one.severity in ("error", "missing")] == []
    assert [one for one in found.problems if one.rule == "not-predictable"] == []
    rl = found.rl
    assert rl is not None
    request = rl_request(found, rl, launch.request.trainer.gpus, None)
    job, own = request.resolve(), launch.job
    layout = rl_layout(found, rl, request, job)
    assert layout.trainer.degrees == launch.degrees
    assert layout.trainer.recompute == launch.layout.trainer.recompute
    assert layout.trainer.job.framework.name == own.trainer.framework.name
    tuning, wanted = layout.trainer.job.tuning, own.trainer.tuning
    assert (tuning.method, tuning.rank, tuning.targets) == (
        wanted.method, wanted.rank, wanted.targets,
    )  # fmt: skip
    assert (layout.engine, layout.way) == (launch.layout.engine, launch.layout.way)
    assert (layout.placement, layout.staleness, layout.streams, layout.trainer_leaves) == (
        launch.layout.placement, launch.layout.staleness, launch.layout.streams,
        launch.layout.trainer_leaves or own.framework.trainer_leaves,
    )  # fmt: skip
    assert job.algorithm == own.algorithm
    assert job.rollout == own.rollout
    assert (job.minibatches, job.epochs) == (own.minibatches, own.epochs)
    assert (job.reference, job.old_logprobs) == (own.reference, own.old_logprobs)
    assert (job.critic is None) == (own.critic is None)
    assert replace(job.engine, kv_share=None, sequences=None) == replace(
        own.engine, kv_share=None, sequences=None
    )
    assert job.trainer.samples.packing == own.trainer.samples.packing
    assert job.trainer.seq == own.trainer.seq
