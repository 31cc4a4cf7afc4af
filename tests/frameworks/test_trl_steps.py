"""What `planner launch --framework trl` writes trains a tiny random model: two steps on one CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from planner.launch.contract import Launch
from planner.launch.dialects.hf import trl_writer as trl
from tests.launch.plans import default_argv
from tests.launch.trl_cases import named

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
Needs = Callable[[str], ModuleType]
Folder = Callable[[Mapping[str, str]], Path]
_TINY = {
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128, "vocab_size": 256, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_WORDS = [f"word{number}" for number in range(200)]
# Rows of text, of pairs and of answers with a mark, by the ending of the program's name.
_PAIRS = [{"prompt": " ".join(_WORDS[i : i + 9]) + " ", "chosen": " ".join(_WORDS[9 : 15 + i]),
           "rejected": " ".join(_WORDS[40 : 44 + i])} for i in range(8)]  # fmt: skip
_MARKED = [
    {"prompt": row["prompt"], "completion": row["chosen"], "label": i % 2 == 0}
    for i, row in enumerate(_PAIRS)
]
_TEXTS = [{"text": " ".join(_WORDS[i : 30 + i])} for i in range(16)]
_ROWS = {"sft": _TEXTS, "kto": _MARKED}


def _weights(path: Path) -> None:
    """A random model of the tiny shape with a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | _TINY))
    shape = AutoConfig.from_pretrained(path / "model")
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    model.save_pretrained(path / "weights")
    known = {word: at for at, word in enumerate(["<pad>", "<s>", "</s>", "[UNK]", *_WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        unk_token="[UNK]",
    ).save_pretrained(path / "weights")  # fmt: skip


# accelerate shards what it takes for GPUs: one process on a CPU is taken for one.
_AS_GPU = """import runpy
import sys

import accelerate.state as state
from accelerate.utils import DistributedType

start = state.PartialState.__init__


def started(self, *given, **named):
    start(self, *given, **named)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


state.PartialState.__init__ = started
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _started(launch: Launch, path: Path, data: bool) -> list[str]:
    """The words that start it on one CPU."""
    words = [*default_argv(trl.command(launch)), "--model_name_or_path", "weights"]
    for name, value in (("--max_steps", "2"), ("--warmup_steps", "1")):
        words[words.index(name) + 1] = value
    words[words.index("no")] = "steps"
    words += ["--use_cpu", "true", "--max_length", "64"]
    if launch.job.samples.packing == "limit":
        words += ["--pad_to_multiple_of", "64"]
    if data:
        ending = trl.program(launch.job).removeprefix("train_").removesuffix(".py")
        rows = "\n".join(map(json.dumps, _ROWS.get(ending, _PAIRS)))
        (path / "data.jsonl").write_text(rows + "\n")
        words += ["--dataset", "data.jsonl"]
    if (path / "ds_config.json").is_file():
        config = json.loads((path / "ds_config.json").read_text())
        config["train_batch_size"] //= launch.plan.degrees.dp
        (path / "ds_config.json").write_text(json.dumps(config))
        alone = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
        return [sys.executable, *alone, *words]
    if not (path / "accelerate.yaml").is_file():
        return [sys.executable, *words]
    settings = (path / "accelerate.yaml").read_text()
    for given, here in (("num_processes: 8", "num_processes: 1"), ("dp_shard_size: 8",
                        "dp_shard_size: 1"), ("use_cpu: false", "use_cpu: true")):  # fmt: skip
        assert given in settings
        settings = settings.replace(given, here)
    (path / "accelerate.yaml").write_text(settings)
    (path / "as_gpu.py").write_text(_AS_GPU)
    start = ("-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml", "as_gpu.py")
    return [sys.executable, *start, *words]


def run(launch: Launch, path: Path, *, data: bool = False) -> str:
    """What two steps print."""
    _weights(path)
    done = subprocess.run(
        _started(launch, path, data), cwd=path, timeout=400, capture_output=True, text=True,
        check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
                          "DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


# Profile, case, whether it has data of its own, and the file that the last save leaves.
WHOLE, ADAPTERS = "model.safetensors", "adapter_model.safetensors"
RUNS = (
    ("hf-transformers", "full", False, WHOLE),
    ("hf-transformers", "amp", True, WHOLE),
    ("hf-transformers", "freeze", False, WHOLE),
    ("hf-transformers", "lora-frozen", False, ADAPTERS),
    ("hf-transformers", "packed-limit", True, ADAPTERS),
    ("hf-transformers", "packed-pack", True, ADAPTERS),
    ("hf-transformers", "dpo", True, WHOLE),
    ("hf-transformers", "dpo-precomputed", True, WHOLE),
    ("hf-transformers", "dpo-lora", True, ADAPTERS),
    ("hf-transformers", "kto", True, WHOLE),
    ("hf-transformers", "orpo", True, WHOLE),
    ("hf-transformers", "orpo-lora", True, ADAPTERS),
    ("hf-transformers", "simpo", True, WHOLE),
    ("hf-transformers", "reward-lora", True, ADAPTERS),
    ("hf-transformers", "qlora", False, ADAPTERS),
    ("hf-fsdp2", "lora", False, ADAPTERS),
    ("hf-fsdp2", "dpo", True, WHOLE),
    ("deepspeed", "lora", False, ADAPTERS),
    ("deepspeed", "dpo", True, WHOLE),
)


@pytest.mark.parametrize(
    ("profile", "name", "data", "saved"), RUNS, ids=[f"{one[0]}-{one[1]}" for one in RUNS]
)
def test_two_steps(
    profile: str, name: str, data: bool, saved: str, needs: Needs, folder: Folder
) -> None:
    needs("trl")
    if profile == "deepspeed":
        needs("deepspeed")
    launch = named(profile, name)
    path = folder(trl.files(launch))
    printed = run(launch, path, data=data)
    assert "'train_runtime'" in printed
    assert (path / "outputs" / "trained" / saved).is_file()
