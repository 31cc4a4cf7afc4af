"""What `planner memory` shows of `--solve` and `--advise`."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import gib, percent_sure, plural, seconds, share, signed_share
from planner.predict.memory.advice import Advice, Move
from planner.predict.memory.solve import SAFE_PROBABILITY, Border, Solution
from planner.predict.plan_text import error_text, step_time_text
from planner.report.tables import Block, Notes, table

_MOST_ROWS = 12
# A share of the step time that is shown as none.
_LEAST_SHARE = 5e-4
_NAMES = {"mbs": "micro-batch", "seq": "sequence", "layers": "number of layers"}


def solution_blocks(solution: Solution) -> tuple[Block, ...]:
    """The largest value that fits, for both probabilities."""
    unknown, even = solution.unknown, solution.even
    rows = (_border_row(border, solution) for border in (solution.safe, even))
    title = f"Largest {_NAMES[unknown]} that fits (--solve {unknown})"
    # A search looks at one point at least.
    tried = next(point for point in (even.largest, even.beyond) if point is not None)
    limit = gib(tried.footprint.limit_bytes, 2)
    beyond = solution.safe.beyond is not None
    checked = " The next value was evaluated too and does not fit." if beyond else ""
    steps = f" in steps of {solution.step:,}" if solution.step > 1 else ""
    note = f"Of {limit} GiB that may be used. Tried{steps}, keeping {solution.held}.{checked}"
    return table(f"<fits with | {unknown} | total GiB | ± | <", rows, title), Notes((note,))


def _border_row(border: Border, solution: Solution) -> tuple[str, ...]:
    sure = f"≥ {share(border.probability, 0)}"
    ends = "" if border.beyond is not None else f"the {_NAMES[solution.unknown]} ends here"
    if border.largest is None:
        return (sure, "none", "", "", ends)
    footprint = border.largest.footprint
    error = error_text(footprint.total_bytes, footprint.interval).removeprefix("±")
    return (sure, f"{border.largest.value:,}", gib(footprint.total_bytes, 2), error, ends)


def advice_blocks(advice: Advice) -> Iterator[Block]:
    """Tables of the moves; the last line says what was looked at."""
    makes = "Changes that make it fit"
    if advice.base.fit_probability >= SAFE_PROBABILITY:
        makes = "It fits as it stands; changes that free memory"
    closest = () if advice.closest is None else (advice.closest,)
    for title, moves in (
        (f"{makes}, cheapest first", advice.sufficient),
        ("Changes that help but do not suffice, most memory first", advice.partial),
        ("Pairs of changes that make it fit, cheapest first", advice.pairs),
        ("No pair makes it fit; the lightest", closest),
    ):
        more = f" ({len(moves) - _MOST_ROWS} more with --json)" if len(moves) > _MOST_ROWS else ""
        if moves:
            titles = "~option | total\nGiB | saves\nGiB | fits | step time | costs | "
            yield table(titles, map(_move_row, moves[:_MOST_ROWS]), title + more)
    yield Notes(_advice_notes(advice))


def _move_row(move: Move) -> tuple[str, ...]:
    plan = move.plan
    base_s = plan.step_time_s - move.extra_s
    follows = f" ({move.follows})" if move.follows else ""
    return (
        move.flags + follows,
        gib(plan.peak_bytes),
        gib(move.saved_bytes),
        percent_sure(plan.fit_probability),
        step_time_text(plan),
        f"{'-' if move.extra_s < 0 else '+'}{seconds(abs(move.extra_s))}",
        signed_share(0.0 if abs(move.extra_s) < _LEAST_SHARE * base_s else move.extra_s / base_s),
    )


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
        "probability ≥ 80 %. Other optimizers, and other types, train another model.",
    ]
    if not (advice.sufficient or advice.pairs):
        lines.append(
            "Nothing that was looked at makes it fit: it takes more changes, or more GPUs."
        )
    return tuple(lines)
