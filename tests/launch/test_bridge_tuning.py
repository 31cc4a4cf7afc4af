"""Fine-tuning with Megatron-Bridge: what its start script holds, and what is refused by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.contract import Launch
from planner.launch.dialects.megatron import bridge_writer
from planner.launch.dialects.megatron.bridge_finetune import SCRIPT
from planner.launch.folder import launch_folder
from planner.launch.plans import launch_of as launch_of_plan
from planner.launch.read.found import Hints
from planner.launch.registry import target_named
from tests.launch.golden_files import check_golden
from tests.launch.plans import default_argv
from tests.launch.round_trip import Back, assert_same
from tests.launch.torch_contract import reasons
from tests.launch.torch_plans import Case, case, launch_of
from tests.launch.tuning_cases import BRIDGE, LLAMA


def on_a_node(model: str, more: dict[str, object], mbs: int = 1) -> Launch:
    return launch(case("node", model, "8xH100", tp=2, dp=4, zero=1, grad_acc=4, mbs=mbs, more=more))


def launch(item: Case) -> Launch:
    return launch_of(item, "megatron-bridge", "megatron-bridge")


def named(name: str) -> Launch:
    return launch(next(one for one in BRIDGE if one.name == name))


@pytest.mark.parametrize("item", BRIDGE, ids=lambda one: one.name)
def test_read_back(item: Case, tmp_path: Path) -> None:
    """The same training, memory and time; lengths are told with --lengths."""
    written = launch(item)
    assert reasons(written) == ""
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(written).files, force=False)
    lengths = dict(item.more).get("lengths")
    hints = Hints(lengths=lengths if isinstance(lengths, str) else None)
    given = read_given([str(folder)], hints, 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.proposal is not None
    assert_same(written, Back(found, found.proposal))
    assert given.found.unknown == ()
    assert found.job is not None
    assert found.job.tuning == written.job.tuning or found.job.tuning.adapted(
        written.job.model
    ) == written.job.tuning.adapted(written.job.model)


@pytest.mark.parametrize("item", BRIDGE, ids=lambda one: one.name)
def test_the_script_is_python_and_starts_from_weights(item: Case) -> None:
    written = launch(item)
    text = bridge_writer.files(written)[SCRIPT]
    ast.parse(text)
    assert max(map(len, text.splitlines())) <= 100
    command = bridge_writer.command(written)
    needed = {entry.name for entry in command.needed}
    samples = "SAMPLES = " in text
    assert needed == ({"PRETRAINED", "DATASET"} if samples else {"PRETRAINED"})
    assert ("ADAPTERS = " in text) == written.job.tuning.has_adapters


@pytest.mark.parametrize("name", ["lora-attention", "packs"])
def test_golden(name: str) -> None:
    check_golden(f"megatron-bridge/{name}", {SCRIPT: bridge_writer.files(named(name))[SCRIPT]})


def test_samples_over_context_parallelism_sum_the_loss_by_token() -> None:
    argv = default_argv(bridge_writer.command(named("packs")))
    assert "model.calculate_per_token_loss=true" in argv
    assert "ddp.average_in_collective=false" in argv
    assert "pad_seq_to_mult=4" in bridge_writer.files(named("packs"))[SCRIPT]
    alone = default_argv(bridge_writer.command(named("longest")))
    assert "model.variable_seq_lengths=true" in alone
    assert not any(word.startswith("model.calculate_per_token_loss") for word in alone)


@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        (LLAMA, {"freeze": ("layers:8",)}, "not --freeze layers:8"),
        (LLAMA, {"train": "lora:whole=embeddings"}, "not whole= beside adapters"),
        (LLAMA, {"train": "lora:adapter=fp32"}, "not adapter=fp32"),
        (LLAMA, {"train": "lora:targets=q"}, "fuses layers that --train targets=q separates"),
        ("qwen3-30b-a3b", {"train": "dora"}, "which experts do not have"),
    ],
)
def test_refused_by_name(model: str, more: dict[str, object], reason: str) -> None:
    assert reason in reasons(on_a_node(model, more))


def test_quantised_plans_of_others_are_refused() -> None:
    item = case("qlora", LLAMA, "8xH100", zero=3, mbs=2, more={"train": "qlora"})
    plan = launch_of(item, "deepspeed", "deepspeed")
    with pytest.raises(UsageError, match="megatron-bridge does not support such adapters"):
        launch_of_plan(plan.plan, plan.request, target_named("megatron-bridge"), "torchrun")


def test_a_micro_batch_is_one_pack() -> None:
    more: dict[str, object] = {"lengths": "mean=450", "packing": "pack-varlen"}
    with pytest.raises(UsageError, match="mbs == 1"):
        on_a_node(LLAMA, more, mbs=2)
