"""What is the user's: variables with safe defaults, a dry run, a preflight, all run with stubs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.job.models.hf_config import model_from_hf_config
from planner.job.written_folder import write_folder
from planner.launch.contract import NodesAs, run_name
from planner.launch.dialects.nanotron.reader import unknown_keys
from planner.launch.folder import launch_folder
from planner.launch.languages.text import Text
from planner.launch.plans import writer_of
from planner.launch.read.document import yaml_document
from planner.launch.registry import targets
from tests.launch.test_round_trip import EXAMPLES, example

# The process launchers print what they are called with; scontrol prints more than a pipe holds.
STUBS = {
    "torchrun": 'echo torchrun "$@"',
    "accelerate": 'echo accelerate "$@"',
    "env": 'echo env "$@"',
    "srun": 'shift 2; SLURM_NODEID=0 "$@"',
    "scontrol": "for i in $(seq 1 100000); do echo node$i; done",
}
SLURM = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "node[1-9]"}
NODE = {"NODE_RANK": "0", "MASTER_ADDR": "first"}
# Variables that must be set -> a file that is there where they are right.
NEEDED = {
    "MEGATRON_LM": "pretrain_gpt.py", "HF_ASSETS": "tokenizer.json", "NANOTRON": "run_train.py",
    "DATASET_DIR": "dataset_info.json",
}  # fmt: skip
# What a run that asks for it is given; checkpoints of real data are below the home directory.
NAMED = {"DATASET": "mine", "PRETRAINED": "org/model"}
HOME = {"HOME": "/home/me"}
SCRIPTS: Mapping[NodesAs, str] = {"slurm": "launch.sbatch", "torchrun": "launch.sh"}

Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs a launch folder's script with stubs: what reached the process launcher."""
    for name, body in STUBS.items():
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/usr/bin/env bash\n{body}\n")
        stub.chmod(0o755)

    for variable, name in NEEDED.items():
        (tmp_path / variable).mkdir()
        (tmp_path / variable / name).touch()
    always = {variable: str(tmp_path / variable) for variable in NEEDED} | NODE

    def run(target: str, nodes_as: NodesAs, *words: str, **given: str) -> str:
        folder = tmp_path / "run"
        launch = replace(example(target), nodes_as=nodes_as)
        write_folder(folder, launch_folder(launch).files, folder.exists())
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        needed = {entry.name for entry in writer_of(targets()[target]).command(launch).needed}
        named = {name: value for name, value in NAMED.items() if name in needed}
        named |= HOME if named else {}
        done = subprocess.run(
            ["bash", SCRIPTS[nodes_as], *words], cwd=folder, capture_output=True, text=True,
            env={**always, **named, "PATH": path, **given}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("nodes_as", SCRIPTS)
@pytest.mark.parametrize("target", EXAMPLES)
def test_a_dry_run_prints_the_command_outside_of_a_job(
    target: str, nodes_as: NodesAs, start: Start
) -> None:
    job = SLURM if nodes_as == "slurm" else {}
    planned = start(target, nodes_as, **job).split()
    shown = start(target, nodes_as, "--dry-run").split()
    assert planned[0] in ("torchrun", "accelerate", "env")
    assert len(shown) == len(planned)
    assert "preflight.py" not in shown


@pytest.mark.parametrize("target", EXAMPLES)
def test_the_preflight_takes_the_program_s_place(target: str, start: Start) -> None:
    words = start(target, "slurm", "--preflight", **SLURM).split()
    assert words[-1] == "preflight.py"
    if words[0] == "env":
        assert {"JAX_COORDINATOR_IP=node1", f"NNODES={example(target).nodes}"} <= {*words}
        return
    if example(target).nodes == 1:
        assert "--standalone" in words
        return
    assert "node1" in words
    nodes = words[words.index("--nnodes" if "--nnodes" in words else "--num_machines") + 1]
    assert nodes == str(example(target).nodes)


def test_megatron_s_variables(start: Start, tmp_path: Path) -> None:
    data, weights = tmp_path / "d", tmp_path / "weights"
    data.with_suffix(".bin").touch()
    weights.mkdir()
    trial = start("megatron-core", "torchrun")
    assert "--mock-data" in trial
    assert "--save" not in trial
    real = start("megatron-core", "torchrun", DATA_PATH=str(data), TOKENIZER="/t", TRAIN_STEPS="9",
                 HOME="/home/me", PRETRAINED=str(weights), WARMUP_STEPS="3",
                 STOP_AFTER_MINUTES="60")  # fmt: skip
    saved = f"/home/me/checkpoints/{run_name(example('megatron-core'))}"
    for words in (f"--pretrained-checkpoint {weights}", "--lr-warmup-iters 3",
                  "--exit-duration-in-mins 60", f"--data-path {data}", "--tokenizer-model /t",
                  "--train-iters 9", f"--save {saved}",
                  f"--load {saved}", "--ckpt-format torch_dist"):  # fmt: skip
        assert words in real
    assert "--mock-data" not in real
    assert "--save" not in start("megatron-core", "torchrun", DATA_PATH=str(data), CHECKPOINTS="")
    assert "--pretrained-checkpoint" not in trial
    assert "--exit-duration-in-mins" not in trial


def test_nanotron_s_variables(tmp_path: Path) -> None:
    """The program beside the file hands run_train.py what the environment says."""
    write_folder(tmp_path / "run", launch_folder(example("nanotron")).files, False)
    said = tmp_path / "said.yaml"
    stub = "import pathlib, shutil, sys\nshutil.copy(sys.argv[2], pathlib.Path(__file__).parent / "
    (tmp_path / "run_train.py").write_text(stub + "'said.yaml')\n")

    def config(**given: str) -> dict[str, Any]:
        words = ["train.py", str(tmp_path / "run_train.py"), "--config-file", "nanotron.yaml"]
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path / "run", env={**os.environ, **given},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = yaml.safe_load(said.read_text())
        assert [*unknown_keys(yaml_document(Text.made(said.read_text()), "said"))] == []
        return found

    trial = config(TRAIN_STEPS="50")
    assert trial["data_stages"][0]["data"]["dataset"] is None
    assert trial["checkpoints"]["checkpoint_interval"] > trial["tokens"]["train_steps"]
    folder = tmp_path / "saved"
    real = config(
        DATASET="/d", TOKENIZER="/t", TRAIN_STEPS="5", LEARNING_RATE="1e-3", CHECKPOINTS=str(folder)
    )
    assert real["data_stages"][0]["data"]["dataset"] == {"dataset_folder": "/d"}
    assert real["tokenizer"]["tokenizer_name_or_path"] == "/t"
    assert real["tokens"]["train_steps"] == 5
    assert "std" in real["model"]["init_method"]
    weighted = config(PRETRAINED="/w", WARMUP_STEPS="7", TRAIN_STEPS="50")
    assert weighted["model"]["init_method"] == {"path": "/w"}
    assert weighted["optimizer"]["learning_rate_scheduler"]["lr_warmup_steps"] == 7
    assert real["optimizer"]["learning_rate_scheduler"]["learning_rate"] == 1e-3
    assert real["optimizer"]["learning_rate_scheduler"]["lr_warmup_steps"] < 5
    assert real["checkpoints"]["checkpoints_path"] == str(folder)
    assert real["checkpoints"].get("resume_checkpoint_path") is None
    folder.mkdir()
    (folder / "latest.txt").write_text("10")
    again = config(CHECKPOINTS=str(folder))
    assert again["checkpoints"]["resume_checkpoint_path"] == str(folder)


@pytest.mark.parametrize("target", EXAMPLES)
def test_every_folder_says_what_is_the_user_s(target: str) -> None:
    """Data, checkpoints and steps are variables at the top of each script."""
    text = launch_folder(replace(example(target), nodes_as="slurm")).files["launch.sbatch"]
    top = text.partition("one_node()")[0]
    for name in ("CHECKPOINTS", "TRAIN_STEPS"):
        assert f"export {name}=" in top
    assert ":+${HOME}/checkpoints/${RUN_NAME}}" in top
    assert "export DATA_PATH=" in top or "export DATASET=" in top


@pytest.mark.parametrize("target", EXAMPLES)
def test_scripts_of_the_folder_are_python(target: str) -> None:
    for name, text in launch_folder(example(target)).files.items():
        if name.endswith(".py"):
            ast.parse(text)


def test_torchtitan_reads_nothing_from_the_internet() -> None:
    files = launch_folder(example("torchtitan")).files
    assert "sample_data/samples.jsonl" in files
    assert not any('"c4"' in text for text in files.values())


def test_a_config_json_comes_out_as_it_is_in_every_dialect() -> None:
    """The first finding: a base of 1e6 and an epsilon of 1e-6 came out as 1e4 and 1e-5."""
    config: dict[str, Any] = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
        "vocab_size": 32000, "max_position_embeddings": 8192, "rope_theta": 1e6,
        "rms_norm_eps": 1e-6, "initializer_range": 0.01,
    }  # fmt: skip
    model = model_from_hf_config(config, "config.json")
    said = {
        "megatron-core": ("--rotary-base 1000000", "--norm-epsilon 1e-06", "-std 0.01"),
        "megatron-bridge": ("rotary_base=1000000", "epsilon=1.0e-06", "std=0.01"),
        "torchtitan": ("ROPE_THETA, NORM_EPS = 1000000.0, 1e-06", "std=0.01"),
        "deepspeed": ('"rope_theta": 1000000.0', '"rms_norm_eps": 1e-06', "0.01"),
        "accelerate": ('"rope_theta": 1000000.0', '"rms_norm_eps": 1e-06', "0.01"),
        "nanotron": ("rope_theta: 1000000.0", "rms_norm_eps: 1.0e-06", "std: 0.01"),
        "llamafactory": ('"rope_theta": 1000000.0', '"rms_norm_eps": 1e-06', "0.01"),
        "axolotl": ('"rope_theta": 1000000.0', '"rms_norm_eps": 1e-06', "0.01"),
        "trl": ('"rope_theta": 1000000.0', '"rms_norm_eps": 1e-06', "0.01"),
        "automodel": ('"rope_theta": 1000000.0', '"rms_norm_eps": 1e-06', "0.01"),
        "maxtext": ("rope_max_timescale: 1000000", "layer_epsilon: 1.0e-06", "deviation of 0.01"),
    }
    assert set(said) == set(EXAMPLES)
    for target, texts in said.items():
        launch = example(target)
        folder = launch_folder(replace(launch, job=replace(launch.job, model=model)))
        everything = "\n".join(folder.files.values())
        for text in texts:
            assert text in everything, (target, text)
