"""axolotl's files: the plan in its words, and what it does not run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.job.models.catalog import load_model
from planner.job.tuning import read_tuning
from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.contract import Launch
from planner.launch.dialects.hf import axolotl_writer as axolotl
from planner.launch.dialects.hf.axolotl_freezing import frozen_by, unfrozen_pattern
from planner.launch.folder import launch_folder
from planner.launch.plans import launch_of as launch_of_plan
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from planner.launch.registry import target_named
from tests.cli.conftest import run_cli
from tests.launch.axolotl_cases import ENGINE, LLAMA, MATRIX, ONE, PAIRS, SHARDED, SMALL
from tests.launch.golden_files import check_golden
from tests.launch.round_trip import Back, assert_same, read_back
from tests.launch.torch_contract import assert_complete, reasons
from tests.launch.torch_plans import Case, case, launch_of

HF, DEEPSPEED = "hf-transformers", "deepspeed"
PLANS = [(HF, one) for one in (*MATRIX, *PAIRS)] + [(DEEPSPEED, one) for one in ENGINE]


def launch(item: Case, profile: str = HF) -> Launch:
    return launch_of(item, profile, "axolotl")


def named(name: str) -> Launch:
    return launch(next(one for one in (*MATRIX, *PAIRS) if one.name == name))


def settings(written: Launch) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(axolotl.files(written)["axolotl.yaml"])
    return read


@pytest.mark.parametrize(("profile", "item"), PLANS, ids=lambda one: getattr(one, "name", one))
def test_it_is_told_the_plan(profile: str, item: Case) -> None:
    written = launch(item, profile)
    assert_complete(axolotl, written)
    read, degrees = settings(written), written.plan.degrees
    batch = read["micro_batch_size"] * read["gradient_accumulation_steps"]
    assert batch * degrees.dp == written.plan.gbs
    assert read["sequence_len"] == written.plan.seq
    assert read["gradient_checkpointing"] == (written.plan.recompute != "none")
    assert read.get("lora_r", 0) == written.job.tuning.rank
    assert ("fsdp_config" in read) == (profile == HF and degrees.zero > 0)
    assert ("deepspeed" in read) == (profile == DEEPSPEED)


@pytest.mark.parametrize("item", [*PAIRS, *ENGINE], ids=lambda one: one.name)
def test_pairs_and_the_engine_come_back(item: Case, tmp_path: Path) -> None:
    """The rest of the plans stands in test_round_trip.py."""
    written = launch(item, DEEPSPEED if item in ENGINE else HF)
    back = read_back(written, tmp_path / "run")
    assert_same(written, back)
    job = back.assessment.job
    assert job is not None
    assert job.objective == written.job.objective
    assert back.assessment.found.unknown == ()


@pytest.mark.parametrize("name", ["fsdp-qlora", "kto"])
def test_golden(name: str) -> None:
    check_golden(f"axolotl/{name}", {"axolotl.yaml": axolotl.files(named(name))["axolotl.yaml"]})


def test_deepspeeds_file_takes_the_optimizer_of_the_yaml() -> None:
    """The Trainer refuses values in it that are others than its own."""
    offload = launch(ENGINE[2], DEEPSPEED)
    config = json.loads(axolotl.files(offload)["ds_config.json"])
    assert set(config["optimizer"]["params"].values()) == {"auto"}
    assert config["fp16"] == {"enabled": True}


@pytest.mark.parametrize("packing", ["longest", "limit", "padding-free", "pack-varlen"])
def test_samples_are_packed_as_planned(packing: str, tmp_path: Path) -> None:
    more = {"train": "lora", "lengths": "mean=450", "packing": packing}
    written = launch(case(packing, LLAMA, "1xH100", **ONE, recompute="full", more=more))
    assert_complete(axolotl, written)
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(written).files, force=False)
    given = read_given([str(folder)], Hints(lengths="mean=450"), 1, None, None)
    found = assess(given.found, given.gpus, given.cluster)
    assert found.proposal is not None
    assert_same(written, Back(found, found.proposal))


def test_the_command_says_what_is_yours(tmp_path: Path) -> None:
    """Python reads the data set as a list; learning rates are the method's usual ones."""
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(named("kto")).files, force=False)
    values = {"DATASET": "a/b", "PRETRAINED": "m", "PATH": "/usr/bin:/bin", "HOME": "/h"}
    done = subprocess.run(
        ["bash", "launch.sh", "--dry-run"], cwd=folder, capture_output=True, text=True, check=True,
        env=values,
    )  # fmt: skip
    data = "--datasets=[{'path':'a/b','type':'chatml.argilla','split':'train'}]"
    shown = re.sub(r"\\(.)", r"\1", done.stdout)
    assert data in shown
    assert "--base_model=m" in shown
    assert "--learning_rate=5e-6" in shown


