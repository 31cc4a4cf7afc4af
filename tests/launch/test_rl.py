"""Plans of reinforcement learning as launch files, which are read back equal."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from planner.cli.program import planner_command
from planner.job.errors import UsageError
from planner.job.tuning import read_tuning
from planner.launch.check.rl import rl_check, rl_layout, rl_request
from planner.launch.dialects.hf.sampling import sampling_names
from planner.launch.dialects.hf.unmodelled import hf_names
from planner.launch.dialects.rl.settings import table
from planner.launch.dialects.rl.writer import settings_of
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch
from planner.launch.rl import WRITERS, RlLaunch, rl_files, writer_of
from planner.predict.rl.step import rl_step
from planner.search.rl.plan_file import to_json
from planner.search.rl.plans import one_plan
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
    adapted = tuning.adapted(own.policy)
    assert (tuning.method, tuning.rank, tuning.dropout, tuning.whole, adapted) == (
        wanted.method, wanted.rank, wanted.dropout, wanted.whole, wanted.adapted(own.policy),
    )  # fmt: skip
    assert layout.trainer.job.framework.mode == own.trainer.framework.mode
    assert layout.trainer.job.attention == own.trainer.attention
    engine, wanted_engine = layout.engine, launch.layout.engine
    assert (engine, layout.way) == (wanted_engine, launch.layout.way)
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


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize("seed", range(21))
def test_files_are_predicted_as_the_plan_that_they_run(
    framework: str, seed: int, tmp_path: Path
) -> None:
    launch = drawn(framework, seed)
    found = read_back(launch, tmp_path)
    check = rl_check(found, launch.request.trainer.gpus, None)
    planned = rl_step(launch.job, launch.layout)
    assert check.step is not None
    seconds = {phase.name: phase.seconds for phase in planned.phases}
    assert {phase.name: phase.seconds for phase in check.step.phases} == pytest.approx(
        seconds, rel=1e-9
    )
    assert check.step.step_s == pytest.approx(planned.step_s, rel=1e-9)
    peaks = {side: phase.peak_bytes for side, phase in planned.peaks.items()}
    assert {side: phase.peak_bytes for side, phase in check.step.peaks.items()} == pytest.approx(
        peaks, rel=1e-9
    )


def test_every_setting_is_one_that_the_framework_has() -> None:
    """verl's own configuration, which Hydra refuses to extend without a plus; NeMo-RL's, whose
    arguments of vLLM are free; GRPOConfig and RLOOConfig of TRL."""
    for seed in SEEDS:
        verl = {key for key in settings_of(drawn("verl", seed)) if key[0] != "+"}
        assert verl - table("verl").keys() - {"model_engine"} == set()
        nemo = settings_of(drawn("nemo-rl", seed))
        free = ("policy.generation.vllm_kwargs.",)
        assert {key for key in nemo if not key.startswith(free)} <= table("nemo").keys()
        trl = settings_of(drawn("trl", seed)).keys()
        assert trl <= sampling_names() | hf_names("trainer") | {"use_peft", *_ADAPTERS}


_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
             "lora_modules_to_save", "attn_implementation", "dtype")  # fmt: skip


def test_nothing_that_a_name_holds_is_run(tmp_path: Path) -> None:
    launch = drawn("verl", 1)
    policy = launch.job.policy.model_copy(update={"name": "x$(touch hit)`id`\n'\""})
    trainer = replace(launch.job.trainer, model=policy)
    named = replace(launch, job=replace(launch.job, trainer=trainer))
    (tmp_path / "run.sh").write_text(rl_files(named)["run.sh"])
    bash = tmp_path / "bin"
    bash.mkdir()
    (bash / "python3").write_text("#!/bin/sh\nexit 0\n")
    (bash / "python3").chmod(0o755)
    environment = {**VARIABLES, "PATH": f"{bash}:/usr/bin:/bin"}
    subprocess.run(["bash", "run.sh"], cwd=tmp_path, env=environment, check=True)
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize(
    ("framework", "change", "says"),
    [
        ("verl", {"staleness": 0, "placement": "separate"}, "synchronous step"),
        ("trl", {"trainer_leaves": True}, "moved off the GPU"),
        ("trl", {"staleness": 1}, "older weights"),
    ],
)
def test_what_a_framework_cannot_run_is_refused(
    framework: str, change: dict[str, Any], says: str
) -> None:
    launch = drawn(framework, 0)
    with pytest.raises(UsageError, match=says):
        rl_files(replace(launch, layout=replace(launch.layout, **change)))


@pytest.mark.parametrize(
    ("framework", "train", "says"),
    [
        ("verl", "lora:rank=8,targets=all-linear,dropout=0.1", "adapters with dropout"),
        ("nemo-rl", "lora:rank=8,targets=q+v", "adapters with dropout"),
        ("trl", "lora:rank=8,targets=q", None),
    ],
)
def test_adapters_are_written_as_planned_or_refused(
    framework: str, train: str, says: str | None
) -> None:
    launch = drawn(framework, 0)
    trainer = replace(launch.job.trainer, tuning=read_tuning(train))
    other = replace(launch, job=replace(launch.job, trainer=trainer))
    if says is None:
        assert "lora_target_modules: [q_proj]" in rl_files(other)["trl.yaml"]
        return
    with pytest.raises(UsageError, match=says):
        rl_files(other)


@pytest.mark.parametrize("framework", ["verl", "nemo-rl"])
def test_context_parallelism_exchanges_as_the_framework_runs_it(framework: str) -> None:
    """Neither has a setting for Megatron's exchange, which is a ring unless it is told."""
    profile = {"verl": "megatron-core", "nemo-rl": "megatron-bridge"}[framework]
    request = drawn(framework, 0).request
    trainer = request.trainer.model_copy(update={"framework": profile, "packing": None})
    plain = request.model_copy(update={"trainer": trainer, "token_limit": 8192})
    assert plain.resolve().trainer.context_kinds == ("p2p",)
    asked = trainer.model_copy(update={"cp_comm_type": "a2a"})
    with pytest.raises(UsageError, match=r"--cp-comm-type a2a: .* with p2p"):
        plain.model_copy(update={"trainer": asked}).resolve()


