"""What is measured of one checkout: figures by name, each from processes of its own."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.process import SCRIPTS, Checkout, Run, run

MAIN = "search --model 70b --gpus 64xH100 --gbs-tokens 4M"
IMPORTS = "import numba, ortools.sat.python.cp_model, pandas"
# A line of the report, and the arguments of `planner`.
COMMANDS = {
    "`search`, 70b on 64 H100": MAIN,
    "`search`, 405b on 16,384 H100": "search --model 405b --gpus 16384xH100 --gbs-tokens 16M",
    "`search`, deepseek-v3 on 2,048 H100": (
        "search --model deepseek-v3 --gpus 2048xH100 --gbs-tokens 16M"
    ),
    "`search`, gpt-oss-120b on 64 H100": (
        "search --model gpt-oss-120b --gpus 64xH100 --gbs-tokens 4M"
    ),
    "`memory`": "memory --model llama-3-8b --gpus 8xH100 --mbs 2 --grad-acc 8",
    "`evaluate`": (
        "evaluate --model 70b --gpus 64xH100 --gbs-tokens 4M --tp 4 --pp 4 --vpp 5 --cp 2 --mbs 1"
    ),
    "`check`": "check examples/05_check_a_script/pretrain_moe.sh --gpus 32xH100",
    "an error: `--require` in conflict": f"{MAIN} --require pp<=4 --require pp>=8",
    "`--help`": "--help",
    "`models`": "models",
}
# Model, GPUs and tokens of a batch, as the scripts take them.
KERNEL_JOBS = {
    "llama-3-70b on 64 H100": ("llama-3-70b", "64xH100", "4e6"),
    "llama-3.1-405b on 16,384 H100": ("llama-3.1-405b", "16384xH100", "16e6"),
    "deepseek-v3 on 2,048 H100": ("deepseek-v3", "2048xH100", "16e6"),
}
# What a quick run leaves out.
LARGE = (*list(COMMANDS)[1:4], *list(KERNEL_JOBS)[1:])
# Times that callgrind costs the sample: once this often, once twice this.
_TIMES = 100

Figures = dict[str, float | str]


def planner(checkout: Checkout, arguments: str) -> tuple[Run, str]:
    """(a run of `planner`, which heavy packages it imported)."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "imported"
        done = checkout.script("command.py", note, *arguments.split())
        if done.status not in (0, 1, 2) or not note.is_file():
            raise RuntimeError(f"planner {arguments}: {done.errors[-2000:]}")
        return done, note.read_text(encoding="utf-8")


def least(runs: Sequence[Run]) -> Figures:
    """The fewest seconds of several runs, and the least of their peaks."""
    return {
        "wall_s": min(each.wall_s for each in runs),
        "cpu_s": min(each.cpu_s for each in runs),
        "peak_mib": min(each.peak_mib for each in runs),
    }


def bare_imports(checkout: Checkout, repeats: int) -> Figures:
    """Importing numba, OR-Tools and pandas, which is what every search starts with."""
    command = [sys.executable, "-c", IMPORTS]
    environment = checkout.environment()
    return least([run(command, environment, checkout.folder) for _ in range(repeats)])


def warm(checkout: Checkout, arguments: str, bare: Figures, repeats: int) -> Figures:
    """A command whose core is compiled."""
    done = [planner(checkout, arguments) for _ in range(repeats)]
    figures = least([each for each, _ in done])
    ratio = float(figures["cpu_s"]) / float(bare["cpu_s"])
    return {**figures, "ratio": ratio, "imports": done[0][1] or "none"}


def first_answer(checkout: Checkout) -> Figures:
    """The main command with an empty cache, then with what it left there."""
    cold, _ = planner(checkout, MAIN)
    again, _ = planner(checkout, MAIN)
    assert checkout.cache is not None
    held = sum(each.stat().st_size for each in checkout.cache.rglob("*") if each.is_file())
    return {
        "wall_s": cold.wall_s,
        "cpu_s": cold.cpu_s,
        "compiling_wall_s": cold.wall_s - again.wall_s,
        "compiling_cpu_s": cold.cpu_s - again.cpu_s,
        "share": 100 * (1 - again.cpu_s / cold.cpu_s),
        "cache_mb": held / 1e6,
    }


def searched_twice(checkout: Checkout) -> tuple[Figures, Figures]:
    """CPU seconds of the first and second search of a process: (with imports, without)."""
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "modules"
        raw = checkout.script("twice.py", names, *MAIN.split()).json()
        names.write_text("\n".join(raw.pop("modules")), encoding="utf-8")
        preloaded = checkout.script("twice.py", names, *MAIN.split()).json()
        preloaded.pop("modules")
    for each in (raw, preloaded):
        each["ratio"] = each["first_s"] / each["second_s"]
    return raw, preloaded


def rates(checkout: Checkout, job: tuple[str, str, str]) -> Figures:
    """Candidates and bounds per second on one core, and how much sooner the busiest of two threads
    has done its part, by processor time."""
    one = checkout.script("rates.py", *job, 1).json()
    two = checkout.script("rates.py", *job, 2).json()
    return {
        "shapes": one["shapes"],
        "rate": one["shapes"] / one["kernel"]["cpu_s"],
        "threads": one["kernel"]["busiest_s"] / two["kernel"]["busiest_s"],
        "bounds": one["bounded"] / one["bounds"]["cpu_s"],
        "bound_threads": one["bounds"]["busiest_s"] / two["bounds"]["busiest_s"],
    }


def host_processor() -> dict[str, str]:
    """Variables that have numba load under callgrind what it compiled for this processor."""
    code = (
        "import llvmlite.binding as b;"
        "print(b.get_host_cpu_name(), b.get_host_cpu_features().flatten())"
    )
    done = run([sys.executable, "-c", code], {}, Path.cwd())
    name, features = done.output.split()
    return {
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }


def collected(checkout: Checkout, sample: Path, times: int) -> int:
    """Instructions of a process that costs the sample so many times."""
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-P",
        str(SCRIPTS / "instructions.py"), "repeat", str(sample), str(times),
    ]  # fmt: skip
    done = run(command, checkout.environment(**host_processor()), checkout.folder)
    found = re.search(r"Collected : (\d+)", done.errors)
    if done.status != 0 or found is None:
        raise RuntimeError(done.errors[-2000:])
    return int(found[1])


def instructions(checkout: Checkout, job: tuple[str, str, str]) -> Figures:
    """Instructions and operations per candidate of a sample of a job's shapes."""
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "arguments"
        candidates = int(checkout.script("instructions.py", "capture", sample, *job).json())
        counted = checkout.script("instructions.py", "count", sample, NUMBA_DISABLE_JIT="1").json()
        more = collected(checkout, sample, 2 * _TIMES) - collected(checkout, sample, _TIMES)
    spent = more / _TIMES / candidates
    needed = sum(counted.values()) / candidates
    each = {kind: counted[kind] / candidates for kind in ("arithmetic", "comparison", "function")}
    return {
        **each,
        "candidates": candidates,
        "instructions": spent,
        "operations": needed,
        "ratio": spent / needed,
    }
