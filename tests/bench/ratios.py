"""Processor seconds of the warm commands over those of the bare imports of the same run.

The ratio hardly depends on the machine. `ratios.json` beside this file holds the one that each
command had when it was last accepted; a run in which a command takes a tenth more fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.report import Row

RECORDED = Path(__file__).parent / "ratios.json"
MOST_SLIP = 1.1


def ratios_of(rows: Sequence[Row]) -> dict[str, float]:
    """By command; rows without a ratio, as that of the bare imports, are left out."""
    found = {row.name: (row.after or {}).get("ratio") for row in rows}
    return {name: value for name, value in found.items() if isinstance(value, float)}


def read(path: Path = RECORDED) -> dict[str, float]:
    """The recorded ratios; none without a file."""
    if not path.is_file():
        return {}
    return {name: float(value) for name, value in json.loads(path.read_text("utf-8")).items()}


def slips(recorded: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
    """A sentence for each command that has become slower by more than a tenth."""
    for name, ratio in now.items():
        before = recorded.get(name)
        if before is not None and ratio > MOST_SLIP * before:
            yield f"{name}: {ratio:.2f} times the bare imports, {before:.2f} when last accepted"


def record(now: Mapping[str, float], path: Path = RECORDED, *, accept: bool = False) -> None:
    """Keep the smaller ratio of each command, or today's where a slip is accepted."""
    known = read(path)
    kept = {
        name: ratio if accept else min(ratio, known.get(name, ratio)) for name, ratio in now.items()
    }
    rounded = {name: round(value, 3) for name, value in sorted((known | kept).items())}
    path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
