"""Recipes in Python: what their functions would return, worked out and never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.job.errors import CannotTellError, UsageError
from tests.launch.read.conftest import ReadFolder, judged, refusals

BRIDGE = """\
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _common
import torch

open("mark", "w")
LENGTH: int = 4 * 1024


def _layout(pp, vp):
    table = {(4, 1): [["embedding"] + ["decoder"] * 7] + [["decoder"] * 9] * 2
             + [["decoder"] * 7 + ["loss"]]}
    return [list(stage) for stage in table[(pp, vp or 1)]]


def llama3_8b_peft_8gpu_config():
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").provider()
    return cfg


def llama3_8b_pretrain_32gpu_h100_bf16_config(pp: int = 4):
    cfg = _common(batch=128)
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").provider(load=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = pp
    cfg.model.sequence_parallel = cfg.model.tensor_model_parallel_size > 1
    cfg.model.seq_length = LENGTH
    if pp > 1:
        cfg.model.pipeline_model_parallel_layout = _layout(pp, None)
    cfg.optimizer.exp_avg_dtype = torch.float32
    return cfg
"""
COMMON = """\
def _common(batch: int = 512):
    cfg = ConfigContainer(
        train=TrainingConfig(global_batch_size=batch, micro_batch_size=1),
        ddp=Ddp(use_distributed_optimizer=True, overlap_grad_reduce=True,
                overlap_param_gather=True),
        optimizer=Optimizer(), mixed_precision="bf16_mixed",
    )
    return cfg
"""
BESIDE = {"src/megatron/bridge/recipes/common.py": COMMON}
NEMO = """\
import nemo_run as run
from nemo.collections.llm import Llama3Config8B, LlamaModel
from nemo.collections import llm
import nemo.lightning as nl


def trainer(nodes: int = 2, devices: int = 8):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=4,
                          sequence_parallel=True, ddp=run.Config(Ddp, overlap_grad_reduce=True))
    return run.Config(nl.Trainer, num_nodes=nodes, devices=devices, strategy=strategy,
                      plugins=bf16_mixed())


def pretrain_recipe(nodes: int = 2):
    return run.Partial(
        llm.pretrain, model=run.Config(LlamaModel, config=run.Config(Llama3Config8B)),
        trainer=trainer(nodes), optim=run.Config(Adam, config=run.Config(
            OptimizerConfig, use_distributed_optimizer=True)),
        data=run.Config(Mock, seq_length=8192, global_batch_size=64, micro_batch_size=1),
    )
"""
REGISTRY = """\
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
from torchtitan.models.llama3 import model_registry


def llama3_debugmodel():
    return Trainer.Config(model_spec=model_registry("debugmodel"))


def llama3_8b():
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096,
                                max_context_length=4096),
        parallelism=ParallelismConfig(tensor_parallel_degree=1),
    )


def llama3_70b():
    return Trainer.Config(
        model_spec=model_registry("70B"),
        training=TrainingConfig(local_batch_size=4 * 2, seq_len=8 * 1024),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
    )
"""


def test_bridge(folder: ReadFolder, tmp_path: Path) -> None:
    found = folder({"src/megatron/bridge/recipes/llama/llama3.py": BRIDGE, **BESIDE})
    assert (found.format, found.framework, found.world) == (
        "recipe", "megatron-bridge", 32,
    )  # fmt: skip
    assert (found.tp, found.pp, found.gbs, found.mbs, found.seq, found.zero) == (
        2, 4, 128, 1, 4096, 1,
    )  # fmt: skip
    assert (found.block_layers, found.model) == (
        (7, 9, 9, 7), "meta-llama/Meta-Llama-3-8B",
    )  # fmt: skip
    assert judged(found, "32xH100").verdict == "runs and fits"
    assert not list(tmp_path.rglob("mark"))


def test_one_of_several_recipes(folder: ReadFolder) -> None:
    files = {"src/megatron/bridge/recipes/llama/llama3.py": BRIDGE, **BESIDE}
    assert "llama3_8b_peft_8gpu_config" in " ".join(folder(files).assumed)
    named = folder(files, environment={"RECIPE": "llama3_8b_peft_8gpu_config"})
    assert "its adapters are not in the file" in refusals(named)
    with pytest.raises(CannotTellError, match="has no function llama3_9b"):
        folder(files, environment={"RECIPE": "llama3_9b"})


ADAPTERS = """

