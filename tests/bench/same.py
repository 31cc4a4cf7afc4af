"""The JSON of forty commands on another checkout and on this one: equal, or where it differs.

    python -m tests.bench.same BEFORE [--only WORD]

BEFORE is a checkout of an earlier commit (`git worktree add ../before COMMIT`). Both run with the
packages of this environment, each with a cache of compiled code of its own. Wall times and rates
are left out. Exit status 1 if any command differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
# How long a machine took is no answer.
CLOCKS = ("seconds", "costing_seconds", "planner_version", "candidates_per_s")

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
models
hardware
frameworks
"""  # noqa: E501


def answer(checkout: Path, command: str, cache: str) -> tuple[int, Any]:
    """(exit status, JSON or text) of a command run from a checkout."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "PLANNER_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-m", "planner", *shlex.split(command), "--json"],
        capture_output=True, text=True, check=False, cwd=checkout, env=env,
    )  # fmt: skip
    try:
        return done.returncode, json.loads(done.stdout)
    except json.JSONDecodeError:
        return done.returncode, done.stdout or done.stderr


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
        yield f"{path}: {str(before)[:100]} -> {str(after)[:100]}"


def main() -> None:
    """Run all commands, or those that contain a word, on both."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.same", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("--only", default="", help="commands that contain this")
    options = parser.parse_args()
    chosen = [item for item in COMMANDS.strip().splitlines() if options.only in item]
    differ = 0
    with tempfile.TemporaryDirectory() as scratch:
        for command in chosen:
            old = answer(options.before.resolve(), command, f"{scratch}/before")
            new = answer(HERE, command, f"{scratch}/after")
            found = [] if old[0] == new[0] else [f"exit status: {old[0]} -> {new[0]}"]
            found += differences(old[1], new[1])
            differ += bool(found)
            print(f"{'DIFFERS' if found else 'equal':8}{old[0]:2}  planner {command}", flush=True)
            for line in found[:5]:
                print(f"            {line}")
    print(f"{len(chosen) - differ} of {len(chosen)} commands give the same")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
