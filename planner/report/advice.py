"""What is shown of advice on memory: the largest term and what shrinks it, then every change.

`planner memory --advise`, `check` and `fit` show the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import gib, plural, signed_share
from planner.predict.memory.advice import Advice, Move
from planner.predict.memory.solve import SAFE_PROBABILITY
from planner.predict.plan_text import error_text, step_time_text
from planner.report.said import described, notes, said, table_of
from planner.report.tables import Block, Notes

# Changes that a table lists.
_MOST_ROWS = 12
# A share of the step time that is shown as none.
_LEAST_SHARE = 5e-4


def leading_facts(advice: Advice) -> tuple[tuple[str, str], ...]:
    """Rows of facts that advice leads with: the largest term at the peak and what shrinks it;
    the pair that comes closest on the same GPUs, where none suffices there; and the easiest change
    that makes it fit, if that is another one."""
    largest, base_s = advice.largest, advice.base.step_time_s
    text = f"{gib(largest.size_bytes)} of {gib(largest.total_bytes)} GiB are {largest.label}"
    if largest.move is None:
        text += "; no single change that was tried shrinks that by much"
    else:
        text += f": {_outcome(largest.move, base_s)}"
    facts = [("largest", text)]
    if advice.base.fit_probability < SAFE_PROBABILITY:
        easiest = next(iter((*advice.sufficient, *advice.pairs)), None)
        if advice.closest is not None:
            facts.append(("closest", _outcome(advice.closest, base_s)))
        if easiest not in (None, largest.move):
            facts.append(("easiest fix", _outcome(easiest, base_s)))
    return tuple(facts)


def _outcome(move: Move, base_s: float) -> str:
    """`--with liger-kernels → 99.0 GiB (fits >99 %, step +0.3 %)`."""
    text = described("advice.outcome")
    return said(text, move, costs=_cost_text(move, base_s), also=_also(move)) or ""


def advice_blocks(advice: Advice, most: int = _MOST_ROWS) -> Iterator[Block]:
    """Tables of at most `most` moves; the last line says what was looked at."""
    makes = "Changes that make it fit"
    if advice.base.fit_probability >= SAFE_PROBABILITY:
        makes = "It fits as it stands; changes that free memory"
    order = "easiest first"
    closest = () if advice.closest is None else (advice.closest,)
    for title, moves in (
        (f"{makes}, {order}", advice.sufficient),
        ("Changes that help but do not suffice, most memory first", advice.partial),
        (f"Pairs of changes that make it fit, {order}", advice.pairs),
        ("No pair makes it fit on these GPUs; the lightest", closest),
    ):
        more = f" ({len(moves) - most} more with --json)" if len(moves) > most else ""
        if moves:
            yield table_of(
                "advice.moves", moves[:most], titled=title + more, also=_also,
                step_words=lambda move: step_time_text(move.plan),
                costs=lambda move: _cost_text(move, advice.base.step_time_s),
            )  # fmt: skip
    yield Notes(_advice_notes(advice))


def _also(move: Move) -> str:
    """What a change touches beside memory and time."""
    words = (move.learns, plural(move.more_gpus, "more GPU") if move.more_gpus else "")
    return ", ".join(word for word in words if word)


def _cost_text(move: Move, base_s: float) -> str:
    return signed_share(0.0 if abs(move.extra_s) < _LEAST_SHARE * base_s else move.extra_s / base_s)


def _advice_notes(advice: Advice) -> tuple[str, ...]:
    base = advice.base
    return tuple(
        notes(
            "advice.notes", base, error=error_text(base.peak_bytes, base.peak_interval),
            step_words=step_time_text, tried=advice.tried,
            nothing=not (advice.sufficient or advice.pairs),
        )
    )  # fmt: skip
