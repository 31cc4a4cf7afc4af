"""Reinforcement learning on the command line: searched, evaluated, explained, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, refused

STEP = (
    "--rl", "grpo", "--prompts", "64", "--samples-per-prompt", "8", "--lengths",
    "prompt=64..128,response=lognormal:median=200,p95=900,max=2048",
)  # fmt: skip
JOB = ("--model", "qwen3-0.6b", "--gpus", "4xH100", "--framework", "megatron-core", *STEP)
# Few degrees of the trainer, so that a search is short.
FEW = ("--tp", "1", "--pp", "1", "--cp", "1", "--token-limit", "4096", "--recompute", "none")


def test_a_search_is_written_explained_and_evaluated(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    found = run("search", *JOB, *FEW, "-q", "-o", str(file))
    assert found.exit_code == 0, found.output
    assert "proven optimal" in found.stdout and f"planner explain {file}" in found.stdout
    lines = [line for line in found.stdout.splitlines() if not line.startswith("    planner")]
    assert max(map(len, lines)) <= 80

    told = run("explain", str(file), "1")
    assert told.exit_code == 0, told.output
    for words in (
        "generation",
        "policy's update",
        "How its neighbours compare",
        "Where the seconds go",
    ):
        assert words in told.stdout
    plan = json.loads(file.read_text())["plans"][0]
    engine, trainer = plan["engine"], plan["trainer"]["degrees"]
    apart = plan["placement"] == "separate"
    again = run(
        "evaluate", *JOB, "--token-limit", str(plan["token_limit"]), "--placement",
        plan["placement"], *(("--rollout-gpus", str(engine["replicas"])) if apart else ()),
        "--zero", str(trainer["zero"]), "--kv-share", str(engine["kv_share"]),
        "--rollout-sequences", str(engine["sequences"]), "--rollout-way", plan["way"],
        *(("--trainer-leaves",) if plan["trainer_leaves"] else ()), "--json",
    )  # fmt: skip
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["plans"][0]["step_s"] == pytest.approx(plan["step_s"])


def test_forms_of_output(run: Run, tmp_path: Path) -> None:
    rows = run("search", *JOB, *FEW, "--placement", "colocated", "-q", "--csv").stdout.splitlines()
    assert rows[0].startswith("plan,placement,staleness,gpus,trainer_gpus")
    assert rows[1].split(",")[1] == "colocated"
    page = tmp_path / "step.html"
    assert run("evaluate", *JOB, "--placement", "colocated", "--plot", str(page)).exit_code == 0
    assert "generation" in page.read_text()


def test_what_would_change_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    asked = (*JOB, *FEW, "--placement", "colocated", "--kv-share", "0.4", "--rollout-tp", "1")
    assert run("search", *asked, "-q", "-o", str(file)).exit_code == 0
    told = run("explain", str(file), "--what-if", "--no-neighbours", "-q").stdout
    assert "Effect of other changes" in told
    for words in ("no --kv-share", "--staleness 1", "--gpus 8xH100"):
        assert words in told


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("search", "--model", "8b", "--gpus", "8xH100", "--prompts", "8"), "add --rl grpo"),
        (("search", *JOB, "--gbs", "64"), "--minibatches"),
        (("search", *JOB, "--objective", "dpo"), "leave one of them out"),
        (("search", *JOB, "--gpus", "8xH100"), "planner compare"),
        (("search", *JOB, "--seq", "4096"), "--token-limit"),
        (("search", *JOB[:6], "--rl", "grpo", "--prompts", "8"), "--samples-per-prompt"),
        (("search", *JOB, "--rollout-way", "floppy"), "verl has ipc"),
        (
            ("evaluate", *JOB, "--rollout-gpus", "2", "--staleness", "search"),
            "for example --staleness 1",
        ),
        (("search", *JOB, "--mbs", "2"), "give --token-limit in its place"),
        (("search", *JOB[:4], *STEP, "--rl-framework", "trl", "--seq", "64"), "another max="),
        (("search", *JOB[:4], *STEP, "--rl-framework", "trl", "--token-limit", "9K"), "give --mbs"),
        (("search", *JOB, "--reference", "adapters-off"), "give --train"),
        (("search", *JOB, "--kv-share", "0.01", *FEW), "give --kv-share"),
        (("search", *JOB, "--rollout-tp", "3"), "leave them out"),
        (("search", *JOB, "--rollout-precision", "foo"), "--rollout-precision"),
        (("search", *JOB, "--sort", "peak"), "sorted by step time"),
        (
            ("search", *JOB[:2], "--gpus", "4xH100+4xA100", *JOB[4:]),
            "--gpus 4xH100 --rollout-gpus 4xA100",
        ),
        (
            ("search", *JOB[:4], *STEP[:6], "--lengths", "prompt=64,response=200000"),
            "at most max=40896",
        ),
        (
            (
                "evaluate", *JOB[:4], *STEP, "--rl-framework", "nemo-rl", "--rollout-engine",
                "sglang", "--placement", "separate",
            ),
            "give --rollout-engine vllm",
        ),
        (
            (
                "evaluate", *JOB[:4], *STEP, "--rl-framework", "nemo-rl", "--rollout-gpus", "2",
                "--rollout-way", "delta", "--rollout-precision", "fp8",
            ),
            "packed-broadcast, reshard",
        ),
        (("search", *JOB, "--staleness", "1", "--placement", "colocated"), "are never behind"),
        (
            ("search", *JOB, "--rl-framework", "trl", "--framework", "ddp", "--staleness", "1"),
            "at most 0",
        ),
        (("search", *JOB, "--rl-framework", "openrlhf"), "openrlhf trains with deepspeed"),
        (("evaluate", *JOB, "--placement", "separate"), "--rollout-gpus 2"),
        (("evaluate", *JOB, "--rollout-gpus", "2"), "give --staleness 1"),
        (("evaluate", *JOB, "--kv-share", "0.02"), "give --kv-share"),
        (("evaluate", *JOB, "--rollout-tp", "3"), "give --rollout-tp 2"),
        (("evaluate", *JOB, "--rollout-pp", "2"), "give --rollout-pp 1"),
        (("evaluate", *JOB, "--rollout-way", "carrier-pigeon"), "ipc"),
        (("evaluate", *JOB, "--dp", "3"), "is not the 4 GPUs"),
        (("evaluate", *JOB, "--prompts", "3", "--samples-per-prompt", "3"), "give --prompts 4"),
    ],
)  # fmt: skip
def test_bad_input_says_what_would_do(run: Run, given: tuple[str, ...], said: str) -> None:
    refused(run(*given), said)


def test_other_commands_read_such_plans_or_say_what_is_wrong(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    assert run("evaluate", *JOB, "-q", "-o", str(file)).exit_code == 0
    assert run("report", str(file), "-o", str(tmp_path / "page.html")).exit_code == 0
    refused(run("explain", str(file), "7"), "plans 1 to 1")
    file.write_text(file.read_text().replace('"version": 1', '"version": 99'))
    refused(run("explain", str(file)), "reads version 1")


CLUSTERS = (*JOB[:2], *JOB[4:], *FEW)


def test_clusters_are_compared_and_bought_in_samples_a_dollar(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "clusters.json"
    asked = (
        "--gpus", "2xH100", "--rollout-gpus", "2xL40S", "--staleness", "1", "-q", "-o", str(file),
    )  # fmt: skip
    told = run("compare", *CLUSTERS, *asked)
    assert told.exit_code == 0, told.output
    assert "2xH100 + 2xL40S" in told.stdout and "samples/" in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert len(json.loads(file.read_text())["rows"]) == 2
    bought = run("buy", *CLUSTERS, "--gpus", "2xH100", "--samples", "1M", "--deadline", "1h", "-q")
    assert bought.exit_code == 1
    assert "no cluster meets the limits" in bought.stdout and "beyond deadline" in bought.stdout
    rows = run("compare", *CLUSTERS, "--gpus", "2xH100", "-q", "--csv").stdout.splitlines()
    assert rows[0].startswith("cluster,rollout,gpus")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--tokens", "1T"), "--samples 10M"),
        (("--deadline", "3d"), "--samples 10M"),
        (("--plot", "x.html"), "leave it out"),
        (("--rollout-gpus", "2"), "give 1 to 1"),
        (("--rl-framework", "verl", "--framework", "nanotron"), "verl trains with"),
    ],
)  # fmt: skip
def test_what_a_comparison_cannot_be(run: Run, given: tuple[str, ...], said: str) -> None:
    words = CLUSTERS if "--framework" not in given else (*JOB[:2], *STEP)
    refused(run("compare", *words, "--gpus", "2xH100", *given), said)


@pytest.mark.parametrize(
    ("gpus", "precision", "said"),
    [
        ("4xH100", "nvfp4", "stored only: H100-SXM5-80GB has no nvfp4 arithmetic"),
        ("4xA100", "fp8", "stored only: A100-SXM4-80GB has no fp8 arithmetic"),
        ("4xB200", "nvfp4", "costed as in 16 bits"),
        ("4xH100", "fp8", "weights in fp8, KV cache"),
    ],
)
def test_what_becomes_of_quantised_weights_is_said(
    run: Run, gpus: str, precision: str, said: str
) -> None:
    found = run(
        "evaluate", *JOB, "--gpus", gpus, "--placement", "colocated", "--rollout-precision",
        precision,
    )  # fmt: skip
    assert said in " ".join(found.stdout.split())


def test_a_judge_that_is_too_large_is_named(run: Run) -> None:
    found = run("search", *JOB, *FEW, "--reward", "405b", "-q")
    assert found.exit_code == 1
    assert "the judge does not fit together with the rest: llama-3.1-405b" in found.stderr
    assert "--reward rule" in found.stderr and "engines" not in found.stderr


def test_nobody_is_told_of_splits_that_nobody_asked_for(run: Run) -> None:
    job = (*JOB[:2], "--gpus", "6xH100", *JOB[4:], *FEW)
    found = run("search", *job, "--prompts", "48", "-q")
    assert found.exit_code == 0, found.output
    assert "some splits" not in found.stdout


def test_comparing_takes_the_plan_that_a_search_takes(run: Run) -> None:
    job = (*STEP, *FEW, "--model", "qwen3-0.6b", "--framework", "megatron-core", "-q", "--json")
    searched = json.loads(run("search", *job, "--gpus", "4xH100").stdout)
    compared = json.loads(run("compare", *job, "--gpus", "4xH100").stdout)
    taken = searched["plans"][searched["recommended"] - 1]
    plan = compared["rows"][0]["plan"]
    assert plan["engine"] == taken["engine"] and plan["step_s"] == taken["step_s"]