REFUSED: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (HF, "1xH100", ONE | {"more": {"optimizer": "lion"}}, "is told no lion"),
    (HF, "1xH100", ONE | {"more": {"dtype": "amp"}}, "weights in 16 bits"),
    (HF, "1xH100", ONE | {"more": {"precision": "fp16"}}, "in fp16 beside adapters"),
    (HF, "1xH100", ONE | {"more": {"attention": "eager"}}, "fp32 beside eager attention"),
    (HF, "1xH100", ONE | {"more": {"lengths": "450", "packing": "pack"}}, "within each sample"),
    (HF, "1xH100", ONE | {"more": {"lengths": "450", "balance": "tokens"}}, "not balance"),
    (HF, "1xT4", ONE | {"more": {"lengths": "450", "packing": "pack-varlen", "train": "lora",
                                 "precision": "fp16", "seq": 1024}}, "needs flash-attn"),
    (HF, "1xH100", ONE | {"more": {"objective": "simpo"}}, "that nothing reads"),
    (HF, "1xH100", ONE | {"more": {"objective": "dpo:reference=precomputed"}}, "computed before"),
    (HF, "1xH100", ONE | {"more": {"objective": "dpo:logits=chunked"}}, "whole logits"),
    (HF, "1xH100", ONE | {"more": {"objective": "dpo:reference=copied", "train": "lora"}},
     "adapters off"),
    (HF, "1xH100", ONE | {"more": {"objective": "dpo", "lengths": "450", "packing": "limit"}},
     "pads pairs"),
    (HF, "8xH100", SHARDED | {"more": {"objective": "dpo", "train": "lora"}}, "casts adapters"),
    (HF, "8xH100", SHARDED | {"more": {"objective": "dpo", "train": "qlora:adapter=bf16"}},
     "no quantised base under FSDP2"),
    (HF, "8xH100", SHARDED | {"more": {"precision": "fp16", "train": "lora"}}, "bf16 alone"),
    (HF, "8xH100", SHARDED | {"more": {"optimizer": "adamw-8bit", "optimizer_offload": 1.0}},
     "no CPU kernel"),
    (HF, "8xH100", SHARDED | {"more": {"optimizer": "paged-adamw-8bit"}}, "not run under FSDP2"),
    (HF, "1xH100", ONE | {"more": {"train": "qlora:base=int8", "use": ("fused-adapters",)}},
     "beside a base in 8 bits"),
    (DEEPSPEED, "8xH100", {"zero": 1, "mbs": 1, "tp": 2}, "told of AutoTP"),
)  # fmt: skip


@pytest.mark.parametrize(("profile", "gpus", "more", "reason"), REFUSED)
def test_refused_by_name(profile: str, gpus: str, more: dict[str, Any], reason: str) -> None:
    assert reason in reasons(launch(case("refused", SMALL, gpus, **more), profile))


def test_a_plan_of_fp32_shards_is_costed_with_16_bits() -> None:
    """accelerate makes FSDP2's shards fp32, axolotl leaves them as they were loaded."""
    item = case("fsdp", LLAMA, "8xH100", zero=3, mbs=1, recompute="full")
    shards = launch_of(item, "hf-fsdp2", "accelerate")
    again = launch_of_plan(shards.plan, shards.request, target_named("axolotl"), "torchrun")
    assert again.job.framework.name == HF
    (here,), (there,) = again.plan.stages, shards.plan.stages
    assert here.optimizer == pytest.approx(there.optimizer / 3, rel=0.01)


# --- reading --------------------------------------------------------------------------------------

_FILE = """\
base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
gradient_checkpointing: true
flash_attention: true
sample_packing: true
optimizer: adamw_torch_fused
"""


def read(tmp_path: Path, text: str, gpus: int = 8) -> Any:
    (tmp_path / "run.yaml").write_text(text)
    return read_launch([tmp_path / "run.yaml"], Hints(gpus=gpus))


def test_shards_of_fsdp2_stay_in_16_bits(tmp_path: Path) -> None:
    text = _FILE + "fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    found = read(tmp_path, text)
    assert (found.framework, found.zero, found.dtype) == (HF, 3, "bf16")


def test_a_mesh_is_filled_up(tmp_path: Path) -> None:
    """axolotl works out one of the sizes from the other."""
    fsdp = "fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    for size in ("dp_shard_size: 4", "dp_replicate_size: 2"):
        found = read(tmp_path, f"{_FILE}{fsdp}{size}\n")
        assert found.shard == 4
        assert [one.rule for one in found.problems] == []
    for size in (1, 8):  # all of them
        found = read(tmp_path, f"{_FILE}{fsdp}dp_shard_size: {size}\n")
        assert (found.shard, found.problems) == (0, ())


