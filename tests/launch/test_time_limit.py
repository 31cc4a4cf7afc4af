"""Runs that save before their time is over: what scripts ask for, how they go back to the queue,
what `check` says of others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.launch.check.assess import assess
from planner.launch.contract import Launch
from planner.launch.folder import launch_folder, write_folder
from planner.launch.read.found import Hints, Saving
from planner.launch.read.launch import read_launch
from planner.launch.time_limit import SIGNAL_S, limit_minutes, save_steps, stop_minutes
from tests.launch.test_round_trip import EXAMPLES, example

STOPPED = ("megatron-core", "megatron-bridge", "deepspeed", "accelerate", "trl")


def slurm(target: str) -> Launch:
    return replace(example(target), nodes_as="slurm")


def slow(launch: Launch, factor: float) -> Launch:
    """The launch with a step that takes longer."""
    step = launch.plan.step_time
    slower = step.model_copy(update={"low": factor * step.low, "high": factor * step.high})
    return replace(launch, plan=launch.plan.model_copy(update={"step_time": slower}))


@pytest.mark.parametrize("target", EXAMPLES)
@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_a_run_saves_and_ends_before_its_limit(target: str, factor: float) -> None:
    launch = slow(slurm(target), factor)
    limit_s, high_s = 60 * limit_minutes(launch), launch.plan.step_time.high
    assert save_steps(launch) * high_s < limit_s - SIGNAL_S
    assert 60 * stop_minutes(launch) + 2 * high_s < limit_s - SIGNAL_S
    text = launch_folder(launch).files["launch.sbatch"]
    hours, minutes = divmod(limit_minutes(launch), 60)
    assert f"#SBATCH --time={hours:02d}:{minutes:02d}:00\n" in text
    assert f"#SBATCH --signal=B:USR1@{SIGNAL_S}\n" in text
    assert (f'"${{STOP_AFTER_MINUTES-{stop_minutes(launch)}}}"' in text) == (target in STOPPED)
    assert not re.search(r"#SBATCH.*container", text)
    assert "--container-image" in text.partition("srun --kill")[0]


def test_without_a_limit_nothing_ends_a_run() -> None:
    launch = example("megatron-core")
    assert 'STOP_AFTER_MINUTES="${STOP_AFTER_MINUTES-}"' in launch_folder(launch).files["launch.sh"]
    assert save_steps(launch) >= save_steps(slurm("megatron-core"))


# --- the script, with stubs of Slurm --------------------------------------------------------

STUBS = {
    "scontrol": 'if [[ "$1" == requeue ]]; then echo "requeue $2" >> calls; else echo node1; fi',
    "sbatch": 'echo "sbatch $*" >> calls',
    # Runs the node's part in the background of nothing: what it is told, then so long a run.
    "srun": 'echo "srun $*" >> calls; eval "${DURING:-}"; exit "${ENDS:-0}"',
}


class Job:
    """A launch folder whose script is run with stubs."""

    def __init__(self, folder: Path, target: str = "deepspeed") -> None:
        self.folder, self.saved = folder / "run", folder / "saved"
        write_folder(self.folder, launch_folder(slurm(target)).files, force=False)
        for name, body in STUBS.items():
            stub = folder / "bin" / name
            stub.parent.mkdir(exist_ok=True)
            stub.write_text(f"#!/usr/bin/env bash\n{body}\n")
            stub.chmod(0o755)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder),
            "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]",
        }  # fmt: skip

    def start(self, *words: str, **given: str) -> subprocess.Popen[str]:
        environment = {**self.environment, **given}
        kept = {name: value for name, value in environment.items() if value != "UNSET"}
        return subprocess.Popen(["bash", "launch.sbatch", *words], cwd=self.folder, env=kept,
                                text=True, stderr=subprocess.PIPE)  # fmt: skip

    def run(self, *words: str, **given: str) -> tuple[int, str]:
        job = self.start(*words, **given)
        _, said = job.communicate(timeout=30)
        return job.returncode, said

    @property
    def calls(self) -> str:
        file = self.folder / "calls"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_what_is_missing_is_said_before_the_job_queues(tmp_path: Path) -> None:
    job = Job(tmp_path, "megatron-core")
    status, said = job.run(SLURM_JOB_ID="UNSET")
    assert (status, job.calls) == (2, "")
    assert "set MEGATRON_LM: folder of a Megatron-LM checkout" in said
    status, said = job.run(SLURM_JOB_ID="UNSET", MEGATRON_LM="/nowhere")
    assert (status, job.calls) == (2, "")
    assert "MEGATRON_LM: /nowhere/pretrain_gpt.py is not there" in said
    # In a container it may be.
    status, said = job.run("--preflight", SLURM_JOB_ID="UNSET", MEGATRON_LM="/opt", CONTAINER="x")
    assert (status, job.calls) == (0, "sbatch launch.sbatch --preflight\n"), said


def test_data_and_weights_that_are_not_there_are_named(job: Job) -> None:
    for given in ({"DATASET": "/nowhere"}, {"WARMUP_STEPS": "50"}):
        status, said = job.run(SLURM_JOB_ID="UNSET", **given)
        assert (status, job.calls) == (2, "")
        assert next(iter(given)) in said


def test_from_scratch_is_said_aloud(job: Job) -> None:
    assert "FROM SCRATCH" in job.run()[1]
    assert "FROM SCRATCH" not in job.run(PRETRAINED="org/model")[1]


@pytest.mark.parametrize("saves", [True, False])
def test_the_signal_puts_a_job_back_that_has_saved(job: Job, saves: bool) -> None:
    save = f"mkdir -p {job.saved}/step-1; " if saves else ""
    running = job.start(CHECKPOINTS=str(job.saved), DURING=f"{save}sleep 2")
    deadline = time.monotonic() + 20
    while "srun" not in job.calls and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(10)  # SIGUSR1
    _, said = running.communicate(timeout=30)
    assert ("requeue 7" in job.calls) == saves
    assert "Time is over" in said
    # The run was left to end by itself.
    assert running.returncode == 0


@pytest.mark.parametrize(("given", "again"), [
    ({"STOP_AFTER_MINUTES": "0"}, True), ({"STOP_AFTER_MINUTES": "9"}, False),
    ({"STOP_AFTER_MINUTES": ""}, False), ({"STOP_AFTER_MINUTES": "0", "ENDS": "3"}, False),
])  # fmt: skip
def test_a_run_that_ended_in_time_goes_on(job: Job, given: dict[str, str], again: bool) -> None:
    status, _ = job.run(CHECKPOINTS=str(job.saved), DURING=f"touch {job.saved}/step", **given)
    assert status == int(given.get("ENDS", "0"))
    assert ("requeue 7" in job.calls) == again


def test_a_container_is_srun_s_and_sees_what_is_named(job: Job, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    job.run(CONTAINER="img", DATASET=str(data), CHECKPOINTS=str(job.saved))
    assert f"--container-image=img --container-mounts={job.folder}:{job.folder},{data}:{data}," \
        f"{job.saved}:{job.saved} " in job.calls  # fmt: skip
    assert "declare" not in job.calls
    assert "one_node ()" in job.calls


# --- what check says of others --------------------------------------------------------------

SCRIPT = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --time={time}
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
    --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --seq-length 4096 \\
    --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --bf16 \\
    --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data --position-embedding-type rope \\
    --use-distributed-optimizer --lr 1e-4 --disable-bias-linear --normalization RMSNorm {more}
"""


