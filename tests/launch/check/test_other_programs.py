"""What public files hold that is no error: other releases, programs, forks, unfilled places."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.launch.check.assess import assess
from tests.launch.check.conftest import SMALL, Read, rules

OLDER = """[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 4096
tensor_parallel_degree = 4
compile = true
[float8]
enable_float8_linear = true
[infra]
set_gpu_affinity = true
"""
JOB = """kind: PyTorchJob
spec:
  command: [torchrun, --nproc_per_node=8, "pretrain_gpt.py"]
  args:
    - {words}
"""


def test_older_keys_of_torchtitan_are_read(read: Read) -> None:
    found = read(OLDER, "t.toml", gpus=8)
    assert (found.mbs, found.tp, found.dp, found.precision) == (2, 4, 2, "fp8")
    assert "eager-blocks" not in found.variations
    assert not rules(found)
    assert "dialect" in rules(found, "warning")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"torchrun tasks/msdp/main.py {SMALL}", "main.py trains no decoder"),
        (f"torchrun tools/text_generation_ptq.py {SMALL}", "trains no decoder"),
        (f"torchrun -m package.examples.dpo_model {SMALL}", "dpo_model trains no decoder"),
        (f"deepspeed pretrain_gpt.py {SMALL} --kd", "a teacher model"),
        (f"torchrun train.py {SMALL} --rollout-batch-size 8", "reinforcement learning"),
        (f"torchrun pretrain_gpt.py {SMALL} --DDP-impl local --moe-num-experts 8",
         "--moe-num-experts: not a known option"),
        ("accelerate launch run.py --model_name_or_path llama-3.1-8b --learning_rate 1e-5 "
         "--output_dir x --sp_size 2", "sequence parallelism is not modelled"),
        ("torchrun t.py --model_name_or_path llama-3.1-8b --learning_rate 1e-5 --output_dir x "
         "--gradient_accumulation_steps $ACC", "gradient_accumulation_steps is $ACC"),
    ],
)  # fmt: skip
def test_what_no_prediction_is_of(read: Read, text: str, says: str) -> None:
    assessment = assess(read(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{text}", "a.sh"), "8xH100")
    assert (assessment.plan, assessment.errors) == (None, ())
    assert any(says in problem.text for problem in assessment.unpredictable)


def test_options_of_accelerate_launch(read: Read) -> None:
    text = (
        "accelerate launch --mixed_precision bf16 --use_deepspeed --deepspeed_config_file "
        "configs/stage3_no_offloading.conf run.py --model_name_or_path llama-3.1-8b "
        "--learning_rate 1e-5 --output_dir x"
    )
    found = read(text, "a.sh")
    assert (found.framework, found.zero, found.precision) == ("deepspeed", 3, "bf16")


def test_a_placeholder_hides_nothing_else(read: Read) -> None:
    text = f"DATA=<path to your data>/gpt2\ntorchrun pretrain_gpt.py {SMALL} --data-path $DATA"
    assert "shell-syntax" not in rules(read(text, "a.sh"), "warning")


def test_words_of_a_container(read: Read) -> None:
    found = read(JOB.format(words="\n    - ".join(f'"{word}"' for word in SMALL.split())), "j.yaml")
    assert (found.world, found.shape is not None) == (8, True)


@pytest.mark.parametrize(
    "text", ['{ "pipe-parallel-size": 1 }', "fsdp_config: {}\nmax_seq_len: 8\na: 1"]
)
def test_yaml_of_other_trainers_is_named_as_such(read: Read, text: str) -> None:
    with pytest.raises(UsageError, match="this YAML has the settings of none"):
        read(text, "a.yml")


def test_one_node_that_starts_fewer_processes(read: Read) -> None:
    text = f"torchrun --standalone --nproc-per-node 4 pretrain_gpt.py {SMALL}"
    assessment = assess(read(text, "a.sh"), "8xH100")
    fixes = [one.fix for one in assessment.problems if one.rule == "launched-processes"]
    assert fixes == [
        "torchrun --nproc-per-node 8 to use every GPU, or --gpus with 4 GPUs for these only"
    ]
    assert not assessment.errors
