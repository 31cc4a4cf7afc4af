"""accelerate reads what the writer writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from planner.launch.dialects.hf import accelerate_writer as accelerate
from tests.launch.accelerate_cases import BASE, MATRIX
from tests.launch.torch_plans import Case, launch_of

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Write = Callable[[Mapping[str, str]], Path]
Needs = Callable[[str], ModuleType]


def loaded(case: Case, needs: Needs, folder: Write) -> Any:
    launch = launch_of(case, "hf-fsdp2", "accelerate")
    path = folder(accelerate.files(launch)) / "accelerate.yaml"
    module = needs("accelerate.commands.config.config_args")
    return module.load_config_from_file(str(path))


@pytest.mark.parametrize("case", MATRIX, ids=lambda item: item.name)
def test_accelerate_loads_it(case: Case, needs: Needs, folder: Write) -> None:
    config = loaded(case, needs, folder)
    launch = launch_of(case, "hf-fsdp2", "accelerate")
    assert config.num_processes == launch.plan.degrees.gpus
    assert config.distributed_type.value == "FSDP"
    assert config.mixed_precision == "bf16"
    document = yaml.safe_load(accelerate.files(launch)["accelerate.yaml"])
    assert config.fsdp_config == document["fsdp_config"]
    assert config.parallelism_config == document["parallelism_config"]


@pytest.mark.parametrize("case", MATRIX, ids=lambda item: item.name)
def test_what_the_launcher_hands_over(
    case: Case, needs: Needs, folder: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch` turns the file into variables, of which the plugin is made."""
    launch = launch_of(case, "hf-fsdp2", "accelerate")
    path = folder(accelerate.files(launch)) / "accelerate.yaml"
    module = needs("accelerate.commands.launch")
    arguments = module.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, _, _ = module._validate_launch_command(arguments)
    assert arguments.use_fsdp
    variables = needs("accelerate.utils.launch").prepare_multi_gpu_env(arguments)
    for name, value in variables.items():
        if name.startswith(("FSDP_", "PARALLELISM_CONFIG_", "ACCELERATE_")):
            monkeypatch.setenv(name, value)
    plugin = needs("accelerate").FullyShardedDataParallelPlugin()
    degrees = launch.plan.degrees
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is (degrees.zero == 3)
    assert plugin.activation_checkpointing is (launch.plan.recompute == "full")
    mesh = needs("accelerate.parallelism_config").ParallelismConfig()
    assert mesh.total_size == degrees.gpus
    assert mesh.dp_shard_size == (degrees.shard or degrees.dp)


@pytest.mark.parametrize(
    ("given", "wrong", "error"),
    [
        ("distributed_type: FSDP", "distributed_typ: FSDP", ValueError),
        ("num_machines: 1", "number_of_machines: 1", ValueError),
        ("distributed_type: FSDP", "distributed_type: FSDP3", ValueError),
    ],
)
def test_wrong_files_fail(
    given: str, wrong: str, error: type[Exception], needs: Needs, folder: Write
) -> None:
    launch = launch_of(BASE, "hf-fsdp2", "accelerate")
    files = dict(accelerate.files(launch))
    assert given in files["accelerate.yaml"]
    files["accelerate.yaml"] = files["accelerate.yaml"].replace(given, wrong)
    path = folder(files) / "accelerate.yaml"
    module = needs("accelerate.commands.config.config_args")
    with pytest.raises(error):
        module.load_config_from_file(str(path))


@pytest.mark.parametrize(
    "sizes",
    [
        {"cp_size": 2, "sp_size": 2},
        {"tp_size": 0},
        {"tp_size": 2, "dp_replicate_size": 2, "dp_shard_size": 1},
    ],
)
def test_wrong_sizes_fail(sizes: dict[str, int], needs: Needs) -> None:
    with pytest.raises(ValueError, match="size"):
        needs("accelerate.parallelism_config").ParallelismConfig(**sizes)


def test_keys_known_here_are_accelerate_s(needs: Needs) -> None:
    from planner.launch.dialects.hf.accelerate_reader import FSDP_KEYS, PARALLELISM_KEYS

    root = Path(str(needs("accelerate").__file__)).parent
    text = "\n".join(
        (root / name).read_text(encoding="utf-8")
        for name in ("commands/launch.py", "utils/launch.py")
    )
    # Files of accelerate before 0.27 have it; later ones take it and do nothing with it.
    older = {"fsdp_backward_prefetch_policy"}
    assert {key for key in (*FSDP_KEYS, *PARALLELISM_KEYS) if key not in text} == older
    assert os.environ.get("ACCELERATE_USE_FSDP") is None
