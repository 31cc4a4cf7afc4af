"""Launch files of plans that train a part of the weights."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.contract import Launch
from planner.launch.dialects.hf import llamafactory_writer as llamafactory
from planner.launch.folder import launch_folder
from planner.launch.plans import launch_of as launch_of_plan
from planner.launch.plans import refusals_of, writer_of
from planner.launch.read.found import Hints
from planner.launch.registry import target_named, targets
from tests.launch.golden_files import check_golden
from tests.launch.round_trip import Back, assert_same, read_back
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of
from tests.launch.tuning_cases import LLAMA, SHARDED, WHOLE, WRITERS

PROFILES = {"deepspeed": "deepspeed", "accelerate": "hf-fsdp2", "llamafactory": "hf-transformers"}


def launch(target: str, item: Case) -> Launch:
    return launch_of(item, PROFILES[target], target)


def named(name: str) -> Case:
    return next(one for one in SHARDED if one.name == name)


@pytest.mark.parametrize("target", WRITERS)
@pytest.mark.parametrize("item", SHARDED, ids=lambda one: one.name)
def test_complete_and_python(target: str, item: Case) -> None:
    written = launch(target, item)
    writer = writer_of(targets()[target])
    assert_complete(writer, written)
    files = writer.files(written)
    ast.parse(files["train.py"])
    assert max(map(len, files["train.py"].splitlines())) <= 100
    assert ("merge.py" in files) == written.job.tuning.has_adapters


@pytest.mark.parametrize("target", WRITERS)
@pytest.mark.parametrize("name", ["qlora", "freeze"])
def test_golden(target: str, name: str) -> None:
    folder = launch_folder(launch(target, named(name)))
    kept = ("train.py", "merge.py")
    texts = {file: text for file, text in folder.files.items() if file in kept}
    check_golden(f"{target}/{name}", texts)


@pytest.mark.parametrize("target", WRITERS)
def test_published_weights_must_be_named(target: str, tmp_path: Path) -> None:
    """Without them nothing starts; the preflight looks for them; a dry run shows the command."""
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(launch(target, named("qlora"))).files, force=False)
    ast.parse((folder / "preflight.py").read_text())
    assert "checkpoint_problems()]" in (folder / "preflight.py").read_text()
    done = subprocess.run(
        ["bash", "launch.sh"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "set PRETRAINED" in done.stderr
    shown = subprocess.run(
        ["bash", "launch.sh", "--dry-run"], cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/home", "PRETRAINED": "my model; rm -rf x"},
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "my model; rm -rf x" in shlex.split(shown.stdout.splitlines()[-1])
    assert "FROM SCRATCH" not in shown.stderr + (folder / "README.md").read_text()


_GPUS = {"zero": 3, "mbs": 2}
REFUSED = (
    ("deepspeed", {"train": "qlora:base=gptq4"}, "gptq4 are published so"),
    ("deepspeed", {"train": "lora:whole=norms"}, "norms have another name"),
    ("accelerate", {"train": "lora:adapter=bf16"}, "adapter=bf16"),
    ("accelerate", {"train": "lora", "lengths": "mean=400"}, "--packing"),
)


@pytest.mark.parametrize(("target", "more", "reason"), REFUSED)
def test_refused_by_name(target: str, more: dict[str, object], reason: str) -> None:
    assert reason in reasons(launch(target, case("refused", LLAMA, "8xH100", **_GPUS, more=more)))


def test_layers_that_share_a_module_are_refused() -> None:
    """GPT-2 makes queries, keys and values by one product."""
    item = case(
        "fused", "gpt2-xl", "8xH100", **_GPUS, more={"seq": 1024, "train": "lora:targets=q"}
    )
    assert "stand for --train targets=q alone" in reasons(launch("accelerate", item))


def test_other_targets_name_those_that_can() -> None:
    item = case("lora", LLAMA, "8xH100", **_GPUS, more={"train": "lora"})
    found = list(refusals_of(launch_of(item, "hf-fsdp2", "torchtitan")))
    tuners = {name for name, one in targets().items() if one.tunes}
    assert tuners >= {"deepspeed", "accelerate", "llamafactory", "megatron-bridge"}
    assert any(f"--framework {' or '.join(sorted(tuners, key=[*targets()].index))}" in one.nearest
               for one in found)  # fmt: skip


@pytest.mark.parametrize("item", WHOLE, ids=lambda one: one.name)
def test_llamafactory_is_told_the_plan(item: Case) -> None:
    written = launch("llamafactory", item)
    assert_complete(llamafactory, written)
    read = yaml.safe_load(llamafactory.files(written)["llamafactory.yaml"])
    degrees, tuning = written.plan.degrees, written.job.tuning
    batch = read["per_device_train_batch_size"] * read["gradient_accumulation_steps"]
    assert batch * degrees.dp == written.plan.gbs
    assert read["disable_gradient_checkpointing"] == (written.plan.recompute == "none")
    assert read.get("lora_rank", 0) == tuning.rank
    bits = {"int8": 8, "nf4-double": 4}.get(tuning.base or "")
    assert read.get("quantization_bit") == bits
    whole = not tuning.has_adapters and written.job.framework.mode == "bf16"
    assert ("pure_bf16" in read) == whole


def test_llamafactory_golden() -> None:
    item = next(one for one in WHOLE if one.name == "qlora")
    files = dict(llamafactory.files(launch("llamafactory", item)))
    text = re.sub(r"save_steps: \d+", "save_steps: ...", files["llamafactory.yaml"])
    check_golden("llamafactory/qlora", {"llamafactory.yaml": text})


@pytest.mark.parametrize(
    ("gpus", "more", "reason"),
    [
        ("8xH100", {"zero": 3}, "every GPU holds whole"),
        ("1xH100", {"more": {"optimizer": "lion"}}, "is told no lion"),
        ("1xH100", {"more": {"dtype": "fp32", "precision": "fp32"}}, "written for bf16"),
        ("1xH100", {"more": {"freeze": ("embeddings",)}}, "no word for --freeze embeddings"),
    ],
)
def test_llamafactory_refuses(gpus: str, more: dict[str, Any], reason: str) -> None:
    item = case("refused", "llama-3.2-1b", gpus, **({"zero": 0} | more))
    assert reason in reasons(launch("llamafactory", item))


def test_a_quantised_plan_is_costed_as_llamafactory_runs_it() -> None:
    """It casts no norms to fp32, which peft's own preparation does."""
    item = case("qlora", LLAMA, "1xRTX4090", zero=0, recompute="full", more={"train": "qlora"})
    prepared = launch("llamafactory", item)
    again = launch_of_plan(
        prepared.plan, prepared.request, target_named("llamafactory"), "torchrun"
    )
    assert again.plan.techniques == ("16-bit-stream",)
    assert again.plan.peak_bytes < prepared.plan.peak_bytes


