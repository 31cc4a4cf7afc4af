"""Launcher scripts: shell that bash accepts, YAML that says nodes, GPUs and the same command."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from typing import Any, get_args

import pytest
import yaml

from planner.launch.contract import Launch, NodesAs, RunCommand, needed
from planner.launch.dialects.megatron.writer import command
from planner.launch.launchers import launcher_files
from tests.launch.plans import bridge, megatron

CASES = ("dense", "uneven", "experts", "interleaved-uneven")
NODES_AS = get_args(NodesAs)


def script(launch: Launch, nodes_as: NodesAs, item: RunCommand | None = None) -> str:
    """The bash lines inside whatever starts the job."""
    launch = replace(launch, nodes_as=nodes_as)
    name, text = next(iter(launcher_files(launch, item or command(launch), {}).items()))
    if name.endswith((".sh", ".sbatch")):
        return text
    document = list(yaml.safe_load_all(text))[-1]
    if nodes_as == "skypilot":
        return str(document["run"])
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return str(pod["containers"][0]["args"][0])


def arguments(text: str) -> list[str]:
    """The words of the array, as bash has them."""
    inner = re.search(r"ARGUMENTS=\(\n(.*?)\n\s*\)", text, re.DOTALL)
    assert inner is not None
    return shlex.split(inner[1], comments=True)


@pytest.mark.parametrize("nodes_as", NODES_AS)
@pytest.mark.parametrize("name", CASES)
def test_bash_reads_the_script_and_finds_every_argument(name: str, nodes_as: NodesAs) -> None:
    launch = megatron(name)
    text = script(launch, nodes_as)
    run = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert arguments(text) == list(command(launch).argv[1:])
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in text
    assert '"${MEGATRON_LM}/pretrain_gpt.py"' in text
    assert f"--nproc-per-node {launch.gpus_per_node}" in text


def test_one_node_needs_no_address() -> None:
    text = script(megatron("dense"), "torchrun")
    assert "--standalone" in text
    assert "MASTER_ADDR" not in text
    several = script(megatron("uneven"), "torchrun")
    assert "--nnodes 8" in several
    assert "${NODE_RANK:?" in several


_JAX = {"nodes": "NNODES", "rank": "NODE_RANK", "address": "COORDINATOR", "port": "PORT"}


@pytest.mark.parametrize("nodes_as", NODES_AS)
def test_a_program_without_a_process_launcher_is_told_where_the_nodes_are(
    nodes_as: NodesAs,
) -> None:
    item = RunCommand(("-m", "train", "a.yml"), launcher="python", node_variables=_JAX)
    text = script(megatron("uneven"), nodes_as, item)
    run = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert re.search(r"NNODES=8 \\\n\s+NODE_RANK=\S+ \\\n\s+COORDINATOR=\S+ \\\n\s+PORT=\S+", text)
    assert re.search(r"python3 \\\n\s+-m train \\\n", text)
    alone = script(megatron("dense"), nodes_as, item)
    assert "COORDINATOR" not in alone


def test_slurm_directives() -> None:
    text = script(megatron("uneven"), "slurm")
    assert "#SBATCH --nodes=8\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    assert text.index("#SBATCH --output") < text.index("set -euo pipefail")


def test_job_set() -> None:
    launch = replace(bridge("uneven"), nodes_as="k8s")
    found = command(launch)
    files = {"a.py": "x = 1\n\ny = 2\n", "b.txt": "    indented\nlast\n\n"}
    text = launcher_files(launch, found, files)["jobset.yaml"]
    configuration, job_set = yaml.safe_load_all(text)
    assert configuration["data"] == files
    job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == job["completions"] == 8
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert {volume_mount["name"] for volume_mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    name = job_set["metadata"]["name"]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert f"{name}-node-0-0.{name}" in container["args"][0]
    # Kubernetes itself expands $(NAME) in arguments.
    assert "$(" not in container["args"][0]


def node_of(train_job: dict[str, Any]) -> dict[str, Any]:
    """What a TrainJob changes in its runtime's pods."""
    (patch,) = train_job["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    pod: dict[str, Any] = job["template"]["spec"]["template"]["spec"]
    return pod


def test_train_job() -> None:
    """Fields of trainer.kubeflow.org/v1alpha1, TrainJobSpec and RuntimePatch."""
    launch = replace(bridge("uneven"), nodes_as="k8s")
    found = command(launch)
    files = {"a.py": "x = 1\n", "model/config.json": "{}\n"}
    text = launcher_files(launch, found, files)["trainjob.yaml"]
    configuration, job = yaml.safe_load_all(text)
    assert configuration["data"] == {"a.py": "x = 1\n", "model.config.json": "{}\n"}
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert set(job["spec"]) == {"runtimeRef", "trainer", "runtimePatches"}
    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    trainer = job["spec"]["trainer"]
    assert set(trainer) <= {
        "image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode",
    }  # fmt: skip
    assert trainer["numNodes"] * trainer["numProcPerNode"] == launch.plan.degrees.gpus
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}
    # The plugin for torch refuses variables that it sets itself.
    assert not any(env["name"].startswith("PET_") for env in trainer.get("env", ()))
    (script,) = trainer["args"]
    for name in ("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"):
        assert f'"${{{name}}}"' in script
    assert arguments(script) == list(found.argv[1:])
    pod = node_of(job)
    (container,) = pod["containers"]
    assert set(container) == {"name", "volumeMounts"}
    names = {mount["name"] for mount in container["volumeMounts"]}
    assert names == {volume["name"] for volume in pod["volumes"]}
    (configured,) = (volume for volume in pod["volumes"] if volume["name"] == "configuration")
    items = configured["configMap"]["items"]
    assert {item["key"]: item["path"] for item in items} == {
        "a.py": "a.py", "model.config.json": "model/config.json",
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_kubernetes_jobs_run_the_same(name: str) -> None:
    launch = replace(megatron(name), nodes_as="k8s")
    files = launcher_files(launch, command(launch), {})
    (train_job,) = yaml.safe_load_all(files["trainjob.yaml"])
    text = train_job["spec"]["trainer"]["args"][0]
    run = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert arguments(text) == arguments(script(launch, "k8s"))


def test_keys_of_a_config_map() -> None:
    """Kubernetes takes letters, digits, dots, dashes and underscores."""
    launch = replace(megatron("dense"), nodes_as="k8s")
    files = launcher_files(launch, command(launch), {"model/config.json": "{}\n"})
    for name in ("jobset.yaml", "trainjob.yaml"):
        text = files[name]
        configuration, _ = yaml.safe_load_all(text)
        assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in configuration["data"])


