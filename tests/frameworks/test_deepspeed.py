"""DeepSpeed and transformers read what the writer writes."""

from __future__ import annotations

import copy
import importlib
import json
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.job.models.catalog import load_model, model_names
from planner.launch.dialects.hf import deepspeed_writer as deepspeed
from planner.launch.dialects.hf.files import hf_config, layer_class
from planner.predict.ops.table import parameter_count
from tests.launch.deepspeed_cases import BASE, MATRIX
from tests.launch.plans import default_argv
from tests.launch.torch_plans import Case, launch_of

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Write = Callable[[Mapping[str, str]], Path]
Needs = Callable[[str], ModuleType]


@pytest.fixture
def read(needs: Needs, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, int], Any]:
    """DeepSpeed's own reading of a configuration on so many data-parallel ranks."""
    needs("deepspeed")
    module = needs("deepspeed.runtime.config")

    def parse(config: Any, ranks: int) -> Any:
        monkeypatch.setattr(module.dist, "get_rank", lambda *_, **__: 0)
        monkeypatch.setattr(module.dist, "get_world_size", lambda *_, **__: ranks)
        return module.DeepSpeedConfig(copy.deepcopy(config))

    return parse


@pytest.mark.parametrize("case", MATRIX, ids=lambda item: item.name)
def test_deepspeed_reads_it(case: Case, read: Callable[[Any, int], Any]) -> None:
    launch = launch_of(case, "deepspeed", "deepspeed")
    degrees = launch.plan.degrees
    parsed = read(deepspeed.ds_config(launch), degrees.dp)
    assert parsed.train_batch_size == degrees.gbs
    assert parsed.train_micro_batch_size_per_gpu == degrees.mbs
    assert parsed.gradient_accumulation_steps == degrees.grad_acc
    assert parsed.zero_config.stage == degrees.zero
    assert (parsed.tensor_parallel_config.autotp_size or 1) == degrees.tp
    offload = parsed.zero_config.offload_optimizer
    assert (offload.ratio if offload else 0.0) == launch.job.optimizer_on_cpu
    state, weights = launch.job.framework.state, parsed.zero_config.offload_param
    assert (weights.device if weights else "gpu") == {"host": "cpu"}.get(
        state.weights_home, state.weights_home
    )
    assert (offload is not None and offload.device == "nvme") == (state.states_home == "nvme")
    assert parsed.zero_config.zero_hpz_partition_size == (
        8 if "hpz" in launch.plan.techniques else 1
    )


@pytest.mark.parametrize("case", MATRIX, ids=lambda item: item.name)
def test_trainer_reads_its_arguments(
    case: Case, needs: Needs, folder: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = needs("transformers")
    needs("deepspeed")
    launch = launch_of(case, "deepspeed", "deepspeed")
    monkeypatch.chdir(folder(deepspeed.files(launch)))
    words = list(default_argv(deepspeed.command(launch))[1:])
    words += ["--use_cpu", "true"]
    if launch.job.precision == "fp16":
        words[words.index("--fp16") + 1] = "false"  # not on a CPU
    if launch.plan.degrees.gpus > 1:
        _without_world(Path("ds_config.json"), launch.plan.degrees.gpus)
    # The script's own arguments, as its `main` has them.
    script = runpy.run_path("train.py")
    if "on_drive" in script:
        words[words.index("--nvme") + 1] = "/drive"
        words = script["on_drive"](words)
    arguments = (script["RunArguments"], transformers.TrainingArguments)
    parser = transformers.HfArgumentParser(arguments)
    run, parsed = parser.parse_args_into_dataclasses(words)
    assert (run.model_folder, run.seq_length) == ("model", launch.plan.seq)
    assert run.attn_implementation == ("eager" if launch.job.attention == "eager" else "sdpa")
    assert parsed.per_device_train_batch_size == launch.plan.degrees.mbs
    assert parsed.gradient_accumulation_steps == launch.plan.degrees.grad_acc
    assert bool(parsed.activation_checkpointing) == (launch.plan.recompute == "full")
    zero = parsed.hf_deepspeed_config.config["zero_optimization"]
    for table in ("offload_param", "offload_optimizer"):
        if zero.get(table, {}).get("device") == "nvme":
            assert zero[table]["nvme_path"] == "/drive"


def _without_world(path: Path, gpus: int) -> None:
    """The Trainer compares the batch with the one process that reads here."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if "train_batch_size" in config:
        config["train_batch_size"] //= gpus
    if "fp16" in config:
        config["fp16"]["enabled"] = False
    path.write_text(json.dumps(config), encoding="utf-8")


CATALOGUE = [name for name in model_names() if hf_config(load_model(name).spec)]


@pytest.mark.parametrize("name", CATALOGUE)
def test_config_json_is_the_model(name: str, needs: Needs) -> None:
    """transformers builds from it the parameters that the shape has, of the class to be wrapped."""
    transformers, torch = needs("transformers"), needs("torch")
    found = load_model(name)
    model = found.spec
    config = hf_config(model) or {}
    kind = str(config["model_type"])
    parsed = transformers.CONFIG_MAPPING[kind](
        **{key: value for key, value in config.items() if key != "model_type"}
    )
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(parsed)
    layers = {type(module).__name__ for module in built.modules()}
    assert set(layer_class(config).split(",")) <= layers
    counted = sum(parameter.numel() for parameter in built.parameters())
    assert counted == parameter_count(model).total


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"train_batch_size": 1000}, AssertionError),
        ({"zero_optimization": {"stage": 4}}, ValueError),
        ({"zero_optimization": {"stage": 2, "offload_optimzer": {"device": "cpu"}}}, ValueError),
        ({"fp16": {"enabled": True}}, AssertionError),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, Exception),
    ],
)
def test_wrong_files_fail(
    change: dict[str, Any], error: type[Exception], read: Callable[[Any, int], Any]
) -> None:
    launch = launch_of(BASE, "deepspeed", "deepspeed")
    with pytest.raises(error):
        read(deepspeed.ds_config(launch) | change, launch.plan.degrees.dp)


def test_keys_known_here_are_deepspeed_s(needs: Needs) -> None:
    """Every top-level key of the check stands in DeepSpeed's sources."""
    from planner.launch.dialects.hf.deepspeed_reader import TOP_KEYS

    root = Path(str(needs("deepspeed").__file__)).parent
    text = "\n".join(
        path.read_text(encoding="utf-8", errors="ignore")
        for path in root.rglob("*.py")
        if path.name in ("config.py", "constants.py", "auto_ep_config.py")
    )
    assert [key for key in TOP_KEYS if f'"{key}"' not in text and f"'{key}'" not in text] == []


def test_optimizers_exist(needs: Needs) -> None:
    names = {
        optimizer_name.value
        for optimizer_name in needs("transformers.training_args").OptimizerNames
    }
    assert {"adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit"} <= names
    assert importlib.import_module("deepspeed.runtime.config").LION_OPTIMIZER == "lion"
