"""What the program answers on another checkout and on this one: equal, or where it differs.

    python -m tests.bench.same BEFORE [--only WORD] [--quick] [--lines FILE]
    python -m tests.bench.same BEFORE --save before.json
    python -m tests.bench.same --against before.json

BEFORE is a checkout of an earlier commit (`git worktree add ../before COMMIT`). Both run with the
packages of this environment, each with a cache of compiled code of its own. Compared are the JSON
of some hundred commands, the launch folders that each target writes with each launcher, the golden
files of the tests, and the verdict on each frozen file of `tests/launch/read/found.toml`. `--save`
keeps the answers of BEFORE and `--against` compares with them, so that one run of an earlier commit
serves many comparisons. `--lines` names a file of further commands. Wall times and rates are left
out. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
FOUND = HERE / "tests" / "launch" / "read" / "found.toml"
# How long a machine took is no answer.
CLOCKS = ("seconds", "costing_seconds", "planner_version", "candidates_per_s")
# Answers of the short set, which takes half a minute.
QUICK = 6

COMMANDS = """
search --model 70b --gpus 64xH100 --gbs-tokens 4M
search --model 70b --gpus 64xH100 --gbs-tokens 4M --framework megatron-bridge
search --model 70b --gpus 64xH100 --gbs-tokens 4M --framework torchtitan
search --model 70b --gpus 16xA100-80GB --gbs 64 --framework deepspeed
search --model 405b --gpus 1024xH100 --gbs-tokens 8M --top 20
search --model 8b --gpus 8xH100 --gbs 64 --seq 32768 --tp 1,2 --mbs 1
search --model 8b --gpus 8xRTX4090 --gbs 32
search --model 8b --gpus 2xH100 --gbs 16 --recompute none
search --model mixtral-8x7b --gpus 16xH100 --gbs 64 --seq 4096
search --model deepseek-v3 --gpus 256xH100 --gbs 2048 --seq 4096 --top 3
search --model gpt-oss-120b --gpus 64xH100 --gbs-tokens 4M --top 3
search --model gemma-2-9b --gpus 16xH100 --gbs 128
search --model 70b --gpus 64xH100 --gbs-tokens 4M --precision fp8 --fix mbs=1
search --model 70b --gpus 64xH100 --gbs-tokens 4M --require "pp <= 4" --require "pp >= 8"
search --model llama-3.2-1b --gpus 4xH100+4xA100 --gbs 64 --top 2
search --model llama-3.2-1b --gpus 8..16xH100 --gbs 64
search --model qwen3-30b-a3b --gpus 32xH100 --gbs 256 --optimizer-offload search
search --model gpt2 --gpus 1xA100 --gbs 480 --seq 1024 --framework nanogpt
search --model llama-2-7b --gpus 32xH100 --gbs 64 --seq 131072
search --model 70b --gpus 64xB200 --gbs-tokens 4M --precision mxfp8
evaluate --model 70b --gpus 64xH100 --gbs 512 --tp 8 --pp 4 --mbs 1
evaluate --model llama-2-7b --gpus 128xH100 --gbs 8 --seq 262144 --cp 32 --pp 4 --recompute full
evaluate --model deepseek-v3 --gpus 2048xH100 --gbs 15360 --pp 16 --ep 64 --mbs 1 --seq 4096
evaluate --model gpt2 --gpus 1xA100 --gbs 12 --mbs 12 --seq 1024 --framework nanogpt
evaluate --model mixtral-8x7b --gpus 16xH100 --gbs 64 --ep 8 --pp 2 --mbs 1 --seq 4096
evaluate --model llama-3-8b --gpus 8xH100 --gbs 64 --framework hf-fsdp2 --zero 3 --mbs 2
evaluate --model llama-3-8b --gpus 8xH100 --gbs 64 --framework deepspeed --zero 3 --mbs 2
evaluate --model llama-3-8b --gpus 16xA100-80GB --gbs 64 --framework nanotron --tp 4 --pp 2 --mbs 2
evaluate --model gemma-2-9b --gpus 8xH100 --gbs 64 --framework hf-transformers --mbs 1 --attention eager
evaluate --model 8b --gpus 8xA100 --gbs 8 --mbs 1
memory --model 8b --gpus 8xA100 --mbs 1
memory --model llama-3-8b --gpus 8xH100 --mbs 2 --grad-acc 8 --advise
memory --model gpt2 --mbs 12 --seq 1024 --framework nanogpt
memory --model 70b --gpus 64xH100 --tp 4 --pp 4 --mbs 1 --timeline
memory --model 70b --gpus 8xH100 --inference --tp 8
compare --model 8b --tokens 1T --gpus 16xH100 --gpus 16xA100-80GB --gbs 128
scale --model 8b --gpu H100 --from 8 --to 32 --tokens 1T --gbs 128
validate
check examples/05_check_a_script/pretrain_moe.sh --gpus 32xH100
fit --model 8b --gpus 1xRTX4090
search --model jamba-mini --gpus 64xH100 --gbs-tokens 4M --top 2
search --model nemotron-nano-12b --gpus 8xH100 --gbs 64 --top 2
search --model deepseek-v3 --gpus 8xH100 --gbs 64
search --model 70b --gpus 8xA100 --gbs 64
search --model 8b --gpus 16xMI300X --gbs 64 --framework primus
search --model 8b --gpus 8xH100 --gbs 64 --framework torchtitan --what-if
search --model 8b --gpus 4xH100+4xH100 --gbs 64 --top 3
memory --model 8b --gpus 8xH100 --mbs 1 --optimizer adamw-8bit
evaluate --model 8b --gpus 8xH100 --gbs 64 --tp 2 --mbs 1 --activation-offload attn_norm
models
hardware
frameworks
"""  # noqa: E501

# Each framework costs the same job, whatever it offers of it.
FRAMEWORKS = """
deepspeed fsdp1 generic-3d hai-llm hf-fsdp2 hf-transformers jax-xla llm-foundry megatron-bridge
megatron-core megatron-core-no-overlap megatron-deepspeed megatron-fsdp megatron-lm-2022
megatron-local nanogpt nanotron nanotron-2024 nemo-2022 primus torch-3d torchtitan torchtitan-2024
torchtune zero-bubble
"""
PER_FRAMEWORK = (
    "search --model llama-3-8b --gpus 16xH100 --gbs 64 --top 2 --framework {}",
    "search --model mixtral-8x7b --gpus 32xA100-80GB --gbs 64 --top 2 --framework {}",
)

# Plans that each target writes: target -> the searched job.
LAUNCHES = {
    "megatron-core": "--model mixtral-8x7b --gpus 16xH100 --gbs 64 --seq 4096",
    "megatron-bridge": "--model 70b --gpus 64xH100 --gbs-tokens 4M",
    "torchtitan": "--model llama-3-8b --gpus 8xH100 --gbs 64",
    "deepspeed": "--model llama-3-8b --gpus 8xH100 --gbs 64",
    "accelerate": "--model llama-3-8b --gpus 8xH100 --gbs 64",
    "nanotron": "--model llama-3-8b --gpus 16xA100-80GB --gbs 64",
}
LAUNCHERS = ("torchrun", "slurm", "k8s", "skypilot")


def commands() -> list[str]:
    """Every command that both checkouts run, as it is typed after `planner`."""
    each = [line.format(name) for name in FRAMEWORKS.split() for line in PER_FRAMEWORK]
    return [*COMMANDS.strip().splitlines(), *each]


def frozen_files(folder: Path) -> list[str]:
    """`check` of each case of `found.toml`, whose files are written into a folder."""
    lines = []
    for number, case in enumerate(tomllib.loads(FOUND.read_text(encoding="utf-8"))["case"]):
        paths = [folder / str(number) / name for name in case["files"]]
        for path, text in zip(paths, case["files"].values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        gpus = f"--gpus {case.get('gpus') or 8}xH100"
        lines.append(f"check {shlex.quote(str(paths[0].relative_to(folder)))} {gpus}")
    return lines


def told(line: str) -> tuple[int, Any]:
    """(exit status, JSON or text) of a command, run in this process."""
    from click.testing import CliRunner

    from planner.cli.program import planner_command

    done = CliRunner().invoke(planner_command, [*shlex.split(line), "--json"])
    try:
        return done.exit_code, json.loads(done.stdout)
    except json.JSONDecodeError:
        return done.exit_code, done.stdout or done.stderr or repr(done.exception)


def written(target: str, job: str, launcher: str) -> Iterator[tuple[str, tuple[int, Any]]]:
    """The files of a launch folder, each as an answer."""
    with tempfile.TemporaryDirectory() as scratch:
        plans, folder = Path(scratch, "plans.json"), Path(scratch, "run")
        status = told(f"search {job} --framework {target} -o {plans}")[0]
        if status == 0:
            status = told(f"launch {plans} --nodes-as {launcher} -o {folder}")[0]
        yield f"launch {target} {launcher}", (status, "")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                text = path.read_text(encoding="utf-8").replace(scratch, "")
                yield f"launch {target} {launcher} {path.relative_to(folder)}", (0, text)


def golden() -> Iterator[tuple[str, tuple[int, Any]]]:
    """The golden launch files of the checkout in which this process stands."""
    folder = Path("tests", "launch", "golden")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield f"golden {path.relative_to(folder)}", (0, path.read_text(encoding="utf-8"))


def work(lines: list[str], checks: list[str], folder: Path, launches: bool) -> dict[str, Any]:
    """Every answer of the checkout in which this process stands. Name -> (status, answer)."""
    answers: dict[str, Any] = {f"planner {line}": told(line) for line in lines}
    if launches:
        answers |= dict(golden())
        for target, job in LAUNCHES.items():
            for launcher in LAUNCHERS:
                answers |= dict(written(target, job, launcher))
    os.chdir(folder)
    return answers | {f"frozen {line}": told(line) for line in checks}


def answers_of(checkout: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every answer of a checkout, from a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "files")
        folder.mkdir()
        further = options.lines.read_text(encoding="utf-8").splitlines() if options.lines else []
        lines, checks = [*commands(), *further], frozen_files(folder)
        if options.quick:
            lines, checks = lines[::QUICK], checks[::QUICK]
        asked = {
            "lines": [line for line in lines if options.only in line],
            "checks": [line for line in checks if options.only in line],
            "folder": str(folder),
            "launches": not (options.only or options.quick),
        }
        cache = options.cache or f"{scratch}/cache"
        env = {**os.environ, "PYTHONPATH": str(checkout), "PLANNER_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, __file__, "--worker"], input=json.dumps(asked), cwd=checkout, env=env,
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        kept: dict[str, Any] = json.loads(done.stdout.replace(scratch, ""))
        return kept


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two documents differ, clocks apart."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            if key not in CLOCKS:
                yield from differences(before.get(key), after.get(key), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {_around(str(before), str(after))}"


def _around(before: str, after: str) -> str:
    """Both texts from a little before the first character in which they differ."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
    start = max(0, same - 40)
    return f"{before[start : same + 80]!r} -> {after[start : same + 80]!r}"


