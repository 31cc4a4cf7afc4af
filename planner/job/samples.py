"""Lengths of samples, and how samples become the rows of a micro-batch.

In pretraining, rows are cut from one long text and all have `--seq` tokens. Fine-tuning samples
have many lengths and are padded or packed (`--packing`). Three sums then differ: real tokens,
computed tokens (with padding), and squared lengths, which decide the cost of attention.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate
from math import fsum
from typing import Any, Literal, get_args

from hardware.files import shipped_toml
from planner.job.bounds import LONGEST_SEQ
from planner.job.errors import UsageError

Packing = Literal["limit", "longest", "padding-free", "pack", "pack-varlen"]
Balance = Literal["none", "tokens", "flop", "hybrid-cp", "dynamic-cp"]
# How samples are packed: texts are concatenated and cut at the end of a pack; a sample that does
# not fit opens the next pack; each sample goes into the fullest pack with room; no packs.
Packer = Literal["cut", "next-fit", "best-fit", "none"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)
BALANCES: tuple[Balance, ...] = get_args(Balance)
# Description of each rule.
PACKING_WORDS: Mapping[Packing, str] = {
    "limit": "each sample padded to the limit",
    "longest": "padded to the longest of each micro-batch",
    "padding-free": "joined without padding, with attention within each sample",
    "pack": "packed, with attention over the whole pack",
    "pack-varlen": "packed, with attention within each sample",
}
# Packing rules that are compatible with each balance rule.
BALANCED: Mapping[Balance, tuple[Packing, ...]] = {
    "none": PACKINGS,
    "tokens": ("longest", "padding-free"),
    "flop": ("pack-varlen",),
    "hybrid-cp": ("pack-varlen",),
    "dynamic-cp": ("pack-varlen",),
}
# Balance rules under which the context-parallel groups follow each sample (`rank_groups`).
BY_SAMPLE: tuple[Balance, ...] = ("hybrid-cp", "dynamic-cp")
# Description of each balance rule.
BALANCE_WORDS: Mapping[Balance, str] = {
    "none": "",
    "tokens": "balanced by tokens",
    "flop": "balanced by FLOP",
    "hybrid-cp": "each on the ranks that it needs, one after the other",
    "dynamic-cp": "each on the ranks that it needs, filled by short ones (Megatron's dev branch)",
}
# Most classes of a distribution; more lengths are merged with their neighbours at their mean.
MOST_LENGTHS = 1024


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths: ascending `tokens` of a sample, and the share of samples with each
    length; shares add up to 1.

    `origin`: its source, for messages. `unstated`: a narrower and a wider distribution that also
    match what was given, if the spread is open. `open_ended`: a form without a longest sample,
    which is cut wherever a limit is. `patches`: mean image patches of a sample of each length;
    empty for text. `most_patches`: the most of one sample.
    """

    tokens: tuple[float, ...]
    shares: tuple[float, ...]
    origin: str
    unstated: tuple[Lengths, ...] = ()
    open_ended: bool = False
    patches: tuple[float, ...] = ()
    most_patches: float = 0.0

    @cached_property
    def mean(self) -> float:
        """Mean tokens of a sample."""
        return fsum(length * share for length, share in zip(self.tokens, self.shares, strict=True))

    @cached_property
    def squared(self) -> float:
        """Mean of the squared lengths."""
        return fsum(
            length**2 * share for length, share in zip(self.tokens, self.shares, strict=True)
        )

    @cached_property
    def mean_patches(self) -> float:
        """Mean image patches of a sample."""
        return fsum(
            number * share for number, share in zip(self.patches, self.shares, strict=False)
        )

    def at_least(self, tokens: int) -> Lengths:
        """The same samples with a minimum length."""
        if self.shortest >= tokens:
            return self
        raised = (
            (max(length, float(tokens)), share)
            for length, share in zip(self.tokens, self.shares, strict=True)
        )
        others = tuple(other.at_least(tokens) for other in self.unstated)
        made = lengths_of(raised, self.origin, others)
        return replace(made, open_ended=self.open_ended)

    def below(self, tokens: int) -> float:
        """Share of samples shorter than `tokens`."""
        return fsum(
            share for length, share in zip(self.tokens, self.shares, strict=True) if length < tokens
        )

    def with_patches(self, patches: float) -> Lengths:
        """The same samples, each with images of this many patches."""
        others = tuple(other.with_patches(patches) for other in self.unstated)
        each = (patches,) * len(self.tokens)
        return replace(self, patches=each, most_patches=patches, unstated=others)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return round(self.tokens[-1])

    @property
    def shortest(self) -> int:
        """Tokens of the shortest sample."""
        return round(self.tokens[0])

    @property
    def attended(self) -> float:
        """Mean length of the sample that a token belongs to: E(l²)/E(l)."""
        return self.squared / self.mean

    def quantile(self, share: float) -> float:
        """The length that this share of samples does not exceed."""
        for length, reached in zip(self.tokens, accumulate(self.shares), strict=True):
            if reached >= share - 1e-12:
                return length
        return self.tokens[-1]

    def above(self, limit: float) -> float:
        """Share of samples longer than a limit."""
        return fsum(
            share for length, share in zip(self.tokens, self.shares, strict=True) if length > limit
        )

    def cut(self, limit: int) -> Lengths:
        """The samples truncated at a limit."""
        if self.longest <= limit:
            return self
        patches = self.patches or (0.0,) * len(self.tokens)
        counted = zip(self.tokens, self.shares, patches, strict=True)
        cut = [(min(length, float(limit)), share, seen) for length, share, seen in counted]
        others = tuple(other.cut(limit) for other in self.unstated)
        if not self.patches:
            return lengths_of(((length, share) for length, share, _ in cut), self.origin, others)
        return pictured_lengths_of(cut, self.origin, self.most_patches)