def test_embeddings_in_fp32_are_told(tmp_path: Path) -> None:
    plain = _FILE.replace("flash_attention: true", "sdp_attention: true")
    assert any("fp32" in why for _, why in read(tmp_path, plain, 1).unmodelled)
    for text in (_FILE, plain + "adapter: lora\nlora_r: 8\nlora_target_linear: true\n"):
        assert not any("fp32" in why for _, why in read(tmp_path, text, 1).unmodelled)


@pytest.mark.parametrize(
    "freeze",
    [("embeddings", "layers:8"), ("embeddings", "head", "layers:31"), ("norms",), ("o",),
     ("layers:3", "gate", "up", "down"), ("layers:2", "q", "k", "v")],
)  # fmt: skip
def test_what_is_frozen_comes_back(freeze: tuple[str, ...]) -> None:
    pattern = unfrozen_pattern(read_tuning("full", freeze))
    assert frozen_by([pattern], load_model(LLAMA).spec) == freeze


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (["^lm_head.weight$", "^model.embed_tokens.weight$[:32000]", "model.layers.(2[0-9]|3[01])"],
         ("layers:20",)),
        (["lm_head"], ("embeddings", "layers:32")),
        (["model.layers.1[0-9].+"], None),
        (["model.layers.30.self_attn.q_proj", "model.layers.31.mlp.up_proj"], None),
        (["("], None),
        ([], None),
    ],
)  # fmt: skip
def test_patterns_over_parameters(patterns: list[str], frozen: tuple[str, ...] | None) -> None:
    """Only what --freeze has words for: the first layers, or modules of all of them."""
    assert frozen_by(patterns, load_model(LLAMA).spec) == frozen


def test_freezing_in_other_places_is_refused(tmp_path: Path) -> None:
    adapters = "adapter: lora\nlora_r: 8\nlora_target_linear: true\n"
    middle = "peft_layers_to_transform: [10, 11, 12]\n"
    for more in ("unfrozen_parameters: ['model.layers.1[0-9].+']\n", adapters + middle):
        rules = [one.rule for one in read(tmp_path, _FILE + more).problems]
        assert "not-predictable" in rules
    last = "peft_layers_to_transform: [" + ", ".join(map(str, range(24, 32))) + "]\n"
    assert read(tmp_path, _FILE + adapters + last).freeze == ("layers:24",)


def test_a_single_quantisation_in_a_table(tmp_path: Path) -> None:
    text = "adapter: qlora\nlora_r: 8\nlora_target_linear: true\nload_in_4bit: true\n"
    table = "bnb_config_kwargs:\n  bnb_4bit_use_double_quant: false\n"
    assert "base=nf4-double" in read(tmp_path, _FILE + text).train
    assert read(tmp_path, _FILE + text + table).train.endswith("base=nf4")


def test_preferences_under_fsdp_have_adapters_in_16_bits(tmp_path: Path) -> None:
    text = _FILE.replace("sample_packing: true\n", "rl: dpo\nadapter: lora\nlora_r: 8\n")
    text += "lora_target_linear: true\n"
    fsdp = "fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    assert "adapter=" not in read(tmp_path, text).train
    assert read(tmp_path, text + fsdp).train.endswith("adapter=bf16")


def test_the_command_line_writes_it(tmp_path: Path) -> None:
    """By its own name, of a plan that nobody made for it."""
    plan, folder = tmp_path / "plan.json", tmp_path / "run"
    done = run_cli(
        "evaluate", "-q", "--model", SMALL, "--gpus", "1xRTX4090", "--gbs", "4", "--seq", "2048",
        "--framework", HF, "--train", "qlora", "--recompute", "full", "--mbs", "2",
        "-o", str(plan),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    done = run_cli("launch", str(plan), "1", "--framework", "axolotl", "-o", str(folder))
    assert done.exit_code == 0, done.output
    assert "adapter: qlora" in (folder / "axolotl.yaml").read_text()
    assert "set PRETRAINED" in (folder / "launch.sh").read_text()
    readme = (folder / "README.md").read_text()
    assert "python merge.py" in readme or "merge.py" in readme


def test_a_file_is_not_told_an_option_of_the_planner(tmp_path: Path) -> None:
    """A GPU without bf16 is named, without `--precision`, which no file has."""
    found = read(tmp_path, _FILE.replace("Meta-Llama-3.1-8B", "Llama-3.2-1B"), 1)
    texts = [one.text for one in assess(found, "1xT4").problems]
    said = next(text for text in texts if "no bf16 matrix arithmetic" in text)
    assert "--precision" not in said
    assert "it has: fp32, fp16; torch then computes" in said
