"""Calculon's search on the same machine: three jobs of GPT-3 175B on A100s.

Calculon is read from a checkout that the caller names and run as it is, with its debug messages
silenced, on one processor, for a time: a random sample of the parts of its search
(`scripts/calculon_sample.py`). Its second memory tier is left out, since `planner search` offloads
nothing unasked, and it leaves micro-batches early (`--mbs-break`).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from tests.bench.measure import Figures, planner
from tests.bench.process import SCRIPTS, Checkout, run

GPUS = (64, 512, 4096)
_BATCH = 1536


def calculon(folder: Path, python: str, gpus: int, seconds: float) -> Figures:
    """Its search for the best execution, as much of it as so many seconds allow."""
    system = json.loads((folder / "systems/a100_80g.json").read_text(encoding="utf-8"))
    system["mem2"]["GiB"] = 0
    with tempfile.TemporaryDirectory() as place:
        one_tier = Path(place) / "system.json"
        one_tier.write_text(json.dumps(system), encoding="utf-8")
        command = [
            python, str(SCRIPTS / "calculon_sample.py"), str(seconds), "llm-optimal-execution",
            "models/gpt3-175B.json", str(gpus), str(_BATCH), "float16", str(one_tier),
            str(Path(place) / "best.json"), "--mbs-break", "--noneok", "--cpus", "1",
        ]  # fmt: skip
        done = run(command, {**os.environ, "PYTHONPATH": str(folder)}, folder)
    found = re.search(r"^Sample: (.*)$", done.output, re.MULTILINE)
    if done.status != 0 or found is None:
        raise RuntimeError((done.output + done.errors)[-2000:])
    figures: dict[str, float] = json.loads(found[1])
    return {
        "candidates": figures["candidates"],
        "rate": figures["candidates"] / figures["cpu_s"],
        "share": 100 * figures["share"],
        "cpu_s": figures["cpu_s"] / figures["share"],
    }


def ours(checkout: Checkout, gpus: int) -> Figures:
    """`planner search` for the same job: the whole process, start and imports included."""
    job = f"search --model gpt3-175b --gpus {gpus}xA100-80GB --gbs {_BATCH} --seq 2048 --json"
    done, _ = planner(checkout, job)
    counts = done.json()["counts"]
    return {
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        "candidates": counts["legal"],
        "rate": counts["legal"] / done.cpu_s,
    }
