"""Amounts of memory and resolutions as a user writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.job.errors import UsageError


@dataclass(frozen=True, slots=True)
class HbmReserve:
    """Memory kept free on every GPU: a share of the usable HBM, or bytes."""

    share: float = 0.0
    size_bytes: float = 0.0

    def limit_bytes(self, usable_bytes: float) -> float:
        """Bytes that a plan may use."""
        return usable_bytes * (1.0 - self.share) - self.size_bytes


@dataclass(frozen=True)
class Resolution:
    """How close two plans of a complete front may be: plans within this share of the step time and
    these bytes count as one. The default is the precision to which plans are proven."""

    time: float = 0.001
    memory_bytes: float = 0.1 * 2**30


def parse_reserve(text: str, option: str = "--hbm-reserve") -> HbmReserve:
    """`0.05` or `5%`: share of the usable HBM; `4GiB` or `4GB`: that many bytes."""
    match = re.match(
        r"^([0-9]{1,9}(?:\.[0-9]{1,19})?)\s*(%|GiB|GB|MiB)?$", text.strip(), re.IGNORECASE
    )
    if not match:
        raise UsageError(f"{option} {text!r}: write a share (0.05, 5%) or a size (4GiB)")
    number, unit = float(match[1]), (match[2] or "").lower()
    sizes = {"gib": 2**30, "gb": 10**9, "mib": 2**20}
    if unit in sizes:
        return HbmReserve(size_bytes=number * sizes[unit])
    share = number / 100 if unit == "%" else number
    if not 0 <= share < 1:
        size = "" if unit else f"; for gibibytes write {text}GiB"
        raise UsageError(f"{option} {text!r}: a share is less than 1 (100 %){size}")
    return HbmReserve(share=share)


# A resolution finer than the precision of proofs, or of the solver's memory unit, is meaningless.
FINEST, COARSEST_TIME = Resolution(memory_bytes=0.01 * 2**30), 0.1


def parse_resolution(text: str) -> Resolution:
    """Parse `0.5%,1GiB`, or one of the two; the other one takes its default."""
    given: dict[str, float] = {}
    parts = text.split(",")
    for part in parts:
        amount = parse_reserve(part, "--resolution")
        if part.strip()[-1:] in "bB":
            given["memory_bytes"] = amount.size_bytes
        else:
            given["time"] = amount.share
    found = Resolution(**given)
    if len(given) < len(parts):
        raise UsageError(
            f"--resolution {text!r}: write one share and one size, for example 0.5%,1GiB"
        )
    if not FINEST.time <= found.time <= COARSEST_TIME:
        raise UsageError(
            f"--resolution {text!r}: the share of the step time must be between 0.1 % (the "
            "precision of proofs) and 10 %"
        )
    if found.memory_bytes < FINEST.memory_bytes:
        raise UsageError(f"--resolution {text!r}: the memory must be 0.01GiB or more")
    return found
