"""Launch files of plans that train a part of the weights."""

from __future__ import annotations

import ast
import shlex
import subprocess
from pathlib import Path

import pytest

from planner.job.written_folder import write_folder
from planner.launch.contract import Launch
from planner.launch.folder import launch_folder
from planner.launch.plans import refusals_of, writer_of
from planner.launch.registry import targets
from tests.launch.golden_files import check_golden
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of
from tests.launch.tuning_cases import LLAMA, SHARDED, WRITERS

PROFILES = {"deepspeed": "deepspeed", "accelerate": "hf-fsdp2"}


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
    assert any("--framework deepspeed or accelerate" in one.nearest for one in found)
