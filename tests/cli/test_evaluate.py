"""`planner evaluate`: one configuration, derived degrees, exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.evaluate import given_configuration
from tests.cli.conftest import MAIN, Run, lines_are_short, refused

RECIPE = ("--tp", "4", "--pp", "4", "--vpp", "5", "--cp", "2")


def test_the_recipe_of_the_main_job(run: Run) -> None:
    result = run("evaluate", *MAIN, *RECIPE)
    assert result.exit_code == 0, result.output
    assert "tp4 pp4 vpp5 cp2 dp2 z1" in result.stdout
    assert "Memory by pipeline stage" in result.stdout
    assert lines_are_short(result.stdout)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ("480 --mbs 4", "mbs·dp is 4·64 = 256; give --gbs 512"),
        ("640 --mbs 4", "mbs·dp is 4·64 = 256; give --gbs 512, or --mbs 2"),
    ],
)
def test_a_batch_that_does_not_divide_names_one_that_does(run: Run, batch: str, text: str) -> None:
    refused(run("evaluate", "--model", "70b", "--gpus", "64xH100", "--gbs", *batch.split()), text)


def test_what_does_not_fit_is_shown_and_exits_1(run: Run) -> None:
    result = run("evaluate", *MAIN)
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.stdout


def test_lengths_count_in_powers_of_two_and_batches_in_powers_of_ten(run: Run) -> None:
    """What a letter was understood as is said."""
    job = ("evaluate", "--model", "8b", "--gpus", "8xH100", "--tp", "8", "--recompute", "full")
    for option, tokens in (("32K", "32,768"), ("8k", "8,192"), ("32Ki", "32,768")):
        result = run(*job, "--gbs", "8", "--seq", option)
        assert f"--seq {option} is {tokens} tokens" in result.stderr
        assert f"8 sequences of {tokens}" in result.stdout
    assert "note" not in run(*job, "--gbs", "8", "--seq", "32000").stderr
    # 64,000 tokens are nearest to 16 sequences of 4,096.
    assert "16 sequences of 4,096" in run(*job, "--gbs-tokens", "64K", "--seq", "4K").stdout


def test_experts_are_split_as_the_framework_does(run: Run) -> None:
    """Megatron without the flag takes etp = tp, and refuses what that does not divide."""
    mixture = ("--model", "qwen3-30b-a3b", "--gpus", "4xH100", "--seq", "4096", "--gbs", "8")
    refused(run("evaluate", *mixture, "--tp", "4", "--ep", "4"), "give --etp 1")
    result = run("evaluate", *mixture, "--tp", "4", "--ep", "4", "--etp", "1")
    assert "tp4 pp1 ep4 dp1" in result.stdout


def test_deepspeeds_pipeline_counts_embedding_and_head_as_layers(run: Run, tmp_path: Path) -> None:
    """BLOOM's and GLM-130B's 70 layers, which no number of their stages divides."""
    config = {
        "model_type": "gpt2", "n_layer": 70, "n_embd": 12288, "n_head": 96, "n_positions": 2048,
        "vocab_size": 150528, "activation_function": "gelu",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    job = ("evaluate", "--model", str(path), "--gpus", "96xA100", "--framework",
           "megatron-deepspeed", "--tp", "4", "--gbs", "96", "--precision", "fp16")  # fmt: skip
    for pp, layers in ((8, "8,9x6,8"), (12, "5,6x10,5")):
        result = run(*job, "--pp", str(pp), "--layers-per-stage", layers)
        assert f"pp{pp}" in result.stdout, result.output
    refused(run(*job, "--pp", "8", "--layers-per-stage", "8,10,9x4,8,8"), "split-expressible")


def test_uneven_layers_are_taken(run: Run) -> None:
    result = run(
        "evaluate", *MAIN, "--tp", "4", "--pp", "4", "--cp", "2", "--layers-per-stage", "19,20,21x2"
    )
    assert result.exit_code == 2
    assert "they add up to 81, but llama-3-70b has 80" in result.stderr
    fixed = run(
        "evaluate", *MAIN, "--tp", "4", "--pp", "4", "--cp", "2", "--layers-per-stage", "19,20x2,21"
    )
    assert fixed.exit_code in (0, 1), fixed.output
    assert "19, 20×2, 21" in fixed.stdout


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("--tp", "3"), ("tp·pp·cp = 3·1·1 = 3 does not divide 64 GPUs", "63 or 66")),
        (("--tp", "8", "--dp", "4"), ("64",)),
        (("--tp", "4", "--pp", "4", "--vpp", "30"), ("vpp",)),
        (("--layers-per-stage", "many"), ("'many'", "4,5x14,4")),
        (("--recompute", "some"), ("'some'", "full")),
        (("--zero", "3"), ("[zero-stage-offered]: --with megatron-fsdp offers stage 3",)),
    ],
)
def test_wrong_configurations(run: Run, arguments: tuple[str, ...], texts: tuple[str, ...]) -> None:
    result = run("evaluate", *MAIN, *arguments)
    assert result.exit_code == 2, result.output
    for text in texts:
        assert text in result.stderr


@pytest.mark.parametrize(
    ("gbs", "mbs", "text"),
    [("60", "8", "mbs·dp is 8·8 = 64; give --gbs 64"), ("80", "8", "give --gbs 64, or --mbs 5")],
)
def test_a_batch_that_does_not_divide_names_the_nearest(
    run: Run, gbs: str, mbs: str, text: str
) -> None:
    result = run("evaluate", "--model", "8b", "--gpus", "8xH100", "--gbs", gbs, "--mbs", mbs)
    assert result.exit_code == 2 and text in result.stderr


def test_grad_acc_sets_the_batch(run: Run) -> None:
    arguments = ("--model", "70b", "--gpus", "64xH100", *RECIPE, "--grad-acc", "16", "--json")
    plan = json.loads(run("evaluate", *arguments).stdout)["plans"][0]
    assert plan["gbs"] == 32


def test_a_batch_is_needed(run: Run) -> None:
    refused(run("evaluate", "--model", "70b", "--gpus", "64xH100"), "--grad-acc 32")


def test_its_file_can_be_explained(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    assert run("evaluate", *MAIN, *RECIPE, "-o", str(path)).exit_code == 0
    result = run("explain", str(path), "1")
    assert result.exit_code == 0, result.output
    assert "Neighbours" in result.stdout


def test_json_and_csv(run: Run) -> None:
    assert json.loads(run("evaluate", *MAIN, *RECIPE, "--json").stdout)["plans"]
    assert run("evaluate", *MAIN, *RECIPE, "--csv").stdout.count("\n") == 2


def test_usual_zero_stage_needs_replicas() -> None:
    options = {
        "model": "70b",
        "gpus": "8xH100",
        "cluster": None,
        "gbs_tokens": None,
        "gbs": 8,
        "gbs_tolerance": 0.05,
        "seq": None,
        "framework": "megatron-core",
        "precision": "bf16",
        "dtype": None,
        "optimizer": "adamw",
        "attention": "flash",
        "schedule": None,
        "dropout": False,
        "expert_imbalance": 1.0,
        "hbm_reserve": "0",
        "allow_tp_across_nodes": False,
        "tp": 8,
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "dp": None,
        "zero": None,
        "mbs": 1,
        "grad_acc": None,
        "shard": 0,
        "recompute": "none",
        "layers_per_stage": None,
        "recompute_layers": None,
        "mtp_standalone": False,
    }
    assert given_configuration(options).degrees.zero == 0
    assert given_configuration(options | {"tp": 4}).degrees.zero == 1


SMALL = ("--model", "llama-3-8b", "--gpus", "8xH100", "--gbs", "32", "--seq", "2048")


def test_the_schedule_is_shown_and_kept(run: Run) -> None:
    arguments = ("evaluate", *SMALL, "--framework", "torchtitan", "--schedule", "zb-v")
    shown = run(*arguments, "--pp", "4", "--vpp", "2")
    assert "\nschedule   zb-v\n" in shown.stdout
    assert lines_are_short(shown.stdout)
    plan = json.loads(run(*arguments, "--pp", "4", "--vpp", "2", "--json").stdout)["plans"][0]
    assert plan["schedule"] == "zb-v"
    assert plan["layout"]["placement"] == "folded"


def test_a_schedule_that_the_framework_lacks(run: Run) -> None:
    result = run("evaluate", *SMALL, "--schedule", "gpipe", "--pp", "4")
    assert result.exit_code == 2
    assert "megatron-core has 1f1b, interleaved" in result.stderr
    assert "nanotron" in result.stderr


def test_techniques_that_a_search_would_try_are_named(run: Run) -> None:
    """What is given goes without them, so its step is longer than that of the search's plan."""
    job = ("--model", "qwen3-30b-a3b", "--gpus", "32xH100", "--seq", "4096", "--gbs", "256")
    arguments = ("evaluate", *job, "--framework", "megatron-bridge", "--ep", "16", "--dp", "32")
    shown = run(*arguments).stdout
    assert "not used         ep-overlap (a search tries it; --with NAME)" in shown
    assert "not used" not in run(*arguments, "--with", "ep-overlap").stdout
