"""The written loop under accelerate trains a part of a tiny random model: two steps on one CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from planner.launch.dialects.hf import accelerate_writer as accelerate
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
    settings = (path / "accelerate.yaml").read_text()
    for given, here in (("num_processes: 8", "num_processes: 1"), ("dp_shard_size: 8",
                        "dp_shard_size: 1"), ("use_cpu: false", "use_cpu: true")):  # fmt: skip
        assert given in settings
        settings = settings.replace(given, here)
    (path / "accelerate.yaml").write_text(settings)
    words = [*default_argv(accelerate.command(launch)), "--pretrained", "weights"]
    words[words.index("--steps") + 1] = "2"
    words[words.index("--warmup-steps") + 1] = "1"
    start = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml")
    done = subprocess.run(
        [*start, *words, "--checkpoints", "ck", "--save-steps", "9"], cwd=path, timeout=300,
        capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{trained:,} parameters are trained" in done.stdout
    assert "step 2: loss" in done.stdout
    name = "adapter_model.safetensors" if way == "lora" else "model.safetensors"
    assert (path / "ck" / "trained" / name).is_file()
