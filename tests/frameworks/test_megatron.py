"""Megatron-LM's own parser on every command line that the writer makes, and on wrong ones.

Wanted: torch, einops and regex beside this project, and the wheels of megatron-core 0.19 and
megatron-bridge 0.6 unpacked into the folder that PLANNER_MEGATRON names (see CONTRIBUTING.md).
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.launch.contract import Launch
from planner.launch.dialects.megatron import bridge_writer
from planner.launch.dialects.megatron import writer as megatron
from planner.launch.dialects.megatron.bridge_finetune import SCRIPT
from planner.launch.dialects.megatron.bridge_writer import schema
from tests.launch.plans import MEGATRON, default_argv, sharded
from tests.launch.plans import megatron as case
from tests.launch.torch_plans import Case, launch_of
from tests.launch.tuning_cases import BRIDGE as TUNED

pytestmark = pytest.mark.frameworks

PARSER = Path(__file__).with_name("megatron_parser.py")
# Where each section of Megatron-Bridge's configuration is defined.
SECTIONS = {
    "model": ("GPTModelProvider", "MLATransformerConfig"),
    "train": ("TrainingConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "dist": ("DistributedInitConfig",),
    "optimizer": ("OptimizerConfig",),
    "scheduler": ("SchedulerConfig",),
    "tokenizer": ("TokenizerConfig",),
    "logger": ("LoggerConfig",),
    "validation": ("ValidationConfig",),
    "checkpoint": ("CheckpointConfig",),
    "dataset": ("GPTDatasetConfig",),
    "mixed_precision": ("MixedPrecisionConfig",),
    "comm_overlap": ("CommOverlapConfig",),
    "rng": ("RNGConfig",),
    "rerun_state_machine": ("RerunStateMachineConfig",),
}


def wheels() -> Path:
    """The folder of the unpacked wheels. The run fails without it: it was asked for."""
    folder = os.environ.get("PLANNER_MEGATRON", "")
    if not folder or not (Path(folder) / "megatron" / "training" / "arguments.py").is_file():
        pytest.fail("PLANNER_MEGATRON must name a folder with the unpacked megatron-core wheel")
    return Path(folder)


def parse(cases: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Verdict of Megatron's parser on each case."""
    return answers(PARSER, cases)


