"""`--gpus` of several clusters: `32..128xH100` is every number of whole nodes between."""

from __future__ import annotations

import re

from hardware import Cluster, parse_gpus
from planner.job.errors import UsageError
from planner.job.pool import parse_one_type

MOST_CLUSTERS = 64
_RANGE = re.compile(r"^\s*(?P<first>\d*)\s*\.\.\s*(?P<last>\d*)\s*[x×*]\s*(?P<kind>\S.*?)\s*$")
_NODES = re.compile(r"^\d+\s*[x×*]\s*\S")


def is_range(text: str) -> bool:
    """Whether a `--gpus` text means several clusters."""
    return ".." in text


def several_clusters(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Every cluster that the texts name, ranges spelled out. UsageError or HardwareError.

    Numbers of GPUs grow by a node, below a node by its divisors: `2..24xH100` is 2, 4, 8, 16, 24.
    `2..4x8xH100` counts nodes.
    """
    found: list[str] = []
    for text in texts:
        for item in _range_of(text) if is_range(text) else (text,):
            parse_one_type(item) if "+" not in item else _refuse_pool(item)
            if item in found:
                raise UsageError(f"--gpus: {item} is given twice; give each cluster once")
            found.append(item)
    if len(found) > MOST_CLUSTERS:
        raise UsageError(
            f"--gpus {' '.join(texts)}: {len(found)} clusters, each searched on its own; give at "
            f"most {MOST_CLUSTERS}, as --gpus 64xH100 --gpus 128xH100"
        )
    return tuple(found)


def _refuse_pool(text: str) -> None:
    raise UsageError(
        f"--gpus {text}: GPUs of several types in one job are searched alone; leave the other "
        "--gpus out"
    )


def _range_of(text: str) -> tuple[str, ...]:
    """The clusters of one range."""
    match = _RANGE.match(text)
    if match is None:
        raise UsageError(f"--gpus {text}: write a range as 32..128xH100")
    kind = match["kind"]
    if "+" in kind:
        raise UsageError(f"--gpus {text}: a range is of one type of GPU, as 32..128xH100")
    if not match["first"] or not match["last"]:
        given = match["first"] or match["last"] or "64"
        raise UsageError(f"--gpus {text}: give both ends of the range, as {given}..128x{kind}")
    first, last = int(match["first"]), int(match["last"])
    one = parse_gpus(f"1x{kind}")
    if first < 1 or last < first:
        low, high = max(1, min(first, last)), max(first, last, 1)
        raise UsageError(f"--gpus {text}: give the smaller number first, as {low}..{high}x{kind}")
    if (last - first) // _step(one, kind) > MOST_CLUSTERS:
        count = (last - first) // _step(one, kind) + 1
        raise UsageError(
            f"--gpus {text}: {count:,} clusters, each searched on its own; give at most "
            f"{MOST_CLUSTERS}, or single ones as --gpus {first}x{kind} --gpus {last}x{kind}"
        )
    return tuple(f"{count}x{kind}" for count in _counts(text, first, last, kind, one))


def _step(one: Cluster, kind: str) -> int:
    """GPUs, or nodes where nodes are counted, from one number to the next."""
    return 1 if _NODES.match(kind) else one.node_gpus


def _counts(text: str, first: int, last: int, kind: str, one: Cluster) -> list[int]:
    step = _step(one, kind)
    for end in (first, last):
        if end % step and step % end:
            below = max(end // step * step, 1)
            raise UsageError(
                f"--gpus {text}: a node of {one.gpu.name} has {step} GPUs, so {end} are no whole "
                f"nodes; give {below} or {(end // step + 1) * step}"
            )
    within = [count for count in range(1, step) if step % count == 0]
    nodes = range(step, last + 1, step)
    return [count for count in (*within, *nodes) if first <= count <= last]
