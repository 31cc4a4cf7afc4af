"""`--gpus` of several clusters: `64..1024xH100` is every doubling between, `any` every GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hardware import gpu_names, parse_gpus
from planner.compare.offers import Offer
from planner.job.errors import UsageError
from planner.job.pool import parse_one_type

# `any` without numbers: every doubling that people rent or buy.
_ANY = "8..4096xany"
_RANGE = re.compile(r"^\s*(\d{1,7})\s*\.\.\s*(\d{1,7})\s*[x×*]\s*([^\s+][^+]*?)\s*$")
_ONE = re.compile(r"^\s*(\d{1,7})()\s*[x×*]\s*(any)\s*$", re.IGNORECASE)
_NODES = re.compile(r"^\d+\s*[x×*]\s*\S")


def counts_between(first: int, last: int) -> tuple[int, ...]:
    """Doublings of the first number up to the last, and the last. UsageError if they are not in
    order."""
    if first < 1 or last < first:
        raise UsageError(f"--from {first} --to {last}: give numbers of GPUs in growing order")
    counts = [first]
    while counts[-1] * 2 < last:
        counts.append(counts[-1] * 2)
    return tuple(dict.fromkeys((*counts, last)))


def several_clusters(texts: Iterable[str]) -> tuple[str, ...]:
    """Every cluster that the texts name: `64xH100`, `64..1024xH100` (doubled from the first number
    to the last, in whole nodes; `2..8x8xH100` counts nodes), `64..1024xany` for every GPU of the
    catalogue, `any` at every size. UsageError or HardwareError."""
    found: list[str] = []
    for text in texts:
        for item in _sizes(text):
            parse_one_type(item)
            if item in found:
                raise UsageError(f"--gpus: {item} is given twice; give each cluster once")
            found.append(item)
    return tuple(found)


def each_size(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Offers of a file with every size that their `gpus` name, as `several_clusters` reads them."""
    return tuple(
        offer
        if offer.gpus is None or ".." not in offer.gpus
        else offer.model_copy(
            update={"gpus": size, "name": offer.name and f"{offer.name} {size}", "cluster": None}
        )
        for offer in offers
        for size in (_sizes(offer.gpus) if offer.gpus else ("",))
    )


def _sizes(text: str) -> list[str]:
    asked = _ANY if text.strip().lower() == "any" else text
    match = _RANGE.match(asked) or _ONE.match(asked)
    if match is None:
        if ".." in text:
            raise UsageError(
                f"--gpus {text}: write a range of one type as 64..1024xH100, or 64..1024xany for "
                "all GPUs"
            )
        return [text]
    first, last, kind = int(match[1]), int(match[2] or match[1]), match[3]
    if not 1 <= first <= last:
        raise UsageError(f"--gpus {text}: give the smaller number first, as 64..1024xH100")
    kinds = gpu_names() if kind.lower() == "any" else (kind,)
    return [name for one in kinds for name in _whole_nodes(one, first, last, text)]


def _whole_nodes(kind: str, first: int, last: int, text: str) -> list[str]:
    """Numbers of GPUs from the first to the last, in whole nodes where they are larger than one."""
    node = 1 if _NODES.match(kind) else parse_gpus(f"1x{kind}").node_gpus
    counts = dict.fromkeys(
        count if count <= node else count // node * node for count in counts_between(first, last)
    )
    found = [count for count in counts if count >= first]
    if not found:
        raise UsageError(f"--gpus {text}: nodes of {kind} have {node} GPUs; give {node} or more")
    return [f"{count}x{kind}" for count in found]
