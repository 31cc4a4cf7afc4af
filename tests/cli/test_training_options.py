"""Optimizer, offload, hybrid sharding and recompute modes from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.search.plan_file import read_plan_file
from tests.cli.conftest import MAIN, Run, lines_are_short, refused

RECIPE = ("--tp", "4", "--pp", "4", "--cp", "2")
NEW_PLAN_FIELDS = ("optimizer", "optimizer_kernel", "optimizer_offload", "optimizer_flags")


def test_everything_at_once_is_shown(run: Run) -> None:
    result = run(
        "evaluate", *MAIN, *RECIPE, "--recompute", "full:block=10", "--optimizer",
        "adamw:exp_avg=bf16,master=fp16", "--optimizer-offload", "0.5", "--shard-size", "2",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "z1 shard2" in result.stdout
    assert "full 40/80" in result.stdout
    assert "adamw:exp_avg=bf16,master=fp16, fused, 50.0 % on the CPU" in result.stdout
    assert "--recompute-method block" in result.stdout
    assert "--main-params-dtype fp16" in result.stdout
    assert "CPU-Adam" in result.stdout
    assert lines_are_short(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("--optimizer", "adamw:exp_avg=fp4"), ("exp_avg=fp4", "fp8")),
        (("--optimizer", "adafactor"), ("[optimizer-offered]", "lion")),
        (("--optimizer", "adamw-bf16", "--zero", "0"), ("[optimizer-needs-sharding]",)),
        (("--optimizer-offload", "2"), ("0<=x<=1",)),
        (("--optimizer-offload", "nan"), ("0<=x<=1",)),
        (("--optimizer-offload", "serach"), ("or search",)),
        (("--optimizer-offload", "search"), ("only planner search, compare and scale",)),
        (("--optimizer-kernel", "foreach"), ("[optimizer-kernel]",)),
        (("--shard-size", "3"), ("[shard-divides-replicas]",)),
        (("--shard-size", "2", "--zero", "0"), ("[hybrid-sharding-supported]",)),
        (("--recompute", "full:uniform=40"), ("uniform=20 or less",)),
        (("--recompute", "full:block=4", "--recompute-layers", "4,4,4,4"), ("layers only once",)),
        (("--recompute", "mla_up_proj"), ("[recompute-module-in-model]",)),
        (("--train", "lorra"), ("Did you mean 'lora'",)),
        (("--train", "lora:rank=4096"), ("rank=4096", "or less")),
        (("--train", "lora", "--framework", "megatron-core"), ("--framework", "megatron-bridge")),
        (("--train", "qlora", "--framework", "deepspeed"), ("--train base=nf4-double", "tp == 1")),
        (("--freeze", "layers:0"), ("layers:8",)),
    ],
)
def test_wrong_options_name_the_rule(
    run: Run, arguments: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    result = run("evaluate", *MAIN, *RECIPE, *arguments)
    assert result.exit_code == 2, result.output
    for text in texts:
        assert text in result.stderr


def test_two_budgets_are_one_too_many(run: Run) -> None:
    result = run(
        "search", *MAIN, "--framework", "torchtitan", "--recompute", "budget=0.2,budget=0.4", "-q"
    )
    assert result.exit_code == 2
    assert "one memory budget at a time" in result.stderr


def test_search_keeps_to_a_shard_size(run: Run) -> None:
    result = run(
        "search", "--model", "llama-3-8b", "--gpus", "16xH100", "--gbs", "64", "--framework",
        "torchtitan", "--shard-size", "8", "--zero", "3", "--tp", "1", "--recompute",
        "full/2,full", "--optimizer", "adamw-8bit", "--json", "-q",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {plan["degrees"]["shard"] for plan in document["plans"]} == {8}
    assert document["job"]["optimizer"] == "adamw-8bit"


def test_plan_files_from_before_these_options_are_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    assert run("evaluate", *MAIN, *RECIPE, "-o", str(path)).exit_code == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    for plan in document["plans"]:
        del plan["degrees"]["shard"]
        for name in NEW_PLAN_FIELDS:
            del plan[name]
    for name in ("optimizer_kernel", "optimizer_offload"):
        del document["request"][name]
    path.write_text(json.dumps(document), encoding="utf-8")
    (plan,) = read_plan_file(path).plans
    assert plan.degrees.shard == 0
    result = run("explain", str(path), "1")
    assert result.exit_code == 0, result.output


TINY = (
    "evaluate", "--model", "gpt2", "--gpus", "1xH100", "--gbs", "4", "--mbs", "1",
    "--seq", "1024", "--json",
)  # fmt: skip


GRAPHS = ("--with", "cuda-graphs")


def test_cuda_graphs_free_a_small_model_of_the_cpu(run: Run) -> None:
    """GPT-2 at micro-batch 1 waits for the CPU on an H100; captured, it does not."""
    steps = {}
    for options in ((), GRAPHS):
        result = run(*TINY, *options)
        assert result.exit_code == 0, result.output
        steps[options] = json.loads(result.stdout)["plans"][0]
    issued, captured = steps[()], steps[GRAPHS]
    assert captured["step_time_s"] < 0.5 * issued["step_time_s"]
    assert captured["peak_bytes"] == issued["peak_bytes"]
    assert any("--cuda-graph-impl transformer_engine" in text for text in captured["assumptions"])


def test_cuda_graphs_where_there_are_none(run: Run) -> None:
    refused(run(*TINY, *GRAPHS, "--framework", "nanotron"), "nanotron has: none")
