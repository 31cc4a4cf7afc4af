"""Runs torchtitan's own code on a written configuration, on a CPU and without processes.

torch's fake process group stands for all other ranks, and meta tensors for the weights.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

QUANTISERS = ("float8", "mx")


def load_config(folder: Path, *arguments: str) -> Any:
    """What torchtitan's ConfigManager makes of the module in a folder."""
    from torchtitan.config import ConfigManager

    sys.modules.pop("planned_run", None)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        with any_gpu():
            return ConfigManager().parse_args(
                ["--module", "planned_run", "--config", "planned", *arguments]
            )
    finally:
        sys.path.remove(str(folder))


@contextmanager
def any_gpu() -> Iterator[None]:
    """Converters to 8 bits ask which GPU there is: any."""
    modules: list[ModuleType] = [
        importlib.import_module(f"torchtitan.components.quantization.{name}") for name in QUANTISERS
    ]
    kept = [module.has_cuda_capability for module in modules]
    for module in modules:
        module.has_cuda_capability = lambda *_: True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, kept_one in zip(modules, kept, strict=True):
            module.has_cuda_capability = kept_one  # type: ignore[attr-defined]


def parallel_dims(config: Any, world: int) -> Any:
    """torchtitan's mesh degrees; AssertionError where they do not multiply to the world."""
    import torchtitan.distributed.parallel_dims as dims

    dims.device_type = "cpu"
    return dims.ParallelDims.from_config(config.parallelism, world)


def full_model(config: Any) -> Any:
    """The model on the meta device, after torchtitan's checks of the run against it."""
    import torch
    from torchtitan.distributed import utils

    utils.set_spmd_backend(config.parallelism.spmd_backend)
    model = config.model_spec.model
    model.update_from_config(config=config)
    with torch.device("meta"):
        return model.build()


def parameters(model: Any) -> int:
    """Distinct parameters of a model."""
    return sum(fromkey.numel() for fromkey in dict.fromkeys(model.parameters()))


@contextmanager
def fake_world(world: int, rank: int) -> Iterator[None]:
    """A process group of one process that believes in all the others."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank_parts(config: Any, world: int) -> tuple[Any, list[Any]]:
    """The pipeline schedule (None without one) and the model parts of this rank, sharded.

    Inside `fake_world`. torch below 2.14 cannot shard under the backend spmd_types: give the
    configuration partial_dtensor.
    """
    import torch

    dims = parallel_dims(config, world)
    dims.build_mesh()
    model = full_model(config)
    given = {
        "parallel_dims": dims,
        "training": config.training,
        "parallelism": config.parallelism,
        "compile_config": config.compile,
        "ac_config": config.activation_checkpoint,
        "dump_folder": "outputs",
    }
    spec = config.model_spec
    if not dims.pp_enabled:
        return None, [spec.parallelize_fn(model, **given)]
    schedule, parts, _, _ = spec.pipelining_fn(
        model,
        device=torch.device("cpu"),
        model_config=spec.model,
        parallelize_fn=spec.parallelize_fn,
        loss_fn=config.loss.build(compile_config=config.compile),
        **given,
    )
    return schedule, parts


def local_parameters(parts: list[Any]) -> int:
    """Parameters that this rank holds."""
    fromkeys = dict.fromkeys(parameter for part in parts for parameter in part.parameters())
    return sum(
        (parameter.to_local() if hasattr(parameter, "to_local") else parameter).numel()
        for parameter in fromkeys
    )