def lengths_of(
    counted: Iterable[tuple[float, float]], origin: str, unstated: tuple[Lengths, ...] = ()
) -> Lengths:
    """The distribution of (length, number of samples) pairs, in any order."""
    weights: dict[float, float] = {}
    for length, number in counted:
        weights[length] = weights.get(length, 0.0) + number
    joined = _joined(sorted(pair for pair in weights.items() if pair[1] > 0.0))
    total = fsum(number for _, number in joined)
    return Lengths(
        tuple(float(length) for length, _ in joined),
        tuple(number / total for _, number in joined),
        origin,
        unstated,
    )


def pictured_lengths_of(
    counted: Iterable[tuple[float, float, float]], origin: str, most: float
) -> Lengths:
    """The distribution of (length, number of samples, image patches) triples, in any order. `most`:
    most patches of one sample."""
    counted = list(counted)
    made = lengths_of(((length, number) for length, number, _ in counted), origin)
    sums = [[0.0, 0.0] for _ in made.tokens]
    for length, number, patches in counted:
        # Merged classes are at their mean, so take the nearest one.
        at = min(bisect_left(made.tokens, length), len(sums) - 1)
        if at and length - made.tokens[at - 1] < made.tokens[at] - length:
            at -= 1
        sums[at][0] += number
        sums[at][1] += number * patches
    each = tuple(patches / number if number else 0.0 for number, patches in sums)
    return replace(made, patches=each, most_patches=most)


def demand_length(number: int, where: str) -> int:
    """Check that a sample may have this length. Raises UsageError."""
    if not 1 <= number <= LONGEST_SEQ:
        raise UsageError(
            f"{where}: a sample of {number:,} tokens; lengths are 1 to {LONGEST_SEQ:,} tokens"
        )
    return number


def _joined(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_LENGTHS` classes: neighbours are merged at their mean, and the longest is
    kept."""
    if len(pairs) <= MOST_LENGTHS:
        return pairs
    *pairs, longest = pairs
    each = -(-len(pairs) // (MOST_LENGTHS - 1))
    groups = [pairs[at : at + each] for at in range(0, len(pairs), each)]
    means = []
    for group in groups:
        number = fsum(share for _, share in group)
        means.append((fsum(length * share for length, share in group) / number, number))
    return [*means, longest]


@dataclass(frozen=True)
class Samples:
    """How a job's samples become rows. `lengths` is None if rows are cut from one text
    (pretraining).

    `lengths` are already cut at the limit; `cut`: share of samples that this shortened. `raised`:
    share of samples that were shorter than their images and take the length of those.
    """

    lengths: Lengths | None = None
    packing: Packing = "pack"
    balance: Balance = "none"
    packer: Packer = "cut"
    cut: float = 0.0
    raised: float = 0.0

    @property
    def differ(self) -> bool:
        """Whether rows may take different times, for attention or for everything."""
        return self.lengths is not None and self.packing not in ("limit", "pack")

    @property
    def by_sample(self) -> bool:
        """Whether the number of context-parallel ranks follows the length of each sample."""
        return self.balance in BY_SAMPLE

    @property
    def is_packed(self) -> bool:
        """Whether a row holds several samples."""
        return self.packing in ("pack", "pack-varlen")

    def spread_as(self, lengths: Lengths) -> Samples:
        """These samples with other lengths, without alternatives."""
        return replace(self, lengths=replace(lengths, unstated=()))


@dataclass(frozen=True)
class Offered:
    """How a framework treats samples.

    Its packing rules, the default first, each with how it fills packs; whether a micro-batch holds
    just one pack; conditions of balance rules on the degrees; `limit`: tokens at which samples are
    cut by default; `answers`: packing rules of its trainers for preferences and rewards.
    """

    packings: Mapping[Packing, Packer]
    balances: tuple[Balance, ...]
    source: str
    single_packs: bool = False
    demands: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    answers: tuple[Packing, ...] = ()

    @property
    def usual(self) -> Packing:
        """The default packing rule."""
        return next(iter(self.packings))


@cache
def _offered() -> Mapping[str, Any]:
    return shipped_toml("planner.job", "samples.toml")


def offered_by(framework: str, family: str) -> Offered:
    """How a framework, or the family of its versions, treats samples (`samples.toml`)."""
    tables = _offered()
    row = tables.get(framework) or tables.get(family) or tables["other"]
    return Offered(
        packings=row["packings"],
        balances=("none", *row.get("balances", ())),
        source=row["source"],
        single_packs=row.get("single_packs", False),
        demands=row.get("demands", {}),
        limit=row.get("limit"),
        answers=tuple(row.get("answers", row["packings"])),
    )


def frameworks_that(packing: str | None = None, balance: str | None = None) -> list[str]:
    """Frameworks that support a packing rule, or a balance rule."""
    return [
        name
        for name, row in _offered().items()
        if name != "other"
        and (packing is None or packing in row["packings"])
        and (balance is None or balance in row.get("balances", ()))
    ]
