"""`32xH100+32xA100`: which GPUs there are, and which pipeline stages can live on which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import gcd

from hardware.load import parse_gpus
from hardware.schema import Cluster
from planner.job.errors import UsageError

# Orders of the types along the pipeline are all tried: 4! of them.
MOST_TYPES = 4


@dataclass(frozen=True)
class Pool:
    """Clusters of one GPU type each, joined by the slower one's network."""

    parts: tuple[Cluster, ...]
    # What the user wrote for each part.
    texts: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """All GPUs."""
        return sum(part.num_gpus for part in self.parts)

    def worlds(self) -> tuple[Cluster, ...]:
        """Each part as if the whole pool were of its kind: what its stages are costed on.

        Nothing that crosses from one part to another uses a part's scale-up links, so a domain
        ends with the part.
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
        """The pool with each of its clusters changed."""
        return replace(self, parts=tuple(map(change, self.parts)))

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """Part of each pipeline stage, for every size of a stage that fills each part and every
        order of unlike parts along the pipeline; orders of one size after each other, that in
        which the parts are written first."""
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
        """Rows of `places` that have so many stages; none if the parts cannot be cut so."""
        return tuple(row for row, place in enumerate(self.places) if len(place) == pp)


def is_pool(gpus: str | None) -> bool:
    """Whether a `--gpus` text names several types."""
    return gpus is not None and "+" in gpus


def parse_one_type(text: str) -> Cluster:
    """`parse_gpus` where GPUs of several types are not taken. UsageError."""
    if is_pool(text):
        raise UsageError(
            f"--gpus {text}: only planner search, fit, evaluate, memory, and explain of plans take "
            "GPUs of several types; give one type here"
        )
    return parse_gpus(text)


def parse_pool(text: str) -> Pool:
    """The pool that `32xH100+32xA100` names. UsageError with the nearest fix otherwise."""
    pieces = [piece.strip() for piece in text.split("+")]
    if not all(pieces):
        raise UsageError(f"--gpus {text!r}: write GPUs on both sides of +, as 32xH100+32xA100")
    parts = tuple(parse_gpus(piece) for piece in pieces)
    vendors = {part.gpu.vendor: part.gpu.name for part in parts}
    if len(vendors) > 1:
        raise UsageError(
            f"--gpus {text!r}: {' and '.join(vendors.values())} are of different vendors, whose "
            "collective libraries do not talk to each other; give GPUs of one vendor"
        )
    if len(parts) > MOST_TYPES:
        raise UsageError(f"--gpus {text!r}: at most {MOST_TYPES} parts, {len(parts)} given")
    return Pool(parts, tuple(pieces))
