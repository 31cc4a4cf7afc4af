"""The GPUs that `--gpus` names: one type, several types that share a job, or several sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import gcd

from hardware.load import gpu_names, parse_gpus
from hardware.schema import Cluster
from planner.job.errors import UsageError

# All orders of the types along the pipeline are tried: 4! of them.
MOST_TYPES = 4


@dataclass(frozen=True)
class Pool:
    """Clusters of one GPU type each, joined by the slower cluster's network."""

    parts: tuple[Cluster, ...]
    # The user's text for each cluster.
    texts: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs of all clusters."""
        return sum(part.num_gpus for part in self.parts)

    def worlds(self) -> tuple[Cluster, ...]:
        """For each cluster, the whole pool as if it were of that kind; stages on it are costed
        there.

        No traffic between clusters uses scale-up links, so a scale-up domain ends with its cluster.
        """
        return tuple(
            part.model_copy(
                update={
                    "num_gpus": self.num_gpus,
                    "scale_up_domain_gpus": min(part.scale_up_domain_gpus, part.num_gpus),
                }
            )
            for part in self.parts
        )

    def changed(self, change: Callable[[Cluster], Cluster]) -> Pool:
        """The pool with `change` applied to each of its clusters."""
        return replace(self, parts=tuple(map(change, self.parts)))

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """The cluster of each pipeline stage, for every stage size that fills each cluster and
        every order of unlike clusters along the pipeline. Orders of one stage size are adjacent;
        the order in which the clusters are written comes first."""
        each = gcd(*(part.num_gpus for part in self.parts))
        sizes = [size for size in range(1, each + 1) if each % size == 0]
        orders: dict[tuple[int, ...], tuple[int, ...]] = {}
        for order in permutations(range(len(self.parts))):
            likeness = tuple(self.parts.index(self.parts[part]) for part in order)
            orders.setdefault(likeness, order)
        return tuple(
            tuple(part for part in order for _ in range(self.parts[part].num_gpus // size))
            for size in sizes
            for order in orders.values()
        )

    def places_of(self, pp: int) -> tuple[int, ...]:
        """Rows of `places` with `pp` stages; empty if the clusters cannot be split that way."""
        return tuple(row for row, place in enumerate(self.places) if len(place) == pp)


@dataclass(frozen=True)
class OneType:
    """`64xH100`: one cluster."""

    text: str


@dataclass(frozen=True)
class SeveralTypes:
    """`32xH100+32xA100`: GPUs of several types that share a job."""

    text: str

    def pool(self) -> Pool:
        """One cluster for each type. Raises UsageError."""
        return parse_pool(self.text)


@dataclass(frozen=True)
class SeveralSizes:
    """`64..1024xH100`: clusters of several sizes; the type `any` means every GPU of the
    catalogue."""

    text: str
    first: int
    last: int
    kind: str

    def texts(self) -> list[str]:
        """The text of each cluster: sizes doubling from first to last, in whole nodes. Raises
        UsageError."""
        if not 1 <= self.first <= self.last:
            raise UsageError(
                f"--gpus {self.text}: give the smaller number first, for example 64..1024xH100"
            )
        kinds = gpu_names() if self.kind.lower() == "any" else (self.kind,)
        return [text for kind in kinds for text in self._whole_nodes(kind)]

    def _whole_nodes(self, kind: str) -> list[str]:
        """Sizes from first to last, rounded to whole nodes above one node."""
        node = 1 if _NODES.match(kind) else parse_gpus(f"1x{kind}").node_gpus
        counts = dict.fromkeys(
            count if count <= node else count // node * node
            for count in counts_between(self.first, self.last)
        )
        found = [count for count in counts if count >= self.first]
        if not found:
            raise UsageError(
                f"--gpus {self.text}: nodes of {kind} have {node} GPUs; give {node} or more"
            )
        return [f"{count}x{kind}" for count in found]


GpuWords = OneType | SeveralTypes | SeveralSizes

# `any` without numbers: every doubling in the sizes that people rent or buy.
_ANY = "8..4096xany"
_RANGE = re.compile(r"^\s*([0-9]{1,7})\s*\.\.\s*([0-9]{1,7})\s*[x×*]\s*([^\s+][^+]*?)\s*$")
_ONE = re.compile(r"^\s*([0-9]{1,7})()\s*[x×*]\s*(any)\s*$", re.IGNORECASE)
_NODES = re.compile(r"^\d+\s*[x×*]\s*\S")


def read_gpus(text: str) -> GpuWords:
    """Parse `--gpus` without looking up the names. UsageError for a broken range."""
    asked = _ANY if text.strip().lower() == "any" else text
    match = _RANGE.match(asked) or _ONE.match(asked)
    if match is not None:
        return SeveralSizes(text, int(match[1]), int(match[2] or match[1]), match[3])
    if ".." in text:
        raise UsageError(
            f"--gpus {text}: write a range of one type, for example 64..1024xH100, or "
            "64..1024xany for all GPUs"
        )
    return SeveralTypes(text) if "+" in text else OneType(text)


def counts_between(first: int, last: int) -> tuple[int, ...]:
    """`first` doubled repeatedly up to `last`, and `last`. UsageError if they are out of order."""
    if first < 1 or last < first:
        raise UsageError(f"--from {first} --to {last}: give the smaller number of GPUs first")
    counts = [first]
    while counts[-1] * 2 < last:
        counts.append(counts[-1] * 2)
    return tuple(dict.fromkeys((*counts, last)))


def parse_one_type(text: str) -> Cluster:
    """`parse_gpus` for commands that do not accept GPUs of several types. Raises UsageError."""
    if isinstance(read_gpus(text), SeveralTypes):
        raise UsageError(
            f"--gpus {text}: only planner search, fit, evaluate, memory and explain accept GPUs "
            "of several types; give one type here"
        )
    return parse_gpus(text)


def parse_pool(text: str) -> Pool:
    """The pool that `32xH100+32xA100` names. UsageError with the nearest fix."""
    pieces = [piece.strip() for piece in text.split("+")]
    if not all(pieces):
        raise UsageError(
            f"--gpus {text!r}: write GPUs on both sides of +, for example 32xH100+32xA100"
        )
    parts = tuple(parse_gpus(piece) for piece in pieces)
    vendors = {part.gpu.vendor: part.gpu.name for part in parts}
    if len(vendors) > 1:
        raise UsageError(
            f"--gpus {text!r}: {' and '.join(vendors.values())} are of different vendors, whose "
            "collective libraries cannot communicate with each other; give GPUs of one vendor"
        )
    if len(parts) > MOST_TYPES:
        raise UsageError(f"--gpus {text!r}: at most {MOST_TYPES} parts, {len(parts)} given")
    return Pool(parts, tuple(pieces))