def llama3_8b_lora_8gpu_config(peft_scheme: str = "lora"):
    cfg = llama3_8b_peft_8gpu_config()
    cfg.peft = default_peft_config(peft_scheme)
    if isinstance(peft_scheme, str) and peft_scheme.lower() in ["lora", "dora"]:
        cfg.peft.dim = 8
    return cfg


def llama3_8b_own_8gpu_config():
    cfg = llama3_8b_peft_8gpu_config()
    cfg.peft = LoRA(target_modules=["linear_qkv"], dim=16, alpha=64, dropout=0.1)
    return cfg
"""


@pytest.mark.parametrize(
    ("recipe", "train"),
    [
        ("lora", "lora:rank=8,alpha=32,targets=q+k+v+o+gate+up+down"),
        ("own", "lora:rank=16,alpha=64,targets=q+k+v,dropout=0.1"),
    ],
)
def test_adapters_of_a_recipe(folder: ReadFolder, recipe: str, train: str) -> None:
    """As the recipe's function makes them, with Megatron-Bridge's own for what it leaves out."""
    files = {"src/megatron/bridge/recipes/llama/llama3.py": BRIDGE + ADAPTERS, **BESIDE}
    found = folder(files, environment={"RECIPE": f"llama3_8b_{recipe}_8gpu_config"})
    assert found.train == train
    assert judged(found, "8xH100").plan is not None


def test_what_a_recipe_does_not_show_is_missing(folder: ReadFolder) -> None:
    text = BRIDGE.replace("cfg.model.seq_length = LENGTH", "cfg.train.micro_batch_size = pick(8)")
    found = folder({"src/megatron/bridge/recipes/llama/llama3.py": text, **BESIDE})
    assert "train.micro_batch_size" in refusals(found)


def test_a_rule_that_an_unseen_base_may_keep_is_no_error(folder: ReadFolder) -> None:
    """gpt-oss takes its exchange of context parallelism (a2a) from the recipe that it extends."""
    found = folder(
        {
            "a.py": "from megatron.bridge.recipes.gpt_oss import gpt_oss_20b_pretrain_config\n"
            "from megatron.bridge.training.config import ConfigContainer\n"
            "def gpt_oss_20b_pretrain_8gpu_config() -> ConfigContainer:\n"
            "    cfg = gpt_oss_20b_pretrain_config()\n"
            "    cfg.model.context_parallel_size = 2\n"
            "    cfg.train.global_batch_size = 4\n"
            "    cfg.train.micro_batch_size = 1\n"
            "    return cfg\n"
        }
    )
    assert not judged(found).errors
    assert "gpt_oss_20b_pretrain_config, which is not there to read, may say" in refusals(found)


@pytest.mark.parametrize("sizes", [{}, {"num_layers": 4, "hidden_size": 512}])
def test_a_class_without_sizes_names_those_left_to_overrides(
    sizes: dict[str, int], folder: ReadFolder
) -> None:
    given = ", ".join(f"{name}={size}" for name, size in sizes.items())
    recipe = f"""\
from megatron.bridge.models.gpt_provider import GPTModelProvider

def vanilla_gpt_pretrain_config():
    return ConfigContainer(model=GPTModelProvider({given}), mixed_precision="bf16_mixed",
        train=TrainingConfig(global_batch_size=32, micro_batch_size=2))
"""
    text = refusals(folder({"r.py": recipe}))
    assert "model.num_attention_heads to overrides" in text
    assert ("model.num_layers" in text) is not bool(sizes)


def test_nemo_2(folder: ReadFolder) -> None:
    found = folder({"llama3.py": NEMO})
    assert (found.world, found.tp, found.gbs, found.seq, found.zero) == (16, 4, 64, 8192, 1)
    assert found.model == "llama-3-8b"
    assert judged(found, "16xH100").plan is not None


def test_nemos_own_helper_and_a_recipe_that_is_not_there(folder: ReadFolder) -> None:
    """It reduces gradients in bf16; what the recipe does to save memory is not seen."""
    found = folder(
        {
            "a.py": "import nemo_run as run\nfrom ours.recipes import llama31_70b\n"
            "def recipe() -> run.Partial:\n"
            "    made = llama31_70b.pretrain_recipe(performance_mode=True)\n"
            "    return set_primary_perf_configs(made, 'pre_train', num_nodes=1,\n"
            "        num_gpus_per_node=8, mbs=1, gbs=128, tp_size=2, pp_size=1, cp_size=1,\n"
            "        compute_dtype='bf16', recompute_layers=2)\n"
        }
    )
    assert (found.world, found.tp, found.recompute) == (8, 2, "full:block=2")
    assert "bf16-gradients" in found.variations
    assert "may recompute or offload" in refusals(found)


_QUICKSTART = """
import nemo_run as run
from nemo.collections import llm


