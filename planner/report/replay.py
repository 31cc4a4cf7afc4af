"""Report of `planner tune --replay`."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import DAY_S, plural, share
from planner.report.tables import Block, Notes, as_report, table
from planner.tune.replay import LEVELS, LOOP, ORDER, TRIALS, Means, ReplayReport, Table
from planner.tune.strategies import MOST, REST_S

_COUNTS = " | ".join(str(trials) for trials in TRIALS)


@as_report
def replay_report(found: ReplayReport, *, whole: bool = False) -> Iterator[Block]:
    """The regret of each strategy (measured step time of the plan that it recommends, divided by
    the shortest of the group, minus 1) and its cost, and single groups of runs: all if `whole`,
    otherwise only those in which some strategy does not begin with the best plan. Groups with runs
    that their sources contradict have tables of their own."""
    yield from _of_table(found.undoubted, "", whole=whole)
    if found.doubtful.groups:
        yield from _of_table(
            found.doubtful, ", of groups with runs that their sources contradict", whole=whole
        )


def _of_table(found: Table, which: str, *, whole: bool) -> Iterator[Block]:
    count, sources = len(found.groups), found.sources
    if not count:
        yield Notes(("No group without doubtful runs is large enough.",))
        return
    where = f"{plural(count, 'group')} of {plural(sources, 'source')}{which}"
    yield _means_table(found, f"Mean regret by number of trials, {where}")
    yield table(
        f"<strategy | {_COUNTS}",
        [(one.name, *(share(one.worst[trials], 1) for trials in TRIALS)) for one in found.means],
        "Regret of the worst group",
    )
    levels = " | ".join(share(level, 1) for level in LEVELS)
    yield table(
        f"<strategy | {levels}",
        [(one.name, *_hours(one)) for one in found.means],
        "GPU-hours of trials until the mean regret is and stays below",
    )
    rows = list(_group_rows(found, whole=whole))
    if rows:
        yield table(f"~group | runs | out of memory | <by | {_COUNTS}", rows, "Groups")
    yield Notes(tuple(_notes(found)))


def _means_table(found: Table, title: str) -> Block:
    rows = [(one.name, *(share(one.regret[trials], 2) for trials in TRIALS)) for one in found.means]
    return table(f"<strategy | {_COUNTS}", rows, title)


def _hours(one: Means) -> Iterator[str]:
    for level in LEVELS:
        hours = one.reached[level]
        yield "never" if hours is None else f"{hours:,.1f}"


def _group_rows(found: Table, *, whole: bool) -> Iterator[tuple[str, ...]]:
    for group in found.groups:
        both = (group.regret[LOOP], group.regret[ORDER])
        if not whole and all(regret[0] == 0.0 and max(regret.values()) == 0.0 for regret in both):
            continue
        for name, regret in zip(("tune", "prediction"), both, strict=True):
            cells = (share(regret[trials], 1) for trials in TRIALS)
            yield group.group, f"{group.runs:,}", f"{group.out_of_memory:,}", name, *cells


def _notes(found: Table) -> Iterator[str]:
    for trials, ratio in found.gain.items():
        if trials in (2, 3):
            yield (
                f"After {trials} trials the regret of planner tune is {ratio.value:.2f} of that of "
                f"the prediction's order (90 % of resampled groups: {ratio.low:.2f} to "
                f"{ratio.high:.2f})."
            )
    yield (
        f"For a job of {REST_S / DAY_S:.0f} days it ends by itself after "
        f"{found.ends_after:.1f} trials (at most {MOST}), with a mean regret of "
        f"{share(found.regret_then, 2)}."
    )
