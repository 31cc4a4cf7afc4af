"""What is not modelled is refused by name, wherever it is asked for; what is modelled is not."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from planner.cli.program import COMMANDS, planner_command
from planner.job.errors import UsageError
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.request import Request
from planner.job.unmodelled import refuse_unmodelled
from tests.cli.conftest import Run, refused


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("--lora-rank", "LoRA"), ("--qlora", "LoRA"), ("--use-peft", "LoRA"), ("ia3", "LoRA"),
        ("--freeze-layers", "frozen layers"), ("--dpo", "DPO"), ("trl", "DPO"), ("--grpo", "GRPO"),
        ("OpenRLHF", "GRPO"), ("--rlhf", "GRPO"), ("--load-in-4bit", "LoRA"),
    ],
)  # fmt: skip
def test_names_are_refused_with_the_nearest_help(name: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        refuse_unmodelled(name, name)
    text = str(refusal.value)
    assert text.startswith(f"{name}: ")
    assert said in text and "Nearest help: " in text and "planner" in text


def test_nothing_that_is_modelled_is_refused() -> None:
    context = click.Context(planner_command)
    for command in COMMANDS:
        found = planner_command.get_command(context, command)
        assert found is not None
        for param in found.params:
            for option in param.opts:
                refuse_unmodelled(option, option)
    for name in (*framework_names(), "--q-lora-rank", "--kv-lora-rank", "bf16", "mxfp8"):
        refuse_unmodelled(name, name)


@pytest.mark.parametrize("command", ["search", "fit", "evaluate", "memory", "check", "compare"])
def test_every_command_refuses_by_name(run: Run, command: str) -> None:
    refused(run(command, "--lora-rank=8", "--model", "8b"), "LoRA", "Nearest help")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.sh", "torchrun pretrain_gpt.py --num-layers 2 --lora-rank 8\n", "LoRA"),
        ("job.sh", "torchrun pretrain_gpt.py --num-layers 2 --grpo-kl-beta 0.1\n", "GRPO"),
        ("job.sh", "accelerate launch train_dpo.py --beta 0.1\n", "DPO"),
        ("recipe.yaml", "name: x\npeft:\n  scheme: lora\n", "LoRA"),
    ],
)
def test_launch_files_are_refused_by_name(
    run: Run, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    refused(run("check", str(tmp_path / name), "--gpus", "8xH100"), said, name, "Nearest help")


def test_frameworks_precisions_and_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="preference training"):
        load_framework("nemo_aligner")
    with pytest.raises(UsageError, match="QLoRA"):
        Request(model="8b", gpus="1xH100", gbs=8, precision="nf4").resolve()
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text(json.dumps({"peft_type": "LORA", "r": 8}), encoding="utf-8")
    for path in (adapter, tmp_path):
        with pytest.raises(UsageError, match="adapter"):
            load_model(str(path))
