"""torchtitan 0.3.0 reads, checks and shards what its writer writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.launch.dialects.torchtitan import writer as torchtitan
from planner.launch.dialects.torchtitan.sources import SCHEDULES
from planner.launch.dialects.torchtitan.table import FLAVORS
from planner.launch.plans import refusals_of
from planner.predict.ops.table import parameter_count
from tests.frameworks import titan_probe as probe
from tests.launch.titan_cases import DENSE, MATRIX, SINKS
from tests.launch.torch_plans import Case, launch_of

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]

Write = Callable[[Mapping[str, str]], Path]
Needs = Callable[[str], ModuleType]
# Sharding under the default backend needs torch 2.14; the one before shards alike.
BACKEND = ("--parallelism.spmd_backend", "partial_dtensor")
SHARDED = ("fsdp", "hsdp-cp", "tp", "pp-uneven", "interleaved", "gpipe", "four-dimensions",
           "replicated", "unregistered", "qkv-bias")  # fmt: skip


@pytest.fixture(autouse=True)
def installed(needs: Needs) -> None:
    needs("torchtitan")


def config_of(case: Case, folder: Write, *arguments: str) -> Any:
    launch = launch_of(case, "torchtitan", "torchtitan")
    assert list(refusals_of(launch)) == []
    return probe.load_config(folder(torchtitan.files(launch)), *arguments)


@pytest.mark.parametrize("case", (*MATRIX, SINKS), ids=lambda item: item.name)
def test_reads_degrees_batch_and_model(case: Case, folder: Write) -> None:
    config = config_of(case, folder)
    degrees = launch_of(case, "torchtitan", "torchtitan").plan.degrees
    dims = probe.parallel_dims(config, degrees.gpus)
    assert (dims.tp, dims.pp, dims.cp, dims.ep) == (
        degrees.tp, degrees.pp, degrees.cp, degrees.ep)  # fmt: skip
    assert dims.dp_replicate * dims.dp_shard == degrees.dp
    batch = config.training.local_batch_size * degrees.dp
    assert config.training.global_batch_size == degrees.gbs
    assert degrees.gbs % batch == 0
    spec = launch_of(case, "torchtitan", "torchtitan").job.model
    counted = parameter_count(spec)
    assert probe.parameters(probe.full_model(config)) == counted.total


@pytest.mark.parametrize(
    "case", [c for c in DENSE if c.name in SHARDED], ids=lambda item: item.name
)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_rank_holds_its_share(case: Case, last: bool, folder: Write) -> None:
    """The real pipeline split, tensor split and FSDP of one rank hold what the plan counts."""
    launch = launch_of(case, "torchtitan", "torchtitan")
    degrees = launch.plan.degrees
    config = config_of(case, folder, *BACKEND)
    rank = degrees.gpus - 1 if last else 0
    with probe.fake_world(degrees.gpus, rank):
        schedule, parts = probe.rank_parts(config, degrees.gpus)
        held = probe.local_parameters(parts)
    if degrees.pp > 1:
        assert type(schedule).__name__ == "Schedule" + config.parallelism.pipeline_parallel_schedule
        assert schedule._n_microbatches == degrees.grad_acc
    assert held == pytest.approx(_expected(launch, degrees.pp - 1 if last else 0), rel=2e-3)


def _expected(launch: Any, stage: int) -> float:
    """Parameters of a stage over tp and the ranks that shard them."""
    degrees, model = launch.plan.degrees, launch.job.model
    counted = parameter_count(model)
    layer = (counted.total - counted.embedding - counted.head) / model.layers
    found = layer * launch.plan.layout.stage_layers[stage]
    found += counted.embedding if stage == 0 else 0
    found += counted.head if stage == degrees.pp - 1 else 0
    shards = degrees.shard or degrees.dp * degrees.cp
    return float(found / degrees.tp / (shards if degrees.zero else 1))


@pytest.mark.parametrize("name", sorted(FLAVORS))
def test_registered_sizes_are_the_catalogue_s(name: str) -> None:
    import importlib

    import torch

    flavors = FLAVORS[name]
    module = importlib.import_module(f"torchtitan.models.{flavors.module}")
    model = module.model_registry(flavors.name).model
    assert model.max_seq_len == flavors.longest
    spec = load_model(name).spec
    model.layers = model.layers[:4]
    with torch.device("meta"):
        built = probe.parameters(model.build())
    few = ModelSpec.model_validate(
        spec.model_dump() | {"layers": 4, "layer_kinds": spec.kind_sequence[:4]}
    )
    assert built == parameter_count(few).total


def test_schedule_names_are_torch_s() -> None:
    from torch.distributed.pipelining.schedules import get_schedule_class

    for name in SCHEDULES:
        assert get_schedule_class(name)
    with pytest.raises(ValueError, match="Unknown schedule name"):
        get_schedule_class("1F1B-interleaved")


@pytest.mark.parametrize(
    ("given", "wrong", "says"),
    [
        ("tensor_parallel_degree=1", "tensor_parallel_degree=3", "Invalid parallel dims"),
        ("data_parallel_shard_degree=8", "data_parallel_shard_degree=4", "Invalid parallel dims"),
        ("seq_len=4096", "sequence_length=4096", "unexpected keyword"),
        ("disable_cuda_graphs=True", "disable_cuda_graphs=False", ""),
    ],
)
def test_wrong_files_fail(given: str, wrong: str, says: str, folder: Write) -> None:
    launch = launch_of(DENSE[0] if says else MATRIX[6], "torchtitan", "torchtitan")
    files = dict(torchtitan.files(launch))
    text = files["planned_run.py"]
    assert given in text
    files["planned_run.py"] = text.replace(given, wrong)
    expected = (AssertionError, TypeError, ValueError)
    with pytest.raises(expected, match=says or "CUDA graphs do not support pipeline"):
        probe.parallel_dims(probe.load_config(folder(files)), launch.plan.degrees.gpus)
