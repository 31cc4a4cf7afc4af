"""Three verdicts: will run and fits (0), will not (1), cannot tell (3) with what supplies it."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.launch.check.assess import assess
from tests.cli.conftest import run_cli
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, Write, script
from tests.launch.check.test_configurations import accelerate, deepspeed, nanotron
from tests.launch.check.test_torchtitan import titan

GPUS = ("--gpus", "8xH100")
NO_MODEL = "[training]\nlocal_batch_size = 1\nseq_len = 2048\n[parallelism]\n"
HIDDEN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 $MODEL_ARGS\n"
)

LIST = f"{SMALL} {OVERLAPPED} --tensor-model-parallel-size 2 --sequence-parallel"

# (file, text, options) -> (exit status, verdict, what else is said)
CASES = {
    "runs and fits": (("a.sh", script(f"{SMALL} {OVERLAPPED}"), GPUS), (0, "runs and fits", "")),
    "will not run": (
        ("a.sh", script(f"{SMALL} --overlap-param-gather"), GPUS),
        (1, "WILL NOT RUN", "[overlap-param-gather]"),
    ),
    "will not fit": (
        ("a.sh", script(SMALL.replace("--micro-batch-size 1", "--micro-batch-size 8")),
         ("--gpus", "8xA10")),
        (1, "WILL NOT FIT", ""),
    ),
    "accelerate without a model": (("a.yaml", accelerate(), GPUS), (3, "CANNOT TELL", "--model")),
    "DeepSpeed without a model": (("a.json", deepspeed(), GPUS), (3, "CANNOT TELL", "--model")),
    "torchtitan without a model": (("a.toml", NO_MODEL, GPUS), (3, "CANNOT TELL", "--model")),
    "a model that nobody knows": (
        ("a.toml", titan().replace('"8B"', '"mine"').replace('"1B"', '"mine"'), GPUS),
        (3, "CANNOT TELL", "--model"),
    ),
    "options in a variable that no file sets": (
        ("a.sh", HIDDEN, GPUS), (3, "CANNOT TELL", "--env MODEL_ARGS=VALUE"),
    ),
    "GPUs unknown": (("a.sh", script(SMALL), ()), (3, "CANNOT TELL", "--gpus 8xH100")),
    "an error, whatever the GPUs": (
        ("a.sh", script(f"{SMALL} --global-batch-sise 12"), ()),
        (1, "WILL NOT RUN", "[unknown-option]"),
    ),
    "a rule of older GPUs, and no GPUs": (
        ("a.sh", script(f"{SMALL} --tensor-model-parallel-size 2").replace("=1\\n", "=8\\n"), ()),
        (3, "CANNOT TELL", "--gpus"),
    ),
    "nanotron, GPUs unknown": (("a.yaml", nanotron(), ()), (3, "CANNOT TELL", "--gpus")),
    "a list of options says nothing of the environment": (
        ("a.args", LIST, GPUS),
        (0, "runs and fits", "CUDA_DEVICE_MAX_CONNECTIONS is not set"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_verdict_and_status(write: Write, name: str) -> None:
    (file, text, options), (status, verdict, also) = CASES[name]
    result = run_cli("check", "-q", str(write(file, text)), *options)
    assert result.exit_code == status, result.output
    said = " ".join(result.stdout.split())
    assert verdict in said
    assert also in said
    assert ("WILL NOT RUN" in said) == (verdict == "WILL NOT RUN")


def test_the_missing_value_supplied(write: Write) -> None:
    path = str(write("a.sh", HIDDEN))
    model = SMALL.partition(" --bf16")[0]
    supplied = ("--env", f"MODEL_ARGS={model}")
    assert run_cli("check", "-q", path, *GPUS, *supplied).exit_code == 0
    for file, text in (("a.yaml", accelerate()), ("a.json", deepspeed()), ("a.toml", NO_MODEL)):
        known = ("--model", "llama-3.2-1b", "--seq", "2048", "--mbs", "1")
        result = run_cli("check", "-q", str(write(file, text)), *GPUS, *known)
        assert result.exit_code == 0, result.output


_TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
_TRAINER = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.2-1B "
    "--max_seq_length 1024 --per_device_train_batch_size 1 --bf16 True --learning_rate 1e-5 "
    "--output_dir out"
)


@pytest.mark.parametrize(
    ("name", "text", "gpus", "verdict"),
    [
        ("a.sh", script(SMALL), "8xV100", "cannot tell"),
        ("a.sh", _TRAINER, "8xV100", "cannot tell"),
        ("t.toml", _TITAN, "8xV100", "cannot tell"),
        (
            "a.sh",
            script(f"{SMALL.replace('--bf16', '--fp16')} --use-distributed-optimizer"),
            "8xV100",
            "runs and fits",
        ),
        ("a.sh", script(f"{SMALL} --fp8-format hybrid"), "8xA100", "will not run"),
    ],
)
def test_torch_runs_bf16_where_a_gpu_has_no_arithmetic_for_it(
    read: Read, name: str, text: str, gpus: str, verdict: str
) -> None:
    result = assess(read(text, name), gpus)
    assert result.verdict == verdict, [problem.text for problem in result.problems]


def test_a_change_does_not_mend_the_other_errors() -> None:
    """One change makes the example run only beside the mending of its two other errors."""
    example = Path(__file__).parents[3] / "examples" / "05_check_a_script" / "pretrain_moe.sh"
    result = run_cli("check", str(example), "--gpus", "32xH100")
    assert "WILL NOT RUN: 3 errors" in result.stdout
    assert "Single changes that would run once the other errors are mended" in result.stdout
