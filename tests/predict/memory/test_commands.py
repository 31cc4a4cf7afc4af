"""`evaluate`, `memory`, `explain` and `search` say the same peak for the same words."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from planner.cli.declared import command
from planner.predict.plan import Plan
from planner.search.result import SearchResult

DENSE = "--model llama-3-8b --gpus 16xH100 --gbs 32"
EXPERTS = "--model mixtral-8x7b --gpus 32xH100 --gbs 64"
CONTEXT = "--model llama-3-8b --gpus 16xH100 --gbs 16 --seq 32768 --tp 2 --cp 4"


def each(base: str, *choices: str) -> list[str]:
    """The words with one of each choice ('a|b|c') added."""
    ways = product(*(choice.split("|") for choice in choices))
    return [" ".join((base, *(word.strip() for word in way))) for way in ways]


WORDS = [
    *each(DENSE, "--pp 1|--tp 2 --pp 2|--pp 4 --vpp 2|--tp 4 --pp 4",
          "--recompute none|--recompute full|--recompute layernorm"),
    *each(f"{DENSE} --zero", "0|1", "--pp 2 --mbs 2|--optimizer muon"),
    *each("--model llama-3-8b --gpus 16xH100 --pp 4 --grad-acc", "1|2|8"),
    *each(f"{DENSE} --tp 2 --pp 2 --recompute", "full:uniform=2|full:uniform=4"),
    *each(f"{DENSE} --pp 2 --activation-offload", "core_attn,attn_proj|all",
          "--activation-offload-fraction 1|--activation-offload-fraction 0.4"),
    *each(CONTEXT, "--cp-comm-type p2p|--cp-comm-type all_gather|--cp-comm-type a2a|"
          "--cp-comm-type a2a+p2p|--recompute full", "--pp 1|--pp 2"),
    *each(EXPERTS, "--ep 8|--ep 4 --pp 2|--ep 2 --tp 2 --pp 4 --vpp 2",
          "--recompute none|--recompute moe_act|--recompute full"),
    *each("--model deepseek-v3 --gpus 256xH100 --gbs 512 --ep 32 --zero 1", "--pp 4 --tp 2|--pp 8",
          "--recompute full|--recompute mla_up_proj"),
    *each("--model llama-3-8b --gpus 8xH100 --gbs 16 --framework", "torchtitan|deepspeed",
          "--zero 2|--zero 3", "--recompute none|--recompute full", "--mbs 1|--mbs 2"),
    *each("--model gpt2 --seq 1024 --gpus 8xH100 --gbs 64 --framework",
          "hf-transformers|nanogpt", "--attention eager|--attention flash", "--mbs 1|--mbs 4"),
    *each("--model llama-3-8b --gpus 8xH100 --gbs 16 --framework", "hf-fsdp2|fsdp1",
          "--zero 2|--zero 3", "--recompute full|--recompute none"),
    *each("--model llama-3-8b --gpus 8xH100 --gbs 32 --framework torchtitan --pp 4 --schedule",
          "gpipe|1f1b|zb-h1 --vpp 2|zb-v --vpp 2|dualpipev --vpp 2", "--zero 2"),
    *each("--model llama-3-8b --gpus 8xH100 --gbs 16 --framework deepspeed --zero", "0|1"),
    *each("--model llama-3-8b --gpus 8xH100 --gbs 32 --framework zero-bubble --pp 4 --schedule",
          "zb-h1|zb-h2|zb-v --vpp 2"),
    "--model llama-3-8b --gpus 8xH100 --gbs 32 --framework hai-llm --pp 4 --schedule dualpipe",
    *each("--model llama-3-8b --gpus 8xH100 --gbs 16 --framework nanotron --pp 2",
          "--zero 0|--zero 1", "--schedule gpipe|--schedule 1f1b"),
]  # fmt: skip


def run(command: click.Command, words: str) -> Any:
    """What a command prints as JSON; its exit status says whether the configuration fits."""
    done = CliRunner().invoke(command, [*words.split(), "--json"])
    assert done.exit_code in (0, 1) and not done.stderr.startswith("Error"), done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", WORDS)
def test_evaluate_memory_and_explain(words: str, tmp_path: Path) -> None:
    """To the last digit: the peak, the stage, its live tensors, and the sums of its terms."""
    file = tmp_path / "plan.json"
    (plan,) = run(command("evaluate"), f"{words} -o {file}")["plans"]
    shown = run(command("memory"), words)
    explained = run(command("explain"), str(file))
    assert shown["total_bytes"] == plan["peak_bytes"] == explained["plan"]["peak_bytes"]
    assert shown["heaviest_stage"] == plan["heaviest_stage"]
    assert shown["fit_probability"] == plan["fit_probability"]
    for stage, item in zip(plan["stages"], shown["stages"], strict=True):
        assert stage["peak"] == item["total_bytes"]
        assert stage["allocated"] == item["allocated_bytes"]
        assert stage["in_flight"] == item["in_flight"]
        parts = sum(part["bytes"] for part in item["peak_parts"])
        assert parts == pytest.approx(item["total_bytes"], rel=1e-9)
    heaviest = plan["stages"][plan["heaviest_stage"]]
    terms = [term["amount"] for term in explained["memory"]]
    assert sum(terms) == pytest.approx(heaviest["peak"], rel=1e-9)
    assert min(terms) >= 0.0
    assert heaviest["activations"] == pytest.approx(at_peak(shown, "activations", "weight casts"))
    assert heaviest["working"] == pytest.approx(at_peak(shown, "working", "recomputed"))


def at_peak(shown: Any, *names: str) -> float:
    """Bytes of some terms at the peak of the heaviest stage that `memory` shows."""
    stages = shown["stages"][shown["heaviest_stage"]]
    peak = stages["peak"]
    phases = [each for each in stages["phases"] if each["step"] == peak["step"]]
    (phase,) = [each for each in phases if each["phase"] == peak["phase"]]
    return sum(phase["terms"][name] for name in names)


SEARCHES = [
    f"{DENSE} --framework megatron-core",
    f"{DENSE} --framework torchtitan",
    f"{EXPERTS} --framework megatron-core",
    "--model llama-3-8b --gpus 16xH100 --gbs 16 --seq 131072",
]


@pytest.mark.parametrize("words", SEARCHES)
def test_search_says_the_same(words: str) -> None:
    """Every plan of a front, asked for by its own words."""
    result = SearchResult.model_validate(run(command("search"), f"{words} -q"))
    assert result.plans
    for plan in result.plans:
        found = f"{words} {plan_words(plan)}"
        (again,) = run(command("evaluate"), found)["plans"]
        shown = run(command("memory"), found)
        assert shown["total_bytes"] == again["peak_bytes"]
        assert again["peak_bytes"] == pytest.approx(plan.peak_bytes, rel=1e-12), found
        assert again["heaviest_stage"] == plan.heaviest_stage


def plan_words(plan: Plan) -> str:
    """The options that ask for a plan."""
    model_dump = plan.degrees.model_dump(exclude={"shard"})
    words = [f"--{name.replace('_', '-')} {value}" for name, value in model_dump.items()]
    words += [f"--with {name}" for name in plan.techniques]
    words.append(f"--recompute {plan.recompute}")
    words.append(f"--layers-per-stage {','.join(map(str, plan.layout.block_layers))}")
    for again in plan.layout.recomputed.values():
        words.append(f"--recompute-layers {','.join(map(str, again))}")
    if plan.cp_comm_type:
        words.append(f"--cp-comm-type {plan.cp_comm_type}")
    return " ".join(words)


@pytest.mark.parametrize("command", ["evaluate", "memory"])
def test_one_configuration_needs_no_compiler(command: str) -> None:
    """Neither numba nor the solver's and the tables' libraries are loaded."""
    words = "--model llama-3-8b --gpus 16xH100 --gbs 16 --tp 2 --cp 2 --pp 2"
    script = (
        "import sys\n"
        "from planner.cli.declared import command\n"
        f"command({command!r}).main({words.split()!r} + ['-q'], standalone_mode=False)\n"
        "heavy = [name for name in ('numba', 'ortools', 'pandas') if name in sys.modules]\n"
        "print(heavy, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
