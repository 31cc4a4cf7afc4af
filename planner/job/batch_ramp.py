"""Batch ramps: global batches that grow during training, each used until a given number of
tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.job.errors import UsageError
from planner.job.quantities import parse_tokens, plural

# More batches than any published ramp: GPT-3's in Megatron's examples has 100.
MOST_BATCHES = 1024

HINT = (
    "write 3072..15360/469B (grows in steps of its start over this many tokens; "
    "3072..15360+1536/469B in steps of 1536), 4M:252M,8M:2.87T,16M (batch:tokens at which it "
    "ends) or '16 8 300000' with --gbs (Megatron's start, increment, samples); plain numbers are "
    "sequences, 4M and 4Mi are tokens"
)
_LINEAR = re.compile(r"^([^.+/:, ]+)\.\.([^.+/:, ]+)(?:\+([^.+/:, ]+))?/([^/:, ]+)$")
_MEGATRON = re.compile(r"^(\d{1,10}) (\d{1,10}) (\d{1,18})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Batch:
    """A global batch in sequences, which is exact, or in tokens, which plans meet within a
    tolerance."""

    number: int
    in_tokens: bool = False

    def sequences(self, seq: int) -> float:
        """Number of sequences of `seq` tokens."""
        return self.number / seq if self.in_tokens else float(self.number)

    def __str__(self) -> str:
        """The batch as people write it."""
        return f"{self.number:,} tokens" if self.in_tokens else plural(self.number, "sequence")


@dataclass(frozen=True, slots=True)
class BatchRamp:
    """Growing batches. `until`: for each batch but the last, the tokens since the start of training
    at which it ends, or sequences if `in_samples`."""

    batches: tuple[Batch, ...]
    until: tuple[int, ...]
    in_samples: bool = False

    def until_tokens(self, seq: int) -> tuple[int, ...]:
        """`until` in tokens."""
        return tuple(end * seq if self.in_samples else end for end in self.until)


def read_ramp(text: str, gbs: int | None = None) -> BatchRamp:
    """Parse the text of a ramp. `gbs`: the last batch, which Megatron's form leaves out. Raises
    UsageError."""
    words = " ".join(text.split())
    if match := _MEGATRON.match(words):
        start, increment, samples = (int(number) for number in match.groups())
        if gbs is None:
            raise UsageError(f"{text!r}: Megatron's form needs the last batch as well: --gbs 1024")
        return _checked(text, _linear(text, Batch(start), Batch(gbs), increment, samples, True))
    if match := _LINEAR.match(words):
        first, last, by, tokens = match.groups()
        low, high = _batch(text, first), _batch(text, last)
        step = _batch(text, by).number if by else low.number
        return _checked(text, _linear(text, low, high, step, _tokens(text, tokens), False))
    return _checked(text, _steps(text, words))


def _linear(
    text: str, start: Batch, end: Batch, increment: int, until: int, in_samples: bool
) -> BatchRamp:
    """Equal increments over equal shares of the tokens, as Megatron's batch-size calculator makes
    them."""
    grown = end.number - start.number
    if increment < 1 or grown < 1 or grown % increment:
        raise UsageError(
            f"--batch-ramp {text!r}: {end.number:,} - {start.number:,} = {grown:,} is not a "
            f"multiple of the increment {increment:,}; give one that divides it"
        )
    count = grown // increment
    if count >= MOST_BATCHES:
        raise UsageError(f"--batch-ramp {text!r}: {count:,} increments; give at most 1,023")
    numbers = [start.number + index * increment for index in range(count + 1)]
    return BatchRamp(
        tuple(Batch(number, start.in_tokens) for number in numbers),
        tuple(until * (index + 1) // count for index in range(count)),
        in_samples,
    )


def _steps(text: str, words: str) -> BatchRamp:
    """Parse `4M:252M,8M:2.87T,16M`."""
    *first, last = (item.strip() for item in words.split(","))
    pairs = [item.partition(":") for item in first]
    if not first or ":" in last or len(first) >= MOST_BATCHES or not all(p[1] for p in pairs):
        raise UsageError(f"--batch-ramp {text!r}: {HINT}")
    batches = [_batch(text, item) for item, _, _ in pairs]
    until = tuple(_tokens(text, item) for _, _, item in pairs)
    return BatchRamp((*batches, _batch(text, last)), until)


def _batch(text: str, item: str) -> Batch:
    return Batch(_tokens(text, item), in_tokens=not item.replace(",", "").strip().isdecimal())


def _tokens(text: str, item: str) -> int:
    try:
        return parse_tokens(item)
    except UsageError:
        raise UsageError(f"--batch-ramp {text!r}: {item!r} is not a number; {HINT}") from None


def _checked(text: str, ramp: BatchRamp) -> BatchRamp:
    batches, numbers = ramp.batches, [batch.number for batch in ramp.batches]
    if len({batch.in_tokens for batch in batches}) > 1:
        raise UsageError(f"--batch-ramp {text!r}: give all batches in sequences, or all in tokens")
    if numbers != sorted(set(numbers)) or list(ramp.until) != sorted(set(ramp.until)):
        raise UsageError(
            f"--batch-ramp {text!r}: batches, and the tokens at which they end, must grow"
        )
    return ramp
