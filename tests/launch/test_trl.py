"""Launch folders for TRL: SFT, preferences and reward models."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.folder import launch_folder
from planner.launch.plans import writer_of
from planner.launch.read.document import LIMIT_ALONE
from planner.launch.read.found import Hints
from planner.launch.registry import targets
from tests.launch.golden_files import check_golden
from tests.launch.round_trip import Back, assert_same
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of
from tests.launch.trl_cases import CASES, LLAMA, NAMES, SMALL, as_run, named


@pytest.mark.parametrize(("profile", "item"), CASES, ids=NAMES)
def test_there_and_back(profile: str, item: Case, tmp_path: Path) -> None:
    launch = as_run(profile, item)
    writer = writer_of(targets()["trl"])
    assert_complete(writer, launch)
    files = writer.files(launch)
    program = next(text for name, text in files.items() if name.startswith("train_"))
    ast.parse(program)
    assert max(map(len, program.splitlines())) <= 100
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(launch).files, force=False)
    given = read_given([str(folder)], Hints(lengths=launch.request.lengths), 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.proposal is not None, found.problems
    assert_same(launch, Back(found, found.proposal))
    assert found.found.unknown == ()
    # Of samples that are padded, how long they are is told with --lengths alone.
    left_out = [setting.key for setting, _ in found.found.unmodelled]
    assert set(left_out) <= {LIMIT_ALONE}
    assert found.plan is not None
    assert (found.plan.step_time_s, found.plan.peak_bytes) == pytest.approx(
        (launch.plan.step_time_s, launch.plan.peak_bytes), rel=1e-9
    )
    assert found.job is not None
    assert found.job.objective == launch.job.objective
    assert found.job.tuning.frozen == launch.job.tuning.frozen


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("hf-transformers", "qlora"), ("hf-transformers", "lora-frozen"),
        ("hf-transformers", "packed-pack-varlen"), ("hf-fsdp2", "lora"), ("deepspeed", "dpo"),
        ("hf-transformers", "orpo-qlora"),
    ],
)  # fmt: skip
def test_golden(profile: str, name: str) -> None:
    files = writer_of(targets()["trl"]).files(named(profile, name))
    kept = {one: re.sub(r"save_steps: \d+", "save_steps: ...", text)
            for one, text in files.items()
            if one == "trl.yaml" or one.startswith("train_")}  # fmt: skip
    check_golden(f"trl/{profile}-{name}", kept)


_ONE = {"zero": 0, "mbs": 2}
REFUSED = (
    ("hf-transformers", {"objective": "orpo:logits=chunked"}, "makes all logits at once"),
    ("hf-transformers", {"objective": "dpo:logits=fp32"}, "decides the type of the logits"),
    ("hf-transformers", {"train": "lora", "objective": "dpo:reference=copied"}, "keeps no copy"),
    ("hf-transformers", {"train": "lora:targets=q+head"}, "past an adapter on the head"),
    ("hf-transformers", {"lengths": "mean=450", "packing": "padding-free"}, "without padding"),
    (
        "hf-transformers",
        {"lengths": "mean=450", "packing": "longest", "balance": "tokens"},
        "do not balance",
    ),
    (
        "hf-transformers",
        {"objective": "orpo", "lengths": "mean=450", "packing": "limit"},
        "pads to the longest",
    ),
    ("hf-transformers", {"optimizer": "lion"}, "is told no lion"),
    ("hf-transformers", {"dtype": "fp32", "precision": "fp32"}, "written for bf16"),
    ("hf-transformers", {"objective": "cpo", "use": ("liger-kernels",)}, "no loss of Liger"),
    ("hf-transformers", {"train": "qlora:base=gptq4"}, "published so"),
    ("hf-transformers", {"train": "lora:adapter=bf16"}, "adapter=bf16"),
    ("deepspeed", {"optimizer": "adamw-8bit", "optimizer_offload": 1.0}, "no CPU kernel"),
)


@pytest.mark.parametrize(("profile", "more", "reason"), REFUSED)
def test_refused_by_name(profile: str, more: dict[str, object], reason: str) -> None:
    zero = 0 if profile == "hf-transformers" else 3
    model = LLAMA if "train" in more else SMALL
    item = case("refused", model, "8xH100", zero=zero, mbs=2, more=more)
    assert reason in reasons(launch_of(item, profile, "trl"))


def test_shards_of_sixteen_bits_are_refused() -> None:
    """FSDP2 over bf16 weights, which accelerate makes fp32."""
    item = case("sharded", SMALL, "8xH100", zero=3, mbs=2)
    assert "every GPU holds whole" in reasons(launch_of(item, "hf-transformers", "trl"))


def test_a_plan_of_tensor_parallelism_is_refused() -> None:
    item = case("tensor", SMALL, "8xH100", zero=2, mbs=2, tp=2)
    assert "AutoTP" in reasons(launch_of(item, "deepspeed", "trl"))


def test_it_is_costed_as_trl_runs_it() -> None:
    """A chunk of logits at a time, adapters in bf16 and norms in 16 bits beside packed weights."""
    item = case("qlora", LLAMA, "1xH100", **_ONE, more={"train": "qlora"})
    planned = launch_of(item, "hf-transformers", "trl")
    run = as_run("hf-transformers", item)
    assert run.plan.techniques == ("16-bit-stream",)
    assert (run.job.tuning.adapter, run.job.objective.logits) == ("bf16", "chunked")
    assert run.plan.peak_bytes < planned.plan.peak_bytes
    # What shards holds adapters as all that trains.
    sharded = as_run("hf-fsdp2", case("qlora", LLAMA, "8xH100", zero=3, more={"train": "qlora"}))
    assert sharded.job.tuning.adapter is None


@pytest.mark.parametrize(("name", "data"), [("full", "empty: random"), ("dpo", "reads")])
def test_data_must_be_named_where_no_rows_can_be_made_up(name: str, data: str) -> None:
    launch = named("hf-transformers", name)
    variables = {one.name: one for one in writer_of(targets()["trl"]).command(launch).variables}
    assert data in variables["DATASET"].meaning
    assert variables["DATASET"].needed == (name == "dpo")
    assert variables["PRETRAINED"].needed
    assert "usual for TRL" in variables["LEARNING_RATE"].meaning
