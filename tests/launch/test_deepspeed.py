"""DeepSpeed's writer."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from planner.job.models.hf_config import model_from_hf_config
from planner.launch.contract import Launch
from planner.launch.dialects.hf import deepspeed_writer as deepspeed
from tests.launch.deepspeed_cases import BASE, MATRIX
from tests.launch.golden_files import check_golden
from tests.launch.plans import default_argv
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, changed, launch_of

LLAMA = "llama-3.1-8b"


def launch(item: Case) -> Launch:
    return launch_of(item, "deepspeed", "deepspeed")


def config(item: Case) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(deepspeed.files(launch(item))["ds_config.json"])
    return read


def arguments(item: Case) -> dict[str, str]:
    words = default_argv(deepspeed.command(launch(item)))
    return dict(zip(words[1::2], words[2::2], strict=True))


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_says_what_the_plan_says(entry: Case) -> None:
    assert_complete(deepspeed, launch(entry))
    read, given, degrees = config(entry), arguments(entry), launch(entry).plan.degrees
    mbs, acc = read["train_micro_batch_size_per_gpu"], read["gradient_accumulation_steps"]
    assert (mbs, acc) == (degrees.mbs, degrees.grad_acc)
    assert mbs * acc * degrees.gpus // degrees.tp == degrees.gbs
    assert read.get("train_batch_size", degrees.gbs) == degrees.gbs
    assert ("train_batch_size" in read) == (degrees.tp == 1)
    assert read.get("tensor_parallel", {}).get("autotp_size", 1) == degrees.tp
    assert read["zero_optimization"]["stage"] == degrees.zero
    assert given["--per_device_train_batch_size"] == str(mbs)
    assert given["--gradient_accumulation_steps"] == str(acc)
    assert given["--deepspeed"] == "ds_config.json"


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_model_is_the_plan_s(entry: Case) -> None:
    text = deepspeed.files(launch(entry))["model/config.json"]
    model = launch(entry).job.model
    read = model_from_hf_config(json.loads(text), "config.json")
    same = {"name", "family", "source", "pretraining_seq"}
    assert read.model_dump(exclude=same) == model.model_dump(exclude=same)


@pytest.mark.parametrize("entry", MATRIX, ids=lambda item: item.name)
def test_script_is_python(entry: Case) -> None:
    text = deepspeed.files(launch(entry))["train.py"]
    ast.parse(text)
    words = default_argv(deepspeed.command(launch(entry)))
    assert words[words.index("--seq_length") + 1] == str(launch(entry).plan.seq)
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("name", ["zero3", "zero2-tp", "offload-part", "lion"])
def test_golden(name: str) -> None:
    found = next(item for item in MATRIX if item.name == name)
    words = "\n".join(default_argv(deepspeed.command(launch(found)))) + "\n"
    check_golden(f"deepspeed/{name}", dict(deepspeed.files(launch(found))) | {"arguments": words})


def of(name: str) -> Case:
    return next(item for item in MATRIX if item.name == name)


def test_where_weights_and_states_are() -> None:
    """On the host, on the drive that the run names, in unified memory, or twice."""
    assert config(of("weights"))["zero_optimization"]["offload_param"] == {
        "device": "cpu", "pin_memory": True,
    }  # fmt: skip
    zero = config(of("nvme"))["zero_optimization"]
    for table in ("offload_param", "offload_optimizer"):
        assert (zero[table]["device"], zero[table]["nvme_path"]) == ("nvme", "NVME")
    assert "${NVME}" in deepspeed.command(launch(of("nvme"))).argv
    assert "on_drive(sys.argv[1:])" in deepspeed.files(launch(of("nvme")))["train.py"]
    (drive,) = [
        one for one in deepspeed.command(launch(of("nvme"))).variables if one.name == "NVME"
    ]
    assert drive.needed
    assert config(of("hpz"))["zero_optimization"]["zero_hpz_partition_size"] == 8
    assert arguments(of("paged"))["--optim"] == "paged_adamw_8bit"
    assert "on_drive" not in deepspeed.files(launch(BASE))["train.py"]


def test_recompute_is_an_argument() -> None:
    again = arguments(case("again", LLAMA, "8xH100", zero=3, recompute="full"))
    assert again["--activation_checkpointing"] == "true"
    assert json.loads(again["--activation_checkpointing_kwargs"]) == {"use_reentrant": False}
    assert "--activation_checkpointing" not in arguments(BASE)


def test_no_more_than_two_layers_are_gathered() -> None:
    zero = config(BASE)["zero_optimization"]
    layer = zero["stage3_prefetch_bucket_size"]
    # Llama 3.1 8B: 4096·(4096 + 2·1024 + 4096) + 3·4096·14336 + 2·4096.
    assert layer == 218_112_000
    assert zero["stage3_max_live_parameters"] == 2 * layer


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_buckets_are_as_large_as_the_prediction_has_them(stage: int) -> None:
    """Two under `overlap_comm` in stages 1 and 2, one in stage 3; each whole."""
    item = case("buckets", LLAMA, "8xH100", zero=stage)
    zero = config(item)["zero_optimization"]
    buckets = 1 if stage == 3 else 1 + zero["overlap_comm"]
    state = launch(item).job.framework.state
    assert 2 * buckets * zero["reduce_bucket_size"] == state.whole_bucket_bytes


REFUSED = (
    (case("muon", LLAMA, "8xH100", zero=1, more={"optimizer": "muon"}), "no muon"),
    (case("half", LLAMA, "8xH100", zero=1, more={"optimizer": "adamw-bf16"}), "no adamw-bf16"),
    (case("loop", LLAMA, "8xH100", zero=1, more={"optimizer_kernel": "forloop"}), "for-loop"),
    (case("dropout", LLAMA, "8xH100", zero=1, more={"dropout": True}), "dropout"),
    (case("mpt", "mpt-7b", "8xH100", zero=1, more={"seq": 2048}), "no model type"),
    (case("long", "llama-2-7b", "8xH100", zero=3, more={"seq": 8192}), "longer than"),
    (case("8bit-offload", LLAMA, "8xH100", zero=3,
          more={"optimizer": "adamw-8bit", "optimizer_offload": 1.0}), "no CPU kernel"),
)  # fmt: skip


@pytest.mark.parametrize(("entry", "reason"), REFUSED, ids=lambda item: getattr(item, "name", ""))
def test_refused(entry: Case, reason: str) -> None:
    assert reason in reasons(launch(entry))


def test_kernel_of_the_trainer() -> None:
    assert arguments(BASE)["--optim"] == "adamw_torch_fused"
    setting = changed(launch(BASE), optimizer_kernel="foreach")
    assert "adamw_torch" in default_argv(deepspeed.command(setting))
