"""Numbers of nodes, GPUs and processes: those of all launchers agree, with the degrees and GPUs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.load import parse_gpus
from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.check.world import started, world_problems
from planner.launch.contract import NodesAs
from planner.launch.folder import launch_folder
from planner.launch.read.found import Hints, Problem
from tests.cli.conftest import run_cli
from tests.launch.check.conftest import SMALL, Read, Write
from tests.launch.check.test_configurations import nanotron
from tests.launch.plans import megatron
from tests.launch.test_round_trip import EXAMPLES, example

DIRECTIVES = "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
TORCHRUN = "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py"


def slurm(command: str = TORCHRUN, directives: str = DIRECTIVES, more: str = "") -> str:
    """A Slurm script on two nodes."""
    return (
        f"#!/bin/bash\n{directives}export CUDA_DEVICE_MAX_CONNECTIONS=1\n{command} {SMALL} {more}\n"
    )


def found_errors(read: Read, text: str, gpus: str = "16xH100") -> list[str]:
    problems = assess(read(text, "launch.sh"), gpus).errors
    return [f"{problem.rule}: {problem.text}" for problem in problems]


@pytest.mark.parametrize(
    "text",
    [
        slurm(),
        slurm("srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 pretrain_gpt.py"),
        slurm("srun --ntasks-per-node=8 python pretrain_gpt.py"),
        slurm("srun -N 2 -n 16 python pretrain_gpt.py"),
        slurm("mpirun -np 16 python pretrain_gpt.py"),
        slurm("mpirun -np 16 -N 8 python pretrain_gpt.py"),
        slurm("deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py"),
        slurm("accelerate launch --num_machines 2 --num_processes 16 pretrain_gpt.py"),
        slurm("torchrun --nnodes 1:2 --nproc-per-node=8 pretrain_gpt.py"),
        slurm(directives="#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\n#SBATCH --ntasks-per-node=1\n"),
        slurm(directives="#SBATCH --exclusive\n#SBATCH -N2 --gpus-per-node 8 # whole nodes\n"),
        slurm(directives="#PBS -l select=2:ncpus=96:mpiprocs=8:ngpus=8\n"),
        slurm(directives="#PBS -l walltime=1:00:00 -l nodes=2:ppn=1\n"),
        # One process of MPI a node, around torchrun; MPI's own number in place of Slurm's.
        slurm(f"mpirun -np 2 -npernode 1 bash -c '{TORCHRUN} {SMALL}' #"),
        # One task a node, around a launcher that says elsewhere how many processes it starts.
        slurm("srun --ntasks-per-node=1 torchrun --nproc-per-node $HOW_MANY pretrain_gpt.py"),
        slurm("srun --ntasks-per-node=1 accelerate launch --config_file fsdp.yaml pretrain_gpt.py"),
        slurm("mpirun -np 16 -N 8 python pretrain_gpt.py", f"{DIRECTIVES}#SBATCH --ntasks=2\n"),
        # One step of several on a part of the nodes.
        slurm(
            "srun -N 1 --ntasks-per-node=8 python pretrain_gpt.py",
            "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n",
        ),
        slurm(
            f"srun -N 1 bash -c 'torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py {SMALL}' #",
            "#SBATCH --nodes=3\n",
        ),
    ],
)
def test_numbers_that_agree(read: Read, text: str) -> None:
    gpus = "8xH100" if "srun -N 1" in text else "16xH100"
    assert [e for e in found_errors(read, text, gpus) if e.startswith("world-size")] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            slurm(directives="#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"),
            "#SBATCH --nodes 4 and torchrun --nnodes 2 do not agree",
        ),
        (
            slurm(directives="#SBATCH --exclusive\n#SBATCH -N4 --gpus-per-node 8\n"),
            "#SBATCH -N 4 and torchrun --nnodes 2 do not agree",
        ),
        (
            slurm(directives="#PBS -l select=4:ncpus=96:ngpus=8\n"),
            "#PBS -l select 4 and torchrun --nnodes 2 do not agree",
        ),
        (slurm(directives="#$ -l rt_AF=4\n"), "#$ -l rt_AF 4 and torchrun --nnodes 2 do not"),
        (slurm("torchrun --nnodes 7 --nproc-per-node 8 pretrain_gpt.py"), "--nnodes 7 do not"),
        (
            slurm("torchrun --nnodes 2 --nproc-per-node 16 pretrain_gpt.py"),
            "each GPU can run only one process",
        ),
        (slurm("torchrun --nproc-per-node -3 pretrain_gpt.py"), "-3: at least 1 is needed"),
        (
            slurm("srun -n 24 python pretrain_gpt.py"),
            "srun -n 24 is not #SBATCH --nodes 2 times #SBATCH --gpus-per-node 8",
        ),
        (
            slurm("deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt.py"),
            "deepspeed --num_nodes 4 do not agree",
        ),
        (
            slurm(
                "torchrun --nnodes 3 --nproc-per-node 8 pretrain_gpt.py", "",
                "--tensor-model-parallel-size 16 --sequence-parallel",
            ),
            "the files start 24 processes, which tp·pp·cp = 16·1·1 = 16 does not divide",
        ),
    ],
)  # fmt: skip
def test_numbers_that_disagree(read: Read, text: str, says: str) -> None:
    (error,) = [e for e in found_errors(read, text) if e.startswith("world-size")]
    assert says in error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (slurm(), "--gpus 16xH100"),
        (slurm("srun python pretrain_gpt.py", DIRECTIVES), "--gpus 16xH100"),
        (slurm("torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py"), "--gpus 64xH100"),
    ],
)
def test_gpus_that_are_counted_and_not_named(read: Read, text: str, says: str) -> None:
    """The option to give has their number; 64 where the files do not agree on one."""
    problems = assess(read(text, "launch.sh")).problems
    (missing,) = [problem for problem in problems if problem.rule == "gpus-unknown"]
    assert missing.fix.startswith(says)


def test_places_are_file_and_line(read: Read) -> None:
    found = read(slurm("torchrun --nnodes 7 --nproc-per-node 8 pretrain_gpt.py"), "launch.sh")
    (problem,) = assess(found, "16xH100").errors
    assert [place.rpartition("/")[2] for place in problem.places] == ["launch.sh:2", "launch.sh:5"]


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2 --nproc-per-node 4 pretrain_gpt.py",
        "srun --ntasks-per-node=4 python pretrain_gpt.py",
        "srun -n 8 python pretrain_gpt.py",
        "accelerate launch --num_machines 2 --num_processes 8 pretrain_gpt.py",
    ],
)
def test_idle_gpus_are_warned_of(read: Read, command: str) -> None:
    """It runs, on fewer GPUs than it is given, and is costed on those: four of each node."""
    found = read(slurm(command))
    counted = assess(found, "8xH100")
    (idle,) = [item for item in counted.problems if item.rule == "world-size"]
    assert (idle.severity, " GPUs would stay idle" in idle.text) == ("warning", True)
    assert not counted.errors
    launched = assess(found, "16xH100")
    assert (launched.verdict, launched.proposal and launched.proposal.degrees.dp) == (
        "runs and fits",
        8,
    )
    (warning,) = [item for item in launched.problems if item.severity == "warning"]
    assert "8 processes (4 on each of 2 nodes) on a machine of 16 GPUs: 8 GPUs would stay idle" in (
        warning.text
    )
    assert "--gpus with 8 GPUs" in warning.fix
    assert not warning.edits


ONE_NODE = [
    "torchrun --standalone --nproc-per-node {} pretrain_gpt.py",
    "torchrun --nnodes 1 --nproc_per_node={} pretrain_gpt.py",
    "python -m torch.distributed.launch --nnodes 1 --nproc_per_node {} pretrain_gpt.py",
    "srun -N 1 -n {} python pretrain_gpt.py",
    "srun -N 1 --ntasks-per-node {} python pretrain_gpt.py",
    "mpirun -np {} python pretrain_gpt.py",
    "deepspeed --num_nodes 1 --num_gpus {} pretrain_gpt.py",
    "accelerate launch --num_machines 1 --num_processes {} pretrain_gpt.py",
]


@pytest.mark.parametrize("command", ONE_NODE)
def test_fewer_processes_than_gpus_run_and_more_do_not(read: Read, command: str) -> None:
    few = found_problems(read, command.format(4))
    assert [problem.severity for problem in few] == ["warning"]
    assert "start 4 processes on a machine of 8 GPUs: 4 GPUs would stay idle" in few[0].text
    (more,) = found_problems(read, command.format(16))
    assert (more.severity, "16 processes" in more.text) == ("error", True)


def found_problems(read: Read, command: str) -> list[Problem]:
    """Of the counts of one node of eight GPUs."""
    found = read(slurm(command, ""))
    return world_problems(found, parse_gpus("8xH100"))


@pytest.mark.parametrize(
    ("command", "gpus", "part"),
    [
        (ONE_NODE[0].format(4), "8xH100", (4, 4, 8)),
        ("torchrun --nnodes 2 --nproc-per-node 4 pretrain_gpt.py", "2x8xH100", (8, 4, 4)),
        ("torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py", "64xH100", (16, 8, 8)),
        ("torchrun --nproc-per-node 4 pretrain_gpt.py", "2x8xH100", (8, 4, 4)),
        ("mpirun -np 4 python pretrain_gpt.py", "2x8xH100", (4, 4, 8)),
        ("torchrun --nnodes 2 --nproc-per-node 2 pretrain_gpt.py", "8xGB200", (4, 2, 36)),
    ],
)
def test_a_part_of_the_machine(
    read: Read, command: str, gpus: str, part: tuple[int, int, int]
) -> None:
    """GPUs in all, GPUs of a node, and GPUs that reach each other without the network."""
    machine = parse_gpus(gpus)
    use = started(read(slurm(command, "")), machine)
    assert use is not None
    cluster = use.part_of(machine)
    assert (
        cluster.num_gpus, cluster.gpus_per_node, cluster.scale_up_domain_gpus
    ) == part  # fmt: skip


def test_more_processes_a_node_than_it_has_gpus(read: Read) -> None:
    """As many processes as GPUs in all, and too many of them on one node."""
    found = read(slurm("torchrun --nnodes 1 --nproc-per-node 16 pretrain_gpt.py", ""))
    (problem,) = world_problems(found, parse_gpus("2x8xH100"))
    assert problem.severity == "error"
    assert "--nproc-per-node 16 is more than the 8 GPUs of a node" in problem.text


def test_more_nodes_than_the_machine_was_said_to_have(read: Read) -> None:
    """Whoever counts GPUs (8xH100) may have them in other nodes: those of the files count."""
    found = read(slurm("torchrun --nnodes 4 --nproc-per-node 4 pretrain_gpt.py", ""))
    (problem,) = world_problems(found, parse_gpus("16xH100"))
    assert problem.severity == "warning"
    assert "16 GPUs, which is 2 nodes: the prediction is for the nodes that" in problem.text
    assert problem.fix.startswith("--gpus 4x4xNAME")


def test_the_command_reads_degrees_for_what_is_started(tmp_path: Path) -> None:
    """HSDP of torchtitan divides the processes that start, not the GPUs that are given."""
    config = tmp_path / "t.toml"
    config.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 2048\n[parallelism]\ndata_parallel_replicate_degree = 2\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --standalone --nproc_per_node 4 -m torchtitan.train --job.config_file t.toml\n"
    )
    result = run_cli("check", str(script), "--gpus", "8xH100", "-q", "--json")
    document = json.loads(result.stdout)
    degrees = document["configuration"]["degrees"]
    assert (degrees["dp"], degrees["shard"]) == (4, 2)
    assert document["runs"]


@pytest.mark.parametrize(
    "text",
    [
        slurm("torchrun --nnodes ${NNODES:-1} --nproc-per-node 8 pretrain_gpt.py"),
        slurm("if [ -z \"$NNODES\" ]; then\n  export NNODES=1\nfi\n"
              "torchrun --nnodes $NNODES --nproc-per-node 8 pretrain_gpt.py"),
    ],
)  # fmt: skip
def test_what_the_environment_may_set_is_only_warned_of(read: Read, text: str) -> None:
    problems = assess(read(text), "16xH100").problems
    assert {p.severity for p in problems if p.rule == "world-size"} == {"warning"}


def test_a_node_starts_at_least_one_process(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc-per-node 0 pretrain_gpt.py {SMALL}\n")
    result = run_cli("check", str(script), "--gpus", "8xH100", "-q")
    assert result.exit_code == 1, result.output
    assert "WILL NOT RUN" in result.stdout


def test_another_number_than_the_machine_has(read: Read) -> None:
    assert found_errors(read, slurm(directives=""), "64xH100") == []
    assert found_errors(read, slurm(directives=""), "8xH100") == [
        "launched-processes: the files start 16 processes, but the check is for 8 GPUs"
    ]


# --- launch folders -------------------------------------------------------------------------------


def folder(tmp_path: Path, target: str, nodes_as: NodesAs, *edits: tuple[str, str]) -> Path:
    """A launch folder with edits of its script and configuration."""
    path = tmp_path / "run"
    launch = example(target) if target in EXAMPLES else megatron(target)
    files = dict(launch_folder(replace(launch, nodes_as=nodes_as)).files)
    changed = dict(files)
    for pattern, new in edits:
        for name in files:
            if not name.endswith((".md", ".csv")) and name not in ("plan.json", "preflight.py"):
                changed[name] = re.sub(pattern, new, changed[name])
    assert changed != files or not edits, "an edit changed nothing"
    write_folder(path, changed, False)
    return path


# What the launchers write of nodes and processes, and how it is broken.
NODES: dict[NodesAs, tuple[str, str]] = {
    "slurm": (r"#SBATCH --nodes=\d+", "#SBATCH --nodes=5"),
    "torchrun": (r"--(nnodes|num_machines) \d+", r"--\1 7"),
    "k8s": (r"(parallelism|numNodes): \d+", r"\1: 7"),
    "skypilot": (r"num_nodes: \d+", "num_nodes: 7"),
}


@pytest.mark.parametrize("nodes_as", NODES)
@pytest.mark.parametrize("target", ["megatron-core", "torchtitan", "accelerate", "nanotron"])
def test_a_folder_with_another_number_of_nodes(
    tmp_path: Path, target: str, nodes_as: NodesAs
) -> None:
    path = folder(tmp_path, target, nodes_as, NODES[nodes_as])
    result = run_cli("check", "-q", str(path))
    assert result.exit_code == 1, result.output
    assert "WILL NOT RUN" in result.stdout
    assert "[world-size]" in result.stdout or "[launched-processes]" in result.stdout


@pytest.mark.parametrize("nodes_as", ["torchrun", "slurm", "k8s"])
def test_a_folder_with_fewer_processes_a_node(tmp_path: Path, nodes_as: NodesAs) -> None:
    path = folder(
        tmp_path, "megatron-core", nodes_as, (r"--nproc-per-node \d+", "--nproc-per-node 4")
    )
    given = read_given([str(path)], Hints(), 1, None, None)
    launched = assess(given.found, given.gpus, given.cluster)
    assert not launched.errors
    said = " ".join(problem.text for problem in launched.problems)
    assert "32 GPUs would stay idle" in said
    assert "dp is" in said


@pytest.mark.parametrize(
    ("target", "pattern", "new", "says"),
    [
        ("megatron-core", r"--num-attention-heads \d+", "--num-attention-heads 66",
         "heads=66 is not a multiple"),
        ("megatron-core", r"--num-layers \d+", "--num-layers 0", "layers"),
        ("experts", r"--moe-router-topk \d+", "--moe-router-topk 16", "top_k=16"),
        ("nanotron", r"num_attention_heads: \d+", "num_attention_heads: 66", "66"),
    ],
)  # fmt: skip
def test_plan_json_hides_no_broken_model(
    tmp_path: Path, target: str, pattern: str, new: str, says: str
) -> None:
    path = folder(tmp_path, target, "slurm", (pattern, new))
    result = run_cli("check", "-q", str(path))
    assert result.exit_code == 1, result.output
    assert says in " ".join(result.stdout.split())
    assert re.search(r"(launch.sbatch|nanotron.yaml):\d+", result.stdout)


def test_the_script_wins_and_what_differs_is_said(tmp_path: Path) -> None:
    path = folder(
        tmp_path, "megatron-core", "torchrun",
        (r"--micro-batch-size \d+", "--micro-batch-size 2"),
        (r"--rotary-base \d+", "--rotary-base 77000"),
    )  # fmt: skip
    result = run_cli("check", "-q", str(path))
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "mbs is 2 in the files, 1 in plan.json: the files count" in said
    assert "model's rope.theta is 77000.0 in the files" in said
    assert re.search(r"\[differs-from-plan\] launch.sh:\d+", said)


TRAINER = (
    "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --learning_rate 1e-5 "
    "--max_seq_length 1024 --bf16 --output_dir o --deepspeed z3.json"
)
ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
SWIFT = (
    "swift sft --model Qwen/Qwen2.5-7B --train_type full --learning_rate 1e-5 --deepspeed zero3 "
    "--per_device_train_batch_size 1 --max_length 1024 --output_dir o"
)


@pytest.mark.parametrize(
    "command",
    [
        f"torchrun --standalone --nproc-per-node 4 sft.py {TRAINER}",
        f"accelerate launch --num_machines 1 --num_processes 4 sft.py {TRAINER}",
        f"deepspeed --num_nodes 1 --num_gpus 4 sft.py {TRAINER}",
        f"deepspeed --include localhost:0,1,2,3 sft.py {TRAINER}",
        f"NNODES=1 NPROC_PER_NODE=4 {SWIFT}",
        f"NPROC_PER_NODE=4 {SWIFT}",
    ],
)
def test_fine_tuning_on_fewer_gpus(read: Read, write: Write, command: str) -> None:
    """The states are sharded over the four that start, whatever the machine has."""
    write("z3.json", ZERO3)
    found = read(f"{command}\n", "run.sh", gpus=4)
    launched = assess(found, "8xH100")
    assert (launched.errors, launched.proposal and launched.proposal.degrees.dp) == ((), 4)
    (idle,) = [one for one in launched.problems if one.rule == "launched-processes"]
    assert (idle.severity, "4 GPUs would stay idle" in idle.text) == ("warning", True)


def test_visible_devices_are_a_list(read: Read) -> None:
    """As many GPUs as there are, by their numbers: 8 alone would be the ninth. ms-swift, which lays
    the layers over those that it sees, is told how many processes to start."""
    for command, fix in (
        (
            f"CUDA_VISIBLE_DEVICES=0 llamafactory-cli train {TRAINER}",
            "CUDA_VISIBLE_DEVICES=0,1,2,3",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen2.5-0.5B --dataset x",
            "NPROC_PER_NODE=4",
        ),
    ):
        launched = assess(read(f"{command}\n", "run.sh", gpus=1), "4xH100")
        (idle,) = [one for one in launched.problems if one.rule == "launched-processes"]
        assert f"{fix} to use every GPU" in idle.fix


def test_degrees_that_a_file_states_are_the_processes_that_start(read: Read) -> None:
    """nanotron's YAML says its data parallelism; whoever starts it starts as many."""
    found = read(nanotron(), "n.yaml")
    problems = world_problems(found, parse_gpus("16xH100"))
    assert [problem.severity for problem in problems] == ["warning"]
    assert (
        "degrees in the file are for 8 processes on a machine of 16 GPUs: 8 GPUs would stay"
        in problems[0].text
    )
    assert problems[0].places[0].endswith("n.yaml:22")