def configure_recipe(nodes: int = {nodes}, gpus_per_node: int = 8):
    recipe = llm.{name}.pretrain_recipe(
        dir="ckpt", name="pre", num_nodes=nodes, num_gpus_per_node=gpus_per_node
    )
    {change}
    return recipe
"""


@pytest.mark.parametrize(
    ("name", "nodes", "change", "expected"),
    [
        (
            "llama3_8b", 1, "recipe.trainer.strategy.pipeline_model_parallel_size = 2",
            ("llama-3-8b", 8, 1, 2, 2, 1, 512, 8192),
        ),
        (
            "qwen25_72b", 4, "recipe.data.global_batch_size = 64",
            ("qwen2.5-72b", 32, 8, 4, 1, 2, 64, 4096),
        ),
        ("mixtral_8x7b_16k", 4, "", ("mixtral-8x7b", 32, 4, 2, 4, 1, 512, 16384)),
    ],
)  # fmt: skip
def test_a_recipe_of_nemo_in_its_quickstart_form(
    folder: ReadFolder, name: str, nodes: int, change: str, expected: tuple[object, ...]
) -> None:
    """Its function has no type, and the recipe is NeMo's own, whose values are shipped."""
    found = folder({"a.py": _QUICKSTART.format(name=name, nodes=nodes, change=change)})
    read = (found.model, found.world, found.tp, found.pp, found.cp, found.mbs, found.gbs, found.seq)
    assert read == expected
    assert any("as in NeMo" in text for text in found.assumed)
    assert judged(found, f"{8 * nodes}xH100").plan is not None


def test_a_registry_that_another_makes(folder: ReadFolder) -> None:
    text = (
        "from torchtitan.models.llama3.config_registry import llama3_8b\n"
        "from torchtitan.trainer import Trainer\n"
        "def ours() -> Trainer.Config:\n    config = llama3_8b()\n"
        "    config.parallelism = ParallelismConfig(tensor_parallel_degree=2)\n    return config\n"
    )
    found = folder({"config_registry.py": text})
    assert "llama3_8b, from another registry, is not there to read" in refusals(found)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("llama-3.1-8b", 1, 2, 4096)),
        ({"CONFIG": "llama3_70b"}, ("llama-3.1-70b", 8, 8, 8192)),
    ],
)
def test_torchtitan_registry(
    folder: ReadFolder, environment: dict[str, str], expected: tuple[object, ...]
) -> None:
    """The function that is named, else the first that is no test; products of literals."""
    found = folder({"config_registry.py": REGISTRY}, environment=environment)
    assert (found.model, found.tp, found.mbs, found.seq) == expected


@pytest.mark.parametrize(
    "body",
    [
        "    return f()\n",
        "    x = [0]\n    for i in range(10**9):\n        x.append(i)\n    return x\n",
        "    return 'a' * 10**12\n",
        "    return 9 ** 9 ** 9 ** 9\n",
        "    return " + "(" * 150 + "1" + ")" * 150 + "\n",
        "    x = [1]\n" + "    x = x + x\n" * 60 + "    return x\n",
    ],
)
def test_no_recipe_reads_without_end(folder: ReadFolder, body: str) -> None:
    text = f"import megatron.bridge\n# ConfigContainer\n\ndef f_config():\n{body}"
    text += "\ndef f():\n    return f_config()\n"
    with pytest.raises((CannotTellError, UsageError)):
        folder({"recipe.py": text})


def test_a_slip_is_named_with_its_line(folder: ReadFolder) -> None:
    with pytest.raises(UsageError, match="line 4"):
        folder({"r.py": "import megatron.bridge\n# ConfigContainer\n\ndef f_config(:\n"})