def test_a_number_of_sequences_that_trl_does_not_take_is_refused() -> None:
    launch = drawn("trl", 1)
    engine = replace(launch.layout.engine, sequences=launch.layout.engine.sequences + 1)
    with pytest.raises(UsageError, match="sequences at once, which TRL does not take"):
        rl_files(replace(launch, layout=replace(launch.layout, engine=engine)))


def test_trl_shards_with_fsdp_or_deepspeed_alone() -> None:
    """DDP holds every weight whole: a search has no shards of it, and none are written."""
    plain = (drawn("trl", seed) for seed in SEEDS)
    launch = next(one for one in plain if one.job.trainer.framework.name == "hf-transformers")
    assert launch.job.trainer.framework.parallelism.zero_stages == (0,)
    trainer = launch.layout.trainer
    degrees = trainer.degrees.model_copy(update={"zero": 3})
    sharded = replace(launch.layout, trainer=replace(trainer, degrees=degrees))
    with pytest.raises(UsageError, match="shards without FSDP or DeepSpeed"):
        rl_files(replace(launch, layout=sharded))


def test_other_frameworks_are_not_written() -> None:
    with pytest.raises(UsageError, match="nothing writes"):
        writer_of("slime")


def test_the_command_line_writes_a_folder_that_is_checked(tmp_path: Path) -> None:
    launch = drawn("verl", 0)
    step = rl_step(launch.job, launch.layout)
    result = one_plan(launch.request, launch.job, step)
    plans, folder = tmp_path / "plans.json", tmp_path / "run"
    plans.write_text(to_json(result))
    invoke = CliRunner().invoke
    done = invoke(
        planner_command, ["launch", str(plans), "1", "--framework", "verl", "-o", str(folder)]
    )
    assert done.exit_code == 0, done.output
    checked = invoke(planner_command, ["check", str(folder), "--json"])
    document = json.loads(checked.stdout)
    assert document["rl"]["prediction"]["step_time_s"] == pytest.approx(step.step_s)
    other = invoke(planner_command, ["launch", str(plans), "1", "--framework", "trl", "-o", "x"])
    assert other.exit_code == 2
    assert "--rl-framework trl" in other.output