def problems(folder: Path, when: str, more: str) -> list[Any]:
    file = folder / "train.sbatch"
    file.write_text(SCRIPT.format(time=when, more=more))
    assessed = assess(read_launch([str(file)], Hints()), "8xH100")
    assert assessed.plan is not None, assessed.problems
    return [item for item in assessed.problems if item.rule == "unsaved-at-limit"]


@pytest.mark.parametrize(("when", "more", "warned"), [
    ("04:00:00", "--train-iters 100000 --save x --save-interval 20000", True),
    ("04:00:00", "--train-iters 100000 --save x --save-interval 100", False),
    ("04:00:00", "--train-iters 100000", True),
    ("04:00:00", "--train-iters 50", False),
    ("10-00", "--train-iters 50000 --save x --save-interval 20000", False),
    ("04:00:00", "--train-iters 100000 --save x --save-interval 20000 "
     "--exit-duration-in-mins 220", False),
    ("04:00:00", "--train-iters 100000 --save x --save-interval 20000 "
     "--exit-duration-in-mins 250", True),
    ("04:00:00", "--train-iters 100000 --save x --save-interval 20000 --exit-signal-handler",
     False),
])  # fmt: skip
def test_check_warns_of_what_the_limit_costs(
    tmp_path: Path, when: str, more: str, warned: bool
) -> None:
    found = problems(tmp_path, when, more)
    assert [item.severity for item in found] == ["warning"] * warned
    if warned:
        assert "04:00:00" in found[0].text
        assert found[0].places == (f"{tmp_path / 'train.sbatch'}:4",)