def report(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """Print each answer that differs and a closing line. How many differ."""
    differ = 0
    for name in {**before, **after}:
        found = list(differences(before.get(name), after.get(name)))
        differ += bool(found)
        if found:
            print(f"DIFFERS  {name}", *(f"            {line}" for line in found[:5]), sep="\n")
    print(f"{len(after) - differ} of {len(after)} answers are the same")
    return differ


def main() -> None:
    """Compare all answers, or those whose command contains a word."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.same", description=__doc__)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="commands that contain this")
    parser.add_argument("--quick", action="store_true", help="one answer of six, no launch files")
    parser.add_argument("--lines", type=Path, help="a file of further commands, one a line")
    parser.add_argument("--cache", help="a folder that keeps compiled code between runs")
    parser.add_argument("--save", type=Path, help="write the answers of BEFORE to this file")
    parser.add_argument("--against", type=Path, help="compare with answers that --save wrote")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asked = json.load(sys.stdin)
        json.dump(
            work(*(asked[key] for key in ("lines", "checks", "folder", "launches"))), sys.stdout
        )
        return
    if options.save:
        kept = answers_of(options.before.resolve(), options)
        options.save.write_text(json.dumps(kept), encoding="utf-8")
        return
    after = answers_of(HERE, options)
    if options.against:
        before = json.loads(options.against.read_text(encoding="utf-8"))
        before = {name: before[name] for name in before if name in after}
    else:
        before = answers_of(options.before.resolve(), options)
    sys.exit(1 if report(before, after) else 0)


if __name__ == "__main__":
    main()