def answers(script: Path, cases: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a script that imports Megatron-Core says of each case."""
    run = subprocess.run(
        [sys.executable, str(script), str(wheels())],
        input=json.dumps(list(cases.values())),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(zip(cases, json.loads(run.stdout), strict=True))


def as_case(launch: Launch) -> dict[str, Any]:
    """What the parser script takes."""
    command = megatron.command(launch)
    blackwell = launch.job.cluster.gpu.architecture == "blackwell"
    return {
        "argv": list(default_argv(command)[1:]),
        "world": launch.plan.degrees.gpus,
        "env": {name: value for name, (value, _) in command.environment.items()},
        "capability": [10, 0] if blackwell else [9, 0],
    }


def launches() -> dict[str, Launch]:
    """Every case, and what only Megatron-FSDP does."""
    found = {name: case(name) for name in MEGATRON}
    return found | {f"fsdp-{zero}": sharded(case("dense"), zero) for zero in (2, 3)}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, Any]]:
    return parse({name: as_case(launch) for name, launch in launches().items()})


@pytest.mark.parametrize("name", [*MEGATRON, "fsdp-2", "fsdp-3"])
def test_megatron_accepts_the_plan_and_reads_the_same(
    name: str, verdicts: dict[str, dict[str, Any]]
) -> None:
    verdict, launch = verdicts[name], launches()[name]
    assert verdict["ok"], verdict["error"]
    read, arg = verdict["args"], launch.plan.degrees
    assert read["data_parallel_size"] == arg.dp
    # With a schedule Megatron puts one micro-batch a rank there, and reads the schedule later.
    assert read["global_batch_size"] == (arg.mbs * arg.dp if launch.plan.ramp else launch.plan.gbs)
    assert read["micro_batch_size"] == arg.mbs
    assert read["num_layers"] == launch.job.model.layers
    assert (read["virtual_pipeline_model_parallel_size"] or 1) == arg.vpp
    assert (read["config"] == "MLATransformerConfig") == (launch.job.model.mla is not None)
    if read["layout"]:
        blocks = [
            read["layout"][block % arg.pp][block // arg.pp].count("decoder")
            for block in range(arg.pp * arg.vpp)
        ]
        assert tuple(blocks) == launch.plan.layout.block_layers
        standalone = launch.plan.layout.mtp_standalone
        assert (
            read["layout"][arg.pp - 2][-1].count("mtp") == standalone * launch.job.model.mtp_layers
        )


def _without(argv: list[str], option: str, values: int) -> list[str]:
    at = argv.index(option)
    return argv[:at] + argv[at + 1 + values :]


def _with(argv: list[str], option: str, value: str) -> list[str]:
    at = argv.index(option)
    return [*argv[: at + 1], value, *argv[at + 2 :]]


def wrong() -> Iterator[tuple[str, dict[str, Any]]]:
    """Command lines made wrong, one thing each."""
    good = as_case(case("uneven"))
    argv = good["argv"]
    yield "unknown flag", good | {"argv": [*argv, "--tensor-parallel", "4"]}
    yield "world size", good | {"world": 60}
    yield "no queue", good | {"env": {}}
    yield "batch", good | {"argv": _with(argv, "--global-batch-size", "31")}
    layout = "--pipeline-model-parallel-layout"
    yield "layers of the layout", good | {"argv": _with(argv, layout, "Et*18|t*21|t*20|t*20L")}
    yield "stages of the layout", good | {"argv": _with(argv, layout, "Et*40|t*20|t*20L")}
    yield "no optimizer shards", good | {"argv": _without(argv, "--use-distributed-optimizer", 0)}
    some = as_case(case("recompute-mlp"))
    yield "method of modules", some | {"argv": [*some["argv"], "--recompute-method", "block"]}
    experts = as_case(case("experts"))
    yield "experts", experts | {"argv": _with(experts["argv"], "--expert-model-parallel-size", "3")}
    latent = as_case(case("latent"))
    yield "latent and grouped", latent | {"argv": [*latent["argv"], "--group-query-attention"]}
    offload = as_case(case("offload"))
    yield (
        "offload",
        offload | {"argv": _without(offload["argv"], "--use-precision-aware-optimizer", 0)},
    )
    fsdp = as_case(sharded(case("dense"), 3))
    yield "one queue under FSDP", fsdp | {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
    yield "FSDP checkpoints", fsdp | {"argv": _with(fsdp["argv"], "--ckpt-format", "torch_dist")}


def test_megatron_refuses_what_is_wrong() -> None:
    accepted = [name for name, verdict in parse(dict(wrong())).items() if verdict["ok"]]
    assert accepted == []


def _bases_and_fields(folder: Path) -> dict[str, list[tuple[list[str], list[str]]]]:
    found: dict[str, list[tuple[list[str], list[str]]]] = {}
    # Their strings have escapes that newer Pythons warn of.
    warnings.simplefilter("ignore")
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                fields = [
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                ]
                bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
                found.setdefault(node.name, []).append((bases, fields))
    return found


def test_every_bridge_setting_is_a_field_of_its_configuration() -> None:
    if not (wheels() / "megatron" / "bridge").is_dir():
        pytest.fail("PLANNER_MEGATRON holds no unpacked megatron-bridge wheel")
    classes = _bases_and_fields(wheels() / "megatron")
    # Subclasses that import their base under another name.
    aliases = {"MTrainDistributedInitConfig": "DistributedInitConfig"}

    @cache
    def fields(name: str) -> frozenset[str]:
        found: set[str] = set()
        for bases, names in classes.get(name, []):
            found |= set(names)
            parents = {aliases.get(base, base.removeprefix("MCore")) for base in bases} - {name}
            found |= {field for parent in parents for field in fields(parent)}
        return frozenset(found)

    missing = [
        key
        for key in schema()
        if not any(key.split(".")[1] in fields(name) for name in SECTIONS[key.split(".")[0]])
    ]
    assert missing == []


@pytest.mark.parametrize("item", TUNED, ids=lambda one: one.name)
def test_a_fine_tuning_script_names_what_megatron_bridge_has(item: Case) -> None:
    """Every import is there, and every object is made of fields of its class."""
    launch = launch_of(item, "megatron-bridge", "megatron-bridge")
    tree = ast.parse(bridge_writer.files(launch)[SCRIPT])
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatron"):
            names = {alias.name for alias in node.names}
            assert names <= _names_of_module(node.module or ""), node.module
    classes = _bases_and_fields(wheels() / "megatron" / "bridge")
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in ("LoRA", "DoRA", "GPTSFTDatasetConfig", "PackedSequenceSpecs"):
            known = {field for _, found in classes[name] for field in found}
            known |= {field for _, found in classes["DataloaderConfig"] for field in found}
            assert {word.arg for word in call.keywords} <= known, name


def _names_of_module(module: str) -> set[str]:
    """Names that a module, or a package's own file, binds."""
    path = wheels() / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found
