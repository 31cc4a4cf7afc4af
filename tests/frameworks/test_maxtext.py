"""MaxText reads what the writer writes: PLANNER_MAXTEXT names a Python 3.12 that imports maxtext's
configuration on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.launch.dialects.maxtext import writer
from planner.launch.dialects.maxtext.settings import keys, model_names, shipped_config
from tests.launch.maxtext_cases import MATRIX
from tests.launch.read.test_maxtext import BASE, WRONG
from tests.launch.torch_plans import Case, launch_of

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
_DUMP = Path(__file__).with_name("maxtext_dump.py")


def asked(*words: str, gpus: int = 1) -> Any:
    """What the other Python prints."""
    if not os.environ.get("PLANNER_MAXTEXT"):
        pytest.fail("PLANNER_MAXTEXT must name a Python 3.12 that has maxtext")
    devices = f"--xla_force_host_platform_device_count={gpus}"
    done = subprocess.run(
        [os.environ["PLANNER_MAXTEXT"], str(_DUMP), *words],
        env=os.environ | {"XLA_FLAGS": devices, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@cache
def _keys() -> Any:
    return asked("keys")


def test_settings_are_maxtexts() -> None:
    """Names, types, values and defaults; those of more than a line are left out."""
    assert set(_keys()) == set(keys())
    for name, (types, default, values) in _keys().items():
        known = keys()[name]
        assert known.types == set(types), name
        assert known.values == tuple(values), name
        if known.default is not None or default is None:
            assert known.default == default, name
        else:
            assert len(json.dumps(default)) >= 120, name


def test_configurations_are_maxtexts() -> None:
    found = asked("configs")
    models = {name.removeprefix("models/") for name in found if name.startswith("models/")}
    assert models == set(model_names())
    for name, settings in found.items():
        for key, value in (shipped_config(name) or {}).items():
            assert settings[key] == value, (name, key)


@pytest.mark.parametrize("case", MATRIX, ids=lambda item: item.name)
def test_maxtext_loads_it(case: Case, tmp_path: Path) -> None:
    launch = launch_of(case, "maxtext", "maxtext")
    degrees = launch.plan.degrees
    path = tmp_path / writer.CONFIG
    path.write_text(writer.files(launch)[writer.CONFIG])
    slices = f"num_slices={launch.nodes}"
    found = asked("read", str(path), slices, "dataset_type=synthetic", gpus=degrees.gpus)
    assert found["num_target_devices"] == degrees.gpus
    assert found["global_batch_size_to_train_on"] == degrees.gbs
    sizes = dict(zip(found["mesh_axes"], found["ici_parallelism"], strict=True))
    for axis, size in zip(found["mesh_axes"], found["dcn_parallelism"], strict=True):
        sizes[axis] *= size
    assert (sizes["tensor"], sizes["context"], sizes["stage"], sizes["expert"]) == (
        degrees.tp, degrees.cp, degrees.pp, degrees.ep,
    )  # fmt: skip
    assert found["num_decoder_layers"] == launch.job.model.layers
    assert found["shard_optimizer_over_data"] == (degrees.zero == 1)
    if degrees.pp > 1:
        assert found["num_pipeline_repeats"] == 1
        assert found["num_pipeline_microbatches"] == degrees.grad_acc


# Refused when it places weights on the GPUs, or when it trains, not by its parser.
_LATE = ("shard-width", "remat_policy: most")


@pytest.mark.parametrize(("more", "rule"), WRONG)
def test_maxtext_refuses_what_check_refuses(more: str, rule: str, tmp_path: Path) -> None:
    if rule in _LATE or more.strip() in _LATE or rule == "batch-size":
        return
    stated = {line.partition(":")[0] for line in more.splitlines()}
    text = BASE + "max_target_length: 4096\nper_device_batch_size: 1\n"
    kept = [line for line in text.splitlines(True) if line.partition(":")[0] not in stated]
    path = tmp_path / "run.yml"
    path.write_text("".join(kept) + more)
    assert asked("read", str(path), gpus=8) == {"refused": True}
