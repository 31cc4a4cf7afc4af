"""`planner memory --inference`: report, formats, exit status, what is refused and why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from planner.cli.declared import options_of
from planner.cli.errors import refusal
from planner.cli.memory import SOLVE_CHOICES, serving_memory
from tests.cli.conftest import Run, lines_are_short

CONFIG = Path(__file__).parents[1] / "job" / "models" / "configs" / "llama-3.1-8b.json"


@click.command("memory")
@click.option("--model", required=True)
@click.option("--gpus")
@click.option("--tp", type=int)
@click.option("--pp", type=int)
@click.option("--dp", type=int)
@click.option("--ep", type=int)
@click.option("--solve", type=click.Choice(SOLVE_CHOICES))
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def command(ctx: click.Context, **options: Any) -> None:
    """The options that the real command shares with training, and those of inference."""
    try:
        ctx.exit(serving_memory(options))
    except ValueError as error:
        raise refusal(error) from error


command.params += options_of("serving")


def memory(*arguments: str) -> Result:
    """Run it, 80 columns wide and without a terminal."""
    return CliRunner(env={"COLUMNS": "80"}).invoke(command, list(arguments))


def test_a_report_that_fits() -> None:
    result = memory(
        "--model", "llama-3.1-8b", "--gpus", "1xH200", "--batch", "16", "--context", "32Ki"
    )
    assert result.exit_code == 0, result.output
    assert lines_are_short(result.stdout)
    assert "64.00" in result.stdout  # GiB of KV cache
    assert "131,072 B in all 32 layers" in result.stdout
    assert "80 % interval" in result.stdout
    assert "nothing was measured" in " ".join(result.stdout.split())


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    result = memory("--model", "70b", "--gpus", "2xH100", "--batch", "16", "--context", "8192")
    assert result.exit_code == 1, result.output
    assert "NO: " in result.stdout
    assert "GiB too much" in result.stdout
    assert "--tp 4 --gpus 4xH100-SXM5-80GB" in result.stdout
    assert "--weights fp8" in result.stdout
    assert lines_are_short(result.stdout)


@pytest.mark.parametrize(("what", "given"), [("batch", "--context"), ("context", "--batch")])
def test_solve(what: str, given: str) -> None:
    arguments = ("--model", "8b", given, "64", "--solve", what)
    result = memory(*arguments)
    assert result.exit_code == 0, result.output
    assert f"--{what} " in result.stdout
    assert "within the uncertainty" in " ".join(result.stdout.split())
    solved = json.loads(memory(*arguments, "--json").stdout)["solved"]
    assert solved["what"] == what
    assert solved["low"] <= solved["expected"] <= solved["high"]
    again = json.loads(
        memory("--model", "8b", given, "64", f"--{what}", str(solved["expected"]), "--json").stdout
    )
    assert again["fits"]


def test_nothing_to_solve_for() -> None:
    result = memory("--model", "405b", "--gpus", "1xH100", "--solve", "batch")
    assert result.exit_code == 1
    assert "even --batch 1 is" in " ".join(result.stdout.split())


def test_json_adds_up() -> None:
    result = memory(
        "--model", "deepseek-v3", "--gpus", "8xH200", "--weights", "fp8-block", "--json"
    )
    document = json.loads(result.stdout)
    assert document["tp"] == 8
    assert document["kv_bytes_per_token"] == 70_272
    (stage,) = document["stages"]
    held = sum(stage["within_budget"].values())
    assert held + stage["available_kv_bytes"] == pytest.approx(stage["budget_bytes"])
    assert document["missing_bytes"] == pytest.approx(
        stage["kv_needed_bytes"] - stage["available_kv_bytes"]
    )
    assert document["kv_tokens_low"] <= document["kv_tokens"] <= document["kv_tokens_high"]


def test_the_engine_decides_what_the_budget_counts() -> None:
    def kv_tokens(*arguments: str) -> int:
        document = json.loads(memory("--model", "8b", "--json", *arguments).stdout)
        return int(document["kv_tokens"])

    assert kv_tokens("--engine", "vllm-0.19") > kv_tokens("--engine", "vllm")
    assert kv_tokens("--engine", "vllm-0.16") < kv_tokens("--engine", "vllm-0.19")
    assert kv_tokens("--enforce-eager") == kv_tokens("--engine", "vllm-0.19")
    assert kv_tokens("--max-num-seqs", "64") > kv_tokens()
    assert kv_tokens("--logits", "all") < kv_tokens()
    assert kv_tokens("--kv-cache", "fp8") == pytest.approx(2 * kv_tokens(), rel=1e-4)


def test_defaults_follow_the_gpu() -> None:
    large = json.loads(memory("--model", "8b", "--gpus", "1xH100", "--json").stdout)
    small = json.loads(memory("--model", "8b", "--gpus", "1xL40S", "--json").stdout)
    assert (large["chunk"], large["sequences"]) == (8192, 1024)
    assert (small["chunk"], small["sequences"]) == (2048, 256)


def test_a_context_beyond_the_positions_is_a_warning() -> None:
    result = memory("--model", "llama-3-8b", "--context", "16384")
    assert result.exit_code == 0
    assert "Warning: 16,384 tokens exceed the 8,192 positions" in " ".join(result.stdout.split())


def test_the_published_format_is_named() -> None:
    hint = "gpt-oss-20b is published in mxfp4"
    assert hint in memory("--model", "gpt-oss-20b").stdout
    assert hint not in memory("--model", "gpt-oss-20b", "--weights", "mxfp4").stdout


def test_what_the_logs_do_not_cover_is_said() -> None:
    result = memory("--model", "mixtral-8x7b", "--gpus", "2xMI300X", "--ep", "2")
    text = " ".join(result.stdout.split())
    assert "the whole range of" in text
    assert "CDNA3 GPUs" in text
    assert "expert parallelism" in text


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("--model", "8b", "--tp", "3"), ("32 attention heads", "2 or 4")),
        (("--model", "8b", "--gpus", "4xH100", "--tp", "2"), ("2 GPUs", "has 4", "--gpus 2x")),
        (("--model", "8b", "--ep", "2"), ("no experts",)),
        (("--model", "8b", "--weights", "int3"), ("'int3'", "int4", "mxfp4", "nvfp4")),
        (("--model", "8b", "--kv-cache", "fp4"), ("'fp4'", "fp8")),
        (("--model", "8b", "--engine", "trt"), ("'trt'", "vllm-0.19")),
        (("--model", "8b", "--batch", "-3"), ("-3", "1<=x<=1000000")),
        (("--model", "8b", "--context", "many"), ("'many'", "8K (8,192)")),
        (("--model", "8b", "--context", "1T"), ("--context", "134,217,728")),
        (("--model", "8b", "--max-num-seqs", "0"), ("--max-num-seqs", "0 is not")),
        (("--model", "8b", "--dp", "0"), ("--dp 0",)),
        (("--model", "8b", "--gpu-memory-utilization", "90"), ("90", "0<x<=1")),
        (("--model", "nosuch"), ("nosuch",)),
        (("--model", "8b", "--gpus", "1xZ9"), ("Z9",)),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], texts: tuple[str, ...]) -> None:
    result = memory(*arguments)
    assert result.exit_code == 2, result.output
    for text in texts:
        assert text in result.stderr


def test_help_is_short() -> None:
    result = memory("--help")
    assert lines_are_short(result.stdout)
    for option in ("--inference", "--batch", "--context", "--weights", "--kv-cache"):
        assert option in result.stdout


def test_advice_of_serving(run: Run) -> None:
    words = ("memory", "--inference", "--model", "llama-2-7b", "--gpus", "2xA100", "--advise")
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    assert "largest" in result.stdout and "a model with 8 KV heads" in result.stdout
    assert "tp1 dp2" in result.stdout and "least latency" in result.stdout
    document = json.loads(run(*words, "--json").stdout)
    assert [one["tp"] for one in document["splits"]] == [2, 1]
    assert document["grouped_queries"]["missing_bytes"] < document["missing_bytes"]
    both = run(*words, "--solve", "batch")
    assert both.exit_code == 2 and "not both" in both.stderr


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [("--seq", "4096", "--context"), ("--mbs", "2", "--batch"), ("--gbs", "8", "--batch"),
     ("--precision", "fp8", "--weights"), ("--framework", "deepspeed", "--engine"),
     ("--zero", "1", "")],
)  # fmt: skip
def test_an_option_of_training_names_what_serving_has(
    run: Run, option: str, value: str, instead: str
) -> None:
    result = run("memory", "--inference", "--model", "8b", option, value)
    assert result.exit_code == 2
    assert f"--inference does not go with {option}" in result.stderr
    assert result.stderr.rstrip().endswith(f"give {instead} for {option}" if instead else "that")


def test_a_checkpoint_states_its_own_format(tmp_path: Path) -> None:
    """The config.json of a quantised checkpoint counts, unless --weights says otherwise."""
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "fbgemm_fp8", "modules_to_not_convert":
                                     ["model.layers.0.self_attn.q_proj"]}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    own, whole, half = (
        memory("--model", str(path), *more)
        for more in ((), ("--weights", "fp8"), ("--weights", "bf16"))
    )
    assert "--weights fp8-ffn is read from its quantization_config." in own.stdout
    assert "says --weights fp8-ffn, not bf16" in half.stdout
    held = [_weights_gib(result.stdout) for result in (whole, own, half)]
    assert held == sorted(held)
    assert len(set(held)) == 3


def _weights_gib(report: str) -> float:
    return sum(float(gib) for gib in re.findall(r"^weights.*? (\d+\.\d\d) ", report, re.M))


def test_a_checkpoint_that_is_wider_than_its_name() -> None:
    """57.75 GiB a GPU of Llama 3.1 405B FP8 on eight H100: vllm-project/vllm, issue 6746."""
    asked = ("--model", "llama-3.1-405b", "--gpus", "8xH100", "--tp", "8", "--weights")
    assert "--weights fp8-ffn" in memory(*asked, "fp8").stdout
    assert _weights_gib(memory(*asked, "fp8-ffn").stdout) == pytest.approx(57.75, rel=0.04)
