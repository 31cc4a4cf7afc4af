"""Megatron-Bridge overrides as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.check.assess import Assessment, assess
from planner.check.given import read_given
from planner.launch.folder import launch_folder
from planner.launch.read.found import Hints
from tests.cli.conftest import run_cli
from tests.launch.plans import bridge
from tests.launch.round_trip import write_folder

SCRIPT = """
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain.py \\
  model.tensor_model_parallel_size=2 model.sequence_parallel=true \\
  train.micro_batch_size=1 train.global_batch_size=64 model.seq_length=4096 \\
  ddp.use_distributed_optimizer=true ddp.overlap_grad_reduce=true ddp.overlap_param_gather=true \\
  comm_overlap.tp_comm_overlap=true ddp.grad_reduce_in_fp32=false
"""


START = (
    "config = vanilla_gpt_pretrain_config()\n"
    "config.mixed_precision = get_mixed_precision_config('bf16_mixed')\n"
)


def read(tmp_path: Path, script: str) -> Assessment:
    path = tmp_path / "run.sh"
    path.write_text(script)
    (tmp_path / "pretrain.py").write_text(START)
    given = read_given([str(path)], Hints(model="llama-3.1-8b"), 1, "8xH100", None)
    return assess(given.found, given.gpus, given.cluster)


def rules(own: Assessment) -> dict[str, str]:
    return {problem.rule: problem.text for problem in own.problems}


def test_overrides_are_read(tmp_path: Path) -> None:
    own = read(tmp_path, SCRIPT)
    assert own.found.framework == "megatron-bridge"
    assert own.found.variations == ()
    assert own.errors == ()
    assert own.plan is not None
    assert (own.plan.degrees.tp, own.plan.degrees.dp, own.plan.gbs) == (2, 4, 64)


@pytest.mark.parametrize(
    ("given", "wrong", "variation"),
    [
        ("comm_overlap.tp_comm_overlap=true", "", "no-tp-overlap"),
        ("ddp.overlap_grad_reduce=true ddp.overlap_param_gather=true", "",
         "gradient-reduction-exposed"),
    ],
)  # fmt: skip
def test_what_differs_from_the_profile(
    given: str, wrong: str, variation: str, tmp_path: Path
) -> None:
    assert given in SCRIPT
    own = read(tmp_path, SCRIPT.replace(given, wrong))
    assert variation in own.found.variations
    plain = read(tmp_path, SCRIPT)
    assert own.plan is not None
    assert plain.plan is not None
    assert own.plan.step_time_s > plain.plan.step_time_s


def test_gradients_in_fp32_take_more_memory(tmp_path: Path) -> None:
    plain = read(tmp_path, SCRIPT).plan
    own = read(tmp_path, SCRIPT.replace("ddp.grad_reduce_in_fp32=false", ""))
    assert own.found.variations == ("fp32-gradients",)
    assert own.plan is not None
    assert plain is not None
    assert own.plan.peak_bytes > plain.peak_bytes


@pytest.mark.parametrize(
    ("more", "rule", "text"),
    [
        ("model.tensor_parallel=2", "unknown-option", "model.tensor_parallel: none of"),
        ("model.recompute_granularity=some", "option-value", "model.recompute_granularity some"),
        ("model.recompute_granularity=full", "recompute-method",
         "model.recompute_granularity full needs model.recompute_method"),
    ],
)  # fmt: skip
def test_slips_are_named_by_field(more: str, rule: str, text: str, tmp_path: Path) -> None:
    found = rules(read(tmp_path, SCRIPT.rstrip() + f" {more}\n"))
    assert text in found[rule]


def test_an_unseen_recipe_is_not_predicted(tmp_path: Path) -> None:
    own = read(tmp_path, SCRIPT.replace("pretrain.py", "run_recipe.py --recipe llama3_8b"))
    assert own.plan is None
    assert own.errors == ()
    assert "recipe sets" in own.unpredictable[0].text


def test_what_is_not_known_is_listed(tmp_path: Path) -> None:
    own = read(tmp_path, SCRIPT.rstrip() + " model.some_new_field=3\n")
    assert [setting.key for setting in own.found.unknown] == ["model.some_new_field"]


def test_fix_says_that_it_does_not_write_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_folder(folder, launch_folder(bridge("dense")).files, False)
    result = run_cli("check", "-q", str(folder), "--fix", "-o", str(tmp_path / "fixed.sh"))
    assert "Traceback" not in result.output
    assert not (tmp_path / "fixed.sh").exists()


@pytest.mark.parametrize(
    "written", ["[core_attn,attn_proj]", "[core_attn, attn_proj]", '["core_attn","attn_proj"]']
)
def test_lists_in_every_spelling(written: str, tmp_path: Path) -> None:
    more = f"model.fine_grained_activation_offloading=true 'model.offload_modules={written}'"
    own = read(
        tmp_path, SCRIPT.replace("ddp.overlap_grad_reduce", f"{more} ddp.overlap_grad_reduce")
    )
    assert own.found.activation_offload == "core_attn,attn_proj"
    assert own.found.unknown == ()
