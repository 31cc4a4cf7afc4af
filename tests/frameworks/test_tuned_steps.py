"""The written loop under accelerate trains a part of a tiny random model: two steps on one CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from planner.launch.dialects.hf import accelerate_writer as accelerate
from planner.launch.dialects.hf import deepspeed_writer as deepspeed
from tests.frameworks.seen_models import save, shrink
from tests.launch.plans import default_argv
from tests.launch.torch_plans import case, launch_of
from tests.launch.tuning_cases import LLAMA

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
_TINY = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip
# Adapters of rank 4 on q and v of three layers: 4·(64 + 64) and 4·(64 + 32) each. Of the whole
# model all but embeddings and the first layer: two layers, the last norm, the head.
_LAYER = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64
WAYS = {
    "lora": ({"train": "lora:rank=4,targets=q+v"}, 3 * 4 * (64 + 64 + 64 + 32)),
    "freeze": ({"freeze": ("embeddings", "layers:1")}, 2 * _LAYER + 64 + 64 * 256),
}


# Of a tower 32 wide, a projector from that to 64 and a language model 64 wide with
# two layers: adapters of rank 4 on all linear layers, and everything but the tower.
_ADAPTED = 4 * (4 * (64 + 64) + 3 * (64 + 128))
SEEN = {
    "lora": ({"train": "lora:rank=4", "freeze": ("vision_tower", "projector")}, 2 * _ADAPTED),
    "freeze": (
        {"freeze": ("vision_tower",)},
        (32 * 64 + 64) + (64 * 64 + 64) + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
        + 2 * 256 * 64,
    ),
    "all": ({}, 0),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_two_steps(
    way: str, needs: Callable[[str], ModuleType], folder: Callable[[Mapping[str, str]], Path]
) -> None:
    transformers, torch = needs("transformers"), needs("torch")
    needs("peft")
    more, trained = WAYS[way]
    changes = more | {"seq": 64, "optimizer_kernel": "foreach"}
    launch = launch_of(case(way, LLAMA, "8xH100", zero=3, more=changes), "hf-fsdp2", "accelerate")
    path = folder(accelerate.files(launch))
    config = path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | _TINY))
    shape = transformers.AutoConfig.from_pretrained(path / "model")
    model = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    model.save_pretrained(path / "weights")
    told = run_on_cpu(path, default_argv(accelerate.command(launch)))
    assert f"{trained:,} parameters are trained" in told
    assert "step 2: loss" in told
    name = "adapter_model.safetensors" if way == "lora" else "model.safetensors"
    assert (path / "ck" / "trained" / name).is_file()


@pytest.mark.parametrize("way", SEEN)
def test_two_steps_with_images(
    way: str, needs: Callable[[str], ModuleType], folder: Callable[[Mapping[str, str]], Path]
) -> None:
    """A tiny LLaVA, on made-up samples with two images each."""
    transformers, torch = needs("transformers"), needs("torch")
    needs("peft")
    needs("PIL")
    more, trained = SEEN[way]
    changes = more | {"seq": 2048, "images": "2x336x336", "optimizer_kernel": "foreach"}
    seen = case(way, "llava-1.5-7b", "8xH100", zero=3, more=changes)
    launch = launch_of(seen, "hf-fsdp2", "accelerate")
    path = folder(accelerate.files(launch))
    shrink(path / "model" / "config.json")
    save(transformers, torch, path / "model", path / "weights")
    words = list(default_argv(accelerate.command(launch)))
    words[words.index("--seq-length") + 1] = "48"
    told = run_on_cpu(path, words)
    assert not trained or f"{trained:,} parameters are trained" in told
    assert "step 2: loss" in told


@pytest.mark.parametrize("way", SEEN)
def test_two_steps_of_the_trainer_with_images(
    way: str, needs: Callable[[str], ModuleType], folder: Callable[[Mapping[str, str]], Path]
) -> None:
    """The program that DeepSpeed's files start, without DeepSpeed, which needs a GPU's compiler."""
    transformers, torch = needs("transformers"), needs("torch")
    needs("peft")
    needs("PIL")
    more, trained = SEEN[way]
    changes = more | {"seq": 2048, "images": "2x336x336"}
    launch = launch_of(
        case(way, "llava-1.5-7b", "8xH100", zero=3, more=changes), "deepspeed", "deepspeed"
    )
    path = folder(deepspeed.files(launch))
    shrink(path / "model" / "config.json")
    save(transformers, torch, path / "model", path / "weights")
    words = [*default_argv(deepspeed.command(launch)), "--pretrained", "weights", "--use_cpu", "1"]
    at = words.index("--deepspeed")
    del words[at : at + 2]
    for name, value in {"seq_length": "48", "max_steps": "2", "warmup_steps": "1",
                        "optim": "adamw_torch"}.items():  # fmt: skip
        words[words.index(f"--{name}") + 1] = value
    done = subprocess.run(
        [sys.executable, *words], cwd=path, timeout=300, capture_output=True, text=True,
        check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert not trained or f"{trained:,} parameters are trained" in done.stdout
    assert "train_loss" in done.stdout


def run_on_cpu(path: Path, argv: Sequence[str]) -> str:
    """What two steps of a written loop print, in one process on a CPU."""
    settings = (path / "accelerate.yaml").read_text()
    for given, here in (("num_processes: 8", "num_processes: 1"), ("dp_shard_size: 8",
                        "dp_shard_size: 1"), ("use_cpu: false", "use_cpu: true")):  # fmt: skip
        assert given in settings
        settings = settings.replace(given, here)
    (path / "accelerate.yaml").write_text(settings)
    words = [*argv, "--pretrained", "weights"]
    words[words.index("--steps") + 1] = "2"
    words[words.index("--warmup-steps") + 1] = "1"
    start = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml")
    done = subprocess.run(
        [*start, *words, "--checkpoints", "ck", "--save-steps", "9"], cwd=path, timeout=300,
        capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
