"""AutoModel's YAML: what a plan's file holds, and what is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.job.errors import UsageError
from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.contract import Launch
from planner.launch.dialects.automodel import writer
from planner.launch.dialects.automodel.stages import (
    layers_a_stage,
    layers_of,
    module_names,
    stage_layers,
    stages_of,
)
from planner.launch.folder import launch_folder
from planner.launch.read.found import Hints
from tests.launch.automodel_cases import LLAMA, MATRIX
from tests.launch.golden_files import check_golden
from tests.launch.round_trip import Back, assert_same
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of


def launch(item: Case) -> Launch:
    return launch_of(item, "automodel", "automodel")


def named(name: str) -> Launch:
    return launch(next(one for one in MATRIX if one.name == name))


def settings(written: Launch) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(writer.files(written)["automodel.yaml"])
    return found


@pytest.mark.parametrize("item", MATRIX, ids=lambda one: one.name)
def test_complete_and_read_back(item: Case, tmp_path: Path) -> None:
    """The same training, memory and time; lengths are told with --lengths."""
    written = launch(item)
    assert_complete(writer, written)
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(written).files, force=False)
    lengths = dict(item.more).get("lengths")
    hints = Hints(lengths=lengths if isinstance(lengths, str) else None)
    given = read_given([str(folder)], hints, 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.proposal is not None
    assert_same(written, Back(found, found.proposal))
    assert found.job is not None
    tuning, again = written.job.tuning, found.job.tuning
    assert again.adapted(written.job.model) == tuning.adapted(written.job.model)
    assert (again.method, again.base, again.rank) == (tuning.method, tuning.base, tuning.rank)
    assert [why for _, why in given.found.unmodelled if "limit" not in why] == []


@pytest.mark.parametrize("name", ["full-hsdp", "lora-pipeline", "qlora", "packs"])
def test_golden(name: str) -> None:
    text = writer.files(named(name))["automodel.yaml"]
    kept = [line for line in text.splitlines() if "ckpt_every_steps" not in line]
    check_golden(f"automodel/{name}", {"automodel.yaml": "\n".join(kept) + "\n"})


def test_a_pipeline_runs_once_a_step() -> None:
    written = named("lora-interleaved")
    read, degrees = settings(written), written.plan.degrees
    local = read["step_scheduler"]["local_batch_size"]
    assert local == degrees.mbs * degrees.grad_acc
    assert local * degrees.dp == read["step_scheduler"]["global_batch_size"]
    assert read["distributed"]["pipeline"]["layers_per_stage"] == 2
    assert read["distributed"]["reshard_after_forward"] is False


def test_what_is_trained() -> None:
    read = settings(named("qlora"))
    assert read["quantization"]["bnb_4bit_use_double_quant"] is True
    assert read["peft"]["exclude_modules"] == ["lm_head"]
    assert read["model"]["torch_dtype"] == "bfloat16"
    assert settings(named("lora-attention"))["peft"]["target_modules"] == ["*.q_proj", "*.v_proj"]
    assert "peft" not in settings(named("full"))
    assert settings(named("full"))["model"]["torch_dtype"] == "float32"


def test_kernels_are_those_of_the_plan() -> None:
    on, off = settings(named("lora")), settings(named("plain"))
    assert (on["model"]["use_liger_kernel"], off["model"]["use_liger_kernel"]) == (True, False)
    assert on["peft"]["use_memory_efficient_lora"] is True
    assert off["peft"]["use_memory_efficient_lora"] is False
    assert on["loss_fn"]["_target_"].endswith("TEParallelCrossEntropy")
    assert off["loss_fn"]["_target_"].endswith("MaskedCrossEntropy")
    assert settings(named("lora-tensor"))["model"]["use_liger_kernel"] is False


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"freeze": ("layers:8",)}, "no word for --freeze layers:8"),
        ({"train": "lora:whole=embeddings"}, "trained whole beside"),
        ({"train": "lora:adapter=fp32"}, "adapter=fp32"),
        ({"train": "dora:base=nf4"}, "no DoRA beside quantised weights"),
        ({"optimizer": "lion"}, "not for lion"),
        ({"optimizer_kernel": "forloop"}, "AdamW is fused"),
    ],
)
def test_jobs_refused_by_name(more: dict[str, object], reason: str) -> None:
    assert reason in reasons(launch(case("refused", LLAMA, "8xH100", zero=3, more=more)))


_LENGTHS = {"lengths": "mean=450"}


@pytest.mark.parametrize(
    ("model", "degrees", "more", "needs"),
    [
        ("mistral-7b", {"tp": 2, "zero": 3}, {}, "tp == 1"),
        (LLAMA, {"zero": 0}, {}, "zero > 0"),
        (LLAMA, {"zero": 0, "tp": 2}, {"train": "lora"}, "tp * cp * pp == 1"),
        (LLAMA, {"zero": 3}, {"train": "qlora:base=int8"}, "zero == 0"),
        (LLAMA, {"zero": 2, "pp": 2}, {"train": "qlora"}, "pp == 1"),
        (LLAMA, {"zero": 2, "pp": 2}, _LENGTHS | {"packing": "longest"}, "pp == 1"),
        (LLAMA, {"zero": 3, "cp": 2}, _LENGTHS | {"packing": "pack-varlen"}, "cp == 1"),
    ],
)
def test_what_it_needs_of_the_degrees(
    model: str, degrees: dict[str, Any], more: dict[str, object], needs: str
) -> None:
    """A search does not offer what no file says."""
    with pytest.raises(UsageError, match=re.escape(needs)):
        launch(case("needs", model, "8xH100", **degrees, more=more))


def test_checkpoints_under_ddp_are_refused() -> None:
    item = case("ddp", LLAMA, "8xH100", zero=0, recompute="full", more={"train": "lora"})
    assert "checkpoints attention, feed-forward block and norms apart" in reasons(launch(item))


def test_layers_of_a_stage() -> None:
    """The first stages take what is left (pipelining/functional.py)."""
    assert stage_layers(30, 4) == (8, 8, 7, 7)
    assert layers_a_stage(30, 4) == 8
    assert stages_of(80, 2, 4, interleaved=True) == 40
    assert stages_of(80, None, 4, interleaved=True) == 8
    assert stages_of(80, 27, 4, interleaved=False) is None
    assert stages_of(61, 2, 4, interleaved=True, rounded="up") == 32
    assert stages_of(61, 2, 4, interleaved=True, rounded="down") == 28
    parts = module_names((2, 1))
    assert parts[0] == [
        "model.embed_tokens", "model.layers.0", "model.layers.1", "model.rotary_emb",
    ]  # fmt: skip
    assert parts[1] == ["model.layers.2", "model.norm", "lm_head", "model.rotary_emb"]
    assert layers_of(parts) == (2, 1)