@pytest.mark.parametrize(("text", "seconds"), [
    ("30", 1800), ("30:15", 1815), ("2:00:00", 7200), ("1-2", 93600), ("1-02:30", 95400),
    ("1-02:30:10", 95410),
])  # fmt: skip
def test_slurm_s_spellings_of_a_time(tmp_path: Path, text: str, seconds: float) -> None:
    file = tmp_path / "train.sbatch"
    file.write_text(SCRIPT.format(time=text, more="--train-iters 9"))
    saving = read_launch([str(file)], Hints()).saving
    assert isinstance(saving, Saving)
    assert saving.limit_s == seconds


# --- preflight ------------------------------------------------------------------------------

TORCH = """
__version__ = "{torch}"
bfloat16 = None
class cuda:
    device_count = staticmethod(lambda: 8)
    class get_device_properties:
        def __init__(self, _):
            self.name, self.total_memory = "NVIDIA H100 80GB HBM3", 80 * 2**30
"""


@pytest.mark.parametrize(("core", "said"), [
    ("0.19.2", ""), ("0.18.1", "megatron.core is 0.18.1; wanted: 0.19"),
    (None, "megatron.core does not load"), ("0.20.0", "note: megatron.core is 0.20.0"),
])  # fmt: skip
def test_the_preflight_asks_for_the_framework_and_its_version(
    tmp_path: Path, core: str | None, said: str
) -> None:
    made = {"torch/__init__.py": TORCH.format(torch="2.7.0"), "torch/distributed.py": "",
            "transformer_engine.py": "__version__ = '2.9'"}  # fmt: skip
    if core is not None:
        made["megatron/core/__init__.py"] = f"__version__ = '{core}'"
    for name, text in made.items():
        file = tmp_path / "lm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    launch = example("megatron-core")
    file = tmp_path / "preflight.py"
    text = launch_folder(launch).files["preflight.py"]
    # The exchange needs GPUs.
    file.write_text(
        text.replace(
            "seconds, ranks = all_reduce()", "sys.exit(0)\n    seconds, ranks = all_reduce()"
        )
    )
    given = {"PYTHONPATH": str(tmp_path / "lm"), "MEGATRON_LM": str(tmp_path / "lm"), "RANK": "0",
             "WORLD_SIZE": str(launch.plan.degrees.gpus), "LOCAL_WORLD_SIZE": "8"}  # fmt: skip
    done = subprocess.run([sys.executable, str(file)], env=given, capture_output=True, text=True,
                          check=False)  # fmt: skip
    bad = bool(said) and not said.startswith("note")
    assert (done.returncode == 1) == bad, done.stderr
    assert said in done.stderr + done.stdout
