"""Write the README's generated blocks anew: true output, and the table of errors by family.

    python examples/refresh_readme.py

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`. Numbers of wall time
differ from run to run; `comparable` leaves them out, for the test that the README is true.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from math import exp
from pathlib import Path
from statistics import NormalDist

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MAIN_JOB = ("search", "--model", "70b", "--gpus", "64xH100", "--gbs-tokens", "4M")

MEMORY = ("memory", "--model", "gpt2", "--mbs", "12", "--seq", "1024", "--framework", "nanogpt")
ADVICE = (
    *("memory", "--model", "llama-3-8b", "--gpus", "8xH100", "--mbs", "2", "--grad-acc", "8"),
    "--advise",
)

_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
# "1.83 s, 45,414 candidates/s costed": how long this machine took.
_WALL_TIME = re.compile(r"[\d.]+ m?s, [\d.,]+( M)? candidates/s")


def planner_output(*arguments: str) -> str:
    """What the command prints into a pipe."""
    environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "planner", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    # 1 says that a configuration does not fit, which some examples show.
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"planner {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def main_job() -> str:
    """The main job's output as a code block."""
    command = " ".join(("planner", *MAIN_JOB))
    return f"```console\n$ {command}\n{planner_output(*MAIN_JOB)}```\n"


def memory_of_one_gpu() -> str:
    """Where the memory of a small run goes."""
    return f"```console\n$ planner {' '.join(MEMORY)}\n{planner_output(*MEMORY)}```\n"


def memory_advice() -> str:
    """The tables of advice for a run that does not fit."""
    text = planner_output(*ADVICE)
    tables = text[text.index("Changes that make it fit") : text.index("\n±: 80 %")]
    return f"```console\n$ planner {' '.join(ADVICE)}\n...\n{tables}...\n```\n"


def errors_by_family() -> str:
    """Table of the 80 % intervals that ship, widest pool last."""
    text = (ROOT / "planner/literature/residuals.toml").read_text(encoding="utf-8")
    families = [own for own in tomllib.loads(text)["family"] if _is_shown(own)]
    families.sort(key=lambda own: ("framework" not in own, "architecture" not in own))
    lines = [
        "| framework | GPU architecture | scale | model | step time | runs | peak memory | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_family_row(own) for own in families]
    return "\n".join(lines) + "\n"


def _is_shown(own: dict[str, object]) -> bool:
    """Families as narrow as they come, and the pool of everything; wider pools only repeat them."""
    return {"framework", "architecture", "nodes"} <= own.keys() or not own.keys() & {
        "framework",
        "architecture",
        "model",
    }


def published_errors() -> str:
    """Errors on the published runs that ship, by source."""
    return f"```console\n$ planner validate\n{planner_output('validate', '--quiet')}```\n"


def _family_row(own: dict[str, object]) -> str:
    names = [str(own.get(key) or "any") for key in ("framework", "architecture", "nodes", "model")]
    figures = [
        cell for what in ("time", "memory") for cell in (_interval(own, what), _rows(own, what))
    ]
    return "| " + " | ".join((*names, *figures)) + " |"


def _rows(own: dict[str, object], what: str) -> str:
    return str(own.get(f"{what}_rows", 0))


def _interval(own: dict[str, object], what: str) -> str:
    """The upper side of the log-normal 80 % interval."""
    if not own.get(f"{what}_rows"):
        return "-"
    spread = float(str(own[f"spread_log_{what}"]))
    return f"±{(exp(NormalDist().inv_cdf(0.9) * spread) - 1) * 100:.0f} %"


BLOCKS: dict[str, Callable[[], str]] = {
    "main-job": main_job,
    "memory": memory_of_one_gpu,
    "memory-advice": memory_advice,
    "published": published_errors,
    "errors": errors_by_family,
}


def refreshed(readme: str) -> str:
    """The README with every block generated anew."""
    return _BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]]() + match[3], readme)


def comparable(text: str) -> str:
    """Text without wall times and line breaks, which follow from them."""
    return _WALL_TIME.sub("TIME", " ".join(text.split()))


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")
