"""TRL's own classes read every trl.yaml that is written, through the program beside it."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from planner.job.job import Job
from planner.launch.dialects.hf import trl_writer as trl
from tests.launch.torch_plans import Case
from tests.launch.trl_cases import CASES, NAMES, as_run
from tests.launch.tuning_cases import VISION

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
Needs = Callable[[str], ModuleType]
Folder = Callable[[Mapping[str, str]], Path]


def parsed(path: Path, job: Job) -> tuple[Any, Any, Any]:
    """What the program reads of trl.yaml, by TRL's own classes: on a CPU, and without DeepSpeed,
    which reads its own file elsewhere."""
    from trl import ModelConfig, TrlParser

    settings = yaml.safe_load((path / trl.CONFIG).read_text())
    settings.pop("deepspeed", None)
    changed = settings | {"use_cpu": True, "output_dir": "outputs"}
    (path / "changed.yaml").write_text(yaml.safe_dump(changed))
    names = runpy.run_path(str(path / trl.program(job)), run_name="planned")
    config = names[f"{trl.trainer_of(job)['name']}Config"]
    parser = TrlParser((names["RunArguments"], config, ModelConfig))
    run, training, model = parser.parse_args_and_config(["--config", str(path / "changed.yaml")])
    return run, training, model


TOWERS = [pytest.param("hf-transformers", item, id=f"vision-{item.name}") for item in VISION]
WRITTEN = [*(pytest.param(*one, id=name) for one, name in zip(CASES, NAMES, strict=True)), *TOWERS]


@pytest.mark.parametrize(("profile", "item"), WRITTEN)
def test_trl_reads_what_is_written(
    profile: str, item: Case, needs: Needs, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("trl")
    from trl import get_peft_config, get_quantization_config

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    launch = as_run(profile, item)
    job, plan = launch.job, launch.plan
    path = folder(trl.files(launch))
    run, training, model = parsed(path, job)
    assert run.trl_release == "1.16.0"
    assert training.max_length == plan.seq
    assert training.per_device_train_batch_size == plan.degrees.mbs
    assert training.gradient_accumulation_steps == plan.degrees.grad_acc
    assert training.gradient_checkpointing == (launch.recomputes_layers and profile != trl.FSDP)
    assert training.bf16
    if job.objective.kind == "lm":
        full = job.samples.lengths is None or job.samples.is_packed
        assert training.packing == (full and job.model.vision is None)
    adapters, packing = get_peft_config(model), get_quantization_config(model)
    assert (adapters is None) == (not job.tuning.has_adapters)
    assert (packing is None) == (job.tuning.base is None)
    if adapters is not None:
        assert (adapters.r, adapters.use_dora) == (job.tuning.rank, job.tuning.method == "dora")
    if packing is not None:
        assert packing.load_in_8bit == (job.tuning.base == "int8")
