"""An option of a fork or of a program of one's own means the same to every reader."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.launch.check.assess import assess
from planner.launch.read.found import Found
from planner.launch.read.names import Effect, effect_of
from tests.launch.check.conftest import SMALL, Read, read, write  # noqa: F401

DECIDING: dict[str, Effect] = {
    "use_deepspeed": "shards",
    "zero3": "shards",
    "fsdp_shard_size": "shards",
    "cpu_offload": "shards",
    "offload_activations": "shards",
    "recompute_ffn": "saves",
    "my_checkpointing": "saves",
    "low_memory_mode": "saves",
    "pipeline_my_layer_split": "splits",
    "tensor_parallel_width": "parallel",
    "sequence_parallel_ulysses": "parallel",
    "freeze_layers": "trains",
    "qlora_bits": "trains",
    "distill_from": "trains",
}
IDLE = ("my_seed", "lora_path", "offload_dir", "freeze_name", "log_every", "memory", "zeros")


@pytest.mark.parametrize(("name", "effect"), DECIDING.items())
def test_one_name_in_every_spelling(name: str, effect: Effect) -> None:
    spelled = (name, f"--{name}", f"--{name.replace('_', '-')}", f"training.{name}")
    assert {effect_of(one) for one in spelled} == {effect}


@pytest.mark.parametrize("name", IDLE)
def test_what_a_name_says_nothing_of(name: str) -> None:
    assert effect_of(name) == ""


# A file of each reader that forks extend; `{}`: the option.
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
{} = 2
"""
FILES = {
    "trainer.sh": "torchrun --nproc_per_node 8 train_sft.py --model_name_or_path Qwen/Qwen2.5-7B "
    "--per_device_train_batch_size 1 --output_dir o --max_seq_length 1024 --bf16 --{} 2\n",
    "megatron.sh": "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nproc_per_node 8 "
    f"my_train.py {SMALL} --pipeline-model-parallel-size 2 --{{}} 2\n",
    "titan.toml": TITAN,
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", DECIDING)
def test_every_reader_says_what_it_cannot_know(read: Read, file: str, name: str) -> None:  # noqa: F811
    """The option is named among what is missing, or what may save memory; it is never dropped, and
    never an error."""
    try:
        found = read(FILES[file].format(name), file, gpus=8)
    except UsageError as error:  # training of another kind is refused by name
        assert DECIDING[name] == "trains" and name in str(error)
        return
    assert name in _undecided(found)
    assert not [one for one in found.problems if one.severity == "error" and name in one.text]


@pytest.mark.parametrize("file", FILES)
def test_every_reader_predicts_beside_options_that_decide_nothing(read: Read, file: str) -> None:  # noqa: F811
    found = read(FILES[file].format("my_own_seed"), file, gpus=8)
    assert "my_own_seed" not in _undecided(found)
    assert assess(found, "8xH200").plan is not None


def _undecided(found: Found) -> str:
    """What leaves a prediction, or that it does not fit, unsaid."""
    missing = [problem.text for problem in found.problems if problem.severity == "missing"]
    missing += [one.text for one in found.problems if one.rule == "not-predictable"]
    return " ".join((*missing, *(item.key for item, _ in found.unmodelled)))
