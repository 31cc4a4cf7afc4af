"""What is shown of advice on memory: the largest term and what shrinks it, then every change.

`planner memory --advise`, `check` and `fit` show the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import gib, percent_sure, plural, signed_share
from planner.predict.memory.advice import Advice, Move
from planner.predict.memory.solve import SAFE_PROBABILITY
from planner.predict.plan_text import error_text, step_time_text
from planner.report.tables import Block, Notes, table

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
    sure, also = percent_sure(move.plan.fit_probability), _also(move)
    more = f"; {also}" if also else ""
    return (
        f"{move.flags} → {gib(move.plan.peak_bytes)} GiB (fits {sure}, step "
        f"{_cost_text(move, base_s)}{more})"
    )


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
            titles = "~option | total\nGiB | saves\nGiB | fits | step time | costs | ~also"
            rows = [_move_row(move, advice.base.step_time_s) for move in moves[:most]]
            yield table(titles, rows, title + more)
    yield Notes(_advice_notes(advice))


def _move_row(move: Move, base_s: float) -> tuple[str, ...]:
    plan = move.plan
    follows = f" ({move.follows})" if move.follows else ""
    return (
        move.flags + follows,
        gib(plan.peak_bytes),
        gib(move.saved_bytes),
        percent_sure(plan.fit_probability),
        step_time_text(plan),
        _cost_text(move, base_s),
        _also(move),
    )


def _also(move: Move) -> str:
    """What a change touches beside memory and time."""
    words = (move.learns, plural(move.more_gpus, "more GPU") if move.more_gpus else "")
    return ", ".join(word for word in words if word)


def _cost_text(move: Move, base_s: float) -> str:
    return signed_share(0.0 if abs(move.extra_s) < _LEAST_SHARE * base_s else move.extra_s / base_s)


def _advice_notes(advice: Advice) -> tuple[str, ...]:
    base = advice.base
    error = error_text(base.peak_bytes, base.peak_interval)
    hypothetical = "" if base.fits else " if it ran"
    lines = [
        f"As it stands: {gib(base.peak_bytes, 2)} GiB {error} (all totals alike), fits "
        f"with probability {percent_sure(base.fit_probability)}, {step_time_text(base)} a "
        f"step{hypothetical}.",
        f"Looked at {plural(advice.tried, 'change')}, each evaluated for memory and time at the "
        "same batch; those that break a rule or save nothing are left out. To fit means with "
        "probability ≥ 80 %. Easiest first: changes that leave the training as it is, then those "
        "after which another model is trained (other states, rounding or batch), then more GPUs.",
    ]
    if not (advice.sufficient or advice.pairs):
        lines.append(
            "Nothing that was looked at makes it fit: it takes more changes, or more GPUs."
        )
    return tuple(lines)