@pytest.mark.parametrize("packing", ["longest", "pack", "pack-varlen"])
def test_samples_are_packed_as_planned(packing: str, tmp_path: Path) -> None:
    """The files say how samples become rows; how long they are is told with --lengths."""
    more = {"train": "lora", "lengths": "mean=450", "packing": packing}
    item = case(packing, LLAMA, "1xH100", zero=0, mbs=2, recompute="full", more=more)
    written = launch("llamafactory", item)
    assert_complete(llamafactory, written)
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(written).files, force=False)
    given = read_given([str(folder)], Hints(lengths="mean=450"), 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.proposal is not None
    assert_same(written, Back(found, found.proposal))


def test_padding_to_the_limit_is_refused() -> None:
    more = {"train": "lora", "lengths": "mean=450", "packing": "limit"}
    item = case("limit", LLAMA, "1xH100", zero=0, more=more)
    assert "no --packing limit" in reasons(launch("llamafactory", item))


EXPERTS = (
    ("all-linear+experts+router", "all-linear"),
    ("attention", "q_proj,k_proj,v_proj,o_proj"),
    ("all-linear", "q_proj,k_proj,v_proj,o_proj"),
    ("attention+experts", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"),
)


@pytest.mark.parametrize(("targets", "modules"), EXPERTS)
def test_experts_are_named_as_peft_reads_them(targets: str, modules: str, tmp_path: Path) -> None:
    """Its `all-linear` means experts and routers; their names are those of linear layers."""
    item = case("experts", "qwen3-30b-a3b", "8xH100", **_GPUS, recompute="full",
                more={"train": f"lora:targets={targets}"})  # fmt: skip
    written = launch("accelerate", item)
    command = launch_folder(written).files["launch.sh"]
    assert f"--lora-target-modules {modules}\n" in command
    assert_same(written, read_back(written, tmp_path / "run"))


def test_experts_have_neither_dropout_nor_magnitudes() -> None:
    train = "lora:targets=all-linear+experts+router,dropout=0.1"
    item = case("dropped", "qwen3-30b-a3b", "8xH100", **_GPUS, more={"train": train})
    assert "experts have no dropout" in reasons(launch("accelerate", item))
    with pytest.raises(UsageError, match="does not support DoRA on experts"):
        Request(model="qwen3-30b-a3b", gpus="8xH100", gbs=8, framework="hf-fsdp2",
                train="dora:targets=experts").resolve()  # fmt: skip