def test_skypilot_task() -> None:
    launch = replace(megatron("experts"), nodes_as="skypilot")
    task = yaml.safe_load(launcher_files(launch, command(launch), {})["sky.yaml"])
    assert set(task) == {
        "name", "num_nodes", "resources", "workdir", "envs", "file_mounts", "run",
    }  # fmt: skip
    # SkyPilot refuses a task until what is null is given.
    assert task["envs"] == {"BUCKET": None, "MEGATRON_LM": None}
    assert task["num_nodes"] == 8
    assert task["resources"]["accelerators"] == "H100:8"


def test_a_variable_that_is_not_set_is_asked_for() -> None:
    asked = needed("DATA", "where the user's data lie")
    found = RunCommand(argv=("-m", "x"), variables=(asked,))
    text = script(megatron("dense"), "torchrun", found)
    run = subprocess.run(
        ["bash"], input=text, capture_output=True, text=True, check=False, env={"PATH": "/bin"}
    )
    assert run.returncode == 2
    assert "set DATA: where the user's data lie" in run.stderr


def test_a_module_is_started_by_its_name() -> None:
    found = RunCommand(argv=("-m", "torchtitan.train", "--module", "llama3"))
    text = script(megatron("dense"), "torchrun", found)
    assert "    -m torchtitan.train \\\n" in text
    assert arguments(text) == ["--module", "llama3"]
    assert "ARGUMENTS=()" in script(megatron("dense"), "torchrun", RunCommand(argv=("train.py",)))


def test_accelerate_launches() -> None:
    found = RunCommand(
        argv=("train.py", "--config", "a b.json"),
        launcher="accelerate",
        launcher_arguments=("--config_file", "accelerate.yaml"),
        environment={"TOKENIZERS_PARALLELISM": ("false", "quiet")},
    )
    text = script(megatron("uneven"), "slurm", found)
    wanted = ("accelerate launch", "--num_machines 8", "--num_processes 64",
              "--config_file accelerate.yaml", "export TOKENIZERS_PARALLELISM=false")  # fmt: skip
    assert all(word in text for word in wanted)
    assert text.index("--config_file") < text.index("train.py")
    assert arguments(text) == ["--config", "a b.json"]
