"""accelerate's writer."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from planner.launch.contract import Launch
from planner.launch.dialects.hf import accelerate_writer as accelerate
from tests.launch.accelerate_cases import BASE, MATRIX
from tests.launch.golden_files import check_golden
from tests.launch.plans import default_argv
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of

LLAMA = "llama-3.1-8b"


def launch(item: Case) -> Launch:
    return launch_of(item, "hf-fsdp2", "accelerate")


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_says_what_the_plan_says(entry: Case) -> None:
    assert_complete(accelerate, launch(entry))
    read: dict[str, Any] = yaml.safe_load(accelerate.files(launch(entry))["accelerate.yaml"])
    degrees, mesh = launch(entry).plan.degrees, read["parallelism_config"]
    replicate = mesh["parallelism_config_dp_replicate_size"]
    shard = mesh["parallelism_config_dp_shard_size"]
    assert replicate * shard == degrees.dp == read["num_processes"]
    assert shard == (degrees.shard or degrees.dp)
    assert read["num_machines"] == launch(entry).nodes
    assert read["fsdp_config"]["fsdp_reshard_after_forward"] == (degrees.zero == 3)
    again = read["fsdp_config"]["fsdp_activation_checkpointing"]
    assert again == (launch(entry).plan.recompute == "full")


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_the_script_is_given_the_batch(entry: Case) -> None:
    text = accelerate.files(launch(entry))["train.py"]
    words = default_argv(accelerate.command(launch(entry)))[1:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    demanded = re.findall(r'add_argument\(\s*"(--[a-z-]+)",[^)]*required=True', text)
    assert set(demanded) <= set(given)
    assert all(f'"{name}"' in text for name in given)
    degrees = launch(entry).plan.degrees
    batch = int(given["--micro-batch-size"]) * int(given["--gradient-accumulation-steps"])
    assert batch * degrees.dp == degrees.gbs
    assert given["--seq-length"] == str(launch(entry).plan.seq)


@pytest.mark.parametrize("name", ["zero3", "hsdp", "8bit"])
def test_golden(name: str) -> None:
    found = next(item for item in MATRIX if item.name == name)
    check_golden(f"accelerate/{name}", accelerate.files(launch(found)))


def test_launched_with_its_file() -> None:
    command = accelerate.command(launch(BASE))
    assert command.launcher == "accelerate"
    assert command.launcher_arguments == ("--config_file", "accelerate.yaml")
    assert default_argv(command)[0] in accelerate.files(launch(BASE))


REFUSED = (
    (case("lion", LLAMA, "8xH100", zero=3, more={"optimizer": "lion"}), "lion"),
    (case("half", LLAMA, "8xH100", zero=3, more={"optimizer": "adamw-bf16"}), "adamw-bf16"),
    (case("8bit-offload", LLAMA, "8xH100", zero=3,
          more={"optimizer": "adamw-8bit", "optimizer_offload": 1.0}), "no CPU kernel"),
    (case("8bit-foreach", LLAMA, "8xH100", zero=3,
          more={"optimizer": "adamw-8bit", "optimizer_kernel": "foreach"}), "one kernel"),
    (case("mpt", "mpt-7b", "8xH100", zero=3, more={"seq": 2048}), "no model type"),
    (case("dropout", LLAMA, "8xH100", zero=3, more={"dropout": True}), "dropout"),
)  # fmt: skip


@pytest.mark.parametrize(("entry", "reason"), REFUSED, ids=lambda item: getattr(item, "name", ""))
def test_refused(entry: Case, reason: str) -> None:
    assert reason in reasons(launch(entry))
