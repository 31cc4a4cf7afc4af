"""Megatron-Bridge overrides as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.launch.check.assess import Assessment, assess
from planner.launch.check.given import read_given
from planner.launch.dialects.megatron.bridge_reader import as_overrides
from planner.launch.folder import launch_folder
from planner.launch.read.found import Edit, Hints
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


def rules(assessment: Assessment) -> dict[str, str]:
    return {problem.rule: problem.text for problem in assessment.problems}


def test_overrides_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, SCRIPT)
    assert found.found.framework == "megatron-bridge"
    assert found.found.variations == ("tp-overlap", "bf16-gradients")
    assert found.errors == ()
    assert found.plan is not None
    assert (found.plan.degrees.tp, found.plan.degrees.dp, found.plan.gbs) == (2, 4, 64)


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
    found = read(tmp_path, SCRIPT.replace(given, wrong))
    assert variation in found.found.variations
    plain = read(tmp_path, SCRIPT)
    assert found.plan is not None
    assert plain.plan is not None
    assert found.plan.step_time_s > plain.plan.step_time_s


def test_gradients_in_fp32_take_more_memory(tmp_path: Path) -> None:
    plain = read(tmp_path, SCRIPT).plan
    found = read(tmp_path, SCRIPT.replace("ddp.grad_reduce_in_fp32=false", ""))
    assert found.found.variations == ("tp-overlap", "no-bf16-gradients")
    assert found.plan is not None
    assert plain is not None
    assert found.plan.peak_bytes > plain.peak_bytes


@pytest.mark.parametrize(
    ("more", "rule", "text"),
    [
        ("model.tensor_parallel=2", "unknown-option", "model.tensor_parallel: not a"),
        ("model.recompute_granularity=some", "option-value", "model.recompute_granularity some"),
        ("model.recompute_granularity=full", "recompute-method",
         "model.recompute_granularity full needs model.recompute_method"),
    ],
)  # fmt: skip
def test_slips_are_named_by_field(more: str, rule: str, text: str, tmp_path: Path) -> None:
    found = rules(read(tmp_path, SCRIPT.rstrip() + f" {more}\n"))
    assert text in found[rule]


def test_an_unseen_recipe_is_not_predicted(tmp_path: Path) -> None:
    found = read(tmp_path, SCRIPT.replace("pretrain.py", "run_recipe.py --recipe llama3_8b"))
    assert found.plan is None
    assert found.errors == ()
    assert "recipe sets" in found.unpredictable[0].text


def test_what_is_not_known_is_listed(tmp_path: Path) -> None:
    found = read(tmp_path, SCRIPT.rstrip() + " model.some_new_field=3\n")
    assert [setting.key for setting in found.found.unknown] == ["model.some_new_field"]


def test_a_folder_s_best_change_is_written(tmp_path: Path) -> None:
    folder, fixed = tmp_path / "run", tmp_path / "fixed.sh"
    write_folder(folder, launch_folder(bridge("dense")).files, False)
    assert run_cli("check", "-q", str(folder), "--fix", "-o", str(fixed)).exit_code == 0
    start = (folder / "launch.sh").read_text()
    assert fixed.read_text() != start
    (folder / "launch.sh").write_text(fixed.read_text())
    again = read_given([str(folder)], Hints(), 1, None, None)
    assert assess(again.found, again.gpus, again.cluster).errors == ()


@pytest.mark.parametrize(
    "written", ["[core_attn,attn_proj]", "[core_attn, attn_proj]", '["core_attn","attn_proj"]']
)
def test_lists_in_every_spelling(written: str, tmp_path: Path) -> None:
    more = f"model.fine_grained_activation_offloading=true 'model.offload_modules={written}'"
    found = read(
        tmp_path, SCRIPT.replace("ddp.overlap_grad_reduce", f"{more} ddp.overlap_grad_reduce")
    )
    assert found.found.activation_offload == "core_attn,attn_proj"
    assert found.found.unknown == ()


def test_overrides_are_mended_in_place(tmp_path: Path) -> None:
    """Problems and the best change, written as fields, and read back as what was costed."""
    broken = (
        SCRIPT.replace("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "")
        .replace("model.sequence_parallel=true ", "")
        .replace("ddp.overlap_grad_reduce=true", "ddp.overlap_grad_reduce=false")
    )
    before = read(tmp_path, broken)
    assert {error.rule for error in before.errors} >= {
        "overlap-param-gather", "cuda-device-max-connections", "tp-comm-overlap",
    }  # fmt: skip
    script = str(tmp_path / "run.sh")
    done = run_cli("check", script, "--model", "llama-3.1-8b", "--gpus", "8xH100", "--fix")
    assert done.exit_code == 1
    fixed = Path(f"{script}.fixed").read_text()
    assert "ddp.overlap_grad_reduce=true" in fixed
    assert "model.sequence_parallel=true" in fixed
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in fixed
    after = read(tmp_path, fixed)
    assert after.errors == ()
    assert after.plan is not None


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ((Edit("--recompute-modules", "mlp layernorm"),),
         {"model.recompute_modules": "[mlp,layernorm]"}),
        ((Edit("--recompute-method", None),), {"model.recompute_method": "null"}),
        ((Edit("--disable-bias-linear", ""),), {"model.add_bias_linear": "false"}),
        ((Edit("--sequence-parallel", None),), {"model.sequence_parallel": "false"}),
        ((Edit("--moe-router-topk", "2"), Edit("--eval-interval", "3")),
         {"model.moe_router_topk": "2"}),
    ],
)  # fmt: skip
def test_options_as_overrides(edits: tuple[Edit, ...], expected: dict[str, str]) -> None:
    assert {as_override.key: as_override.value for as_override in as_overrides(edits)} == expected
