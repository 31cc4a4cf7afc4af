"""`buy`: which GPUs, how many and at which price, for one or several training runs.

Every job is searched on every cluster that could do, and CP-SAT chooses among them
(`planner.compare.decision`). A cluster that could not keep a limit even if its GPUs computed at
their peak all the time is not searched: that bound needs no search and no plan can beat it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from hardware import gpu_names, parse_gpus
from planner._version import __version__
from planner.compare.batch import with_batch
from planner.compare.choice import Choice, Decision, Limits, Objective, Order
from planner.compare.comparison import Entry, Prepare, check_currencies, check_tokens, enter, run_of
from planner.compare.decision import choice_of, decide
from planner.compare.energy import facility_kw, power_of, purchase_of
from planner.compare.goodput import DAY_S
from planner.compare.offers import Offer, demand_distinct
from planner.compare.quotes import check_providers, choose
from planner.compare.results import COMPARISON_VERSION
from planner.compare.run import HOURS_PER_DAY
from planner.compare.scaling import counts_between
from planner.compare.searches import Outcome, Progress, Task, run_searches
from planner.compare.settings import CostBasis, Settings
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.request import Request
from planner.predict.ops import flop_per_token
from planner.predict.plan_text import configuration_text
from planner.search.launchable import SILENT, LaunchNotes

if TYPE_CHECKING:
    import pandas as pd

MOST_SEARCHES = 1_000
_RANGE = re.compile(r"^\s*(\d{1,7})\s*\.\.\s*(\d{1,7})\s*[x×*]\s*(\S.*?)\s*$")
_ONE = re.compile(r"^\s*(\d{1,7})\s*[x×*]\s*any\s*$", re.IGNORECASE)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class TrainingRun:
    """A job without its cluster, and the tokens to train on."""

    name: str
    request: Request
    tokens: int


class BuyRow(_Frozen):
    """A job on a cluster: the figures of its best plan, or why there are none.

    `plan`: its degrees, in words. `searched`: False where a bound ruled the cluster out first.
    """

    job: str
    cluster: str
    choice: Choice | None = None
    plan: str = ""
    reason: str = ""
    searched: bool = True


class Buying(_Frozen):
    """What to take, and the table it was chosen from."""

    version: int = COMPARISON_VERSION
    planner_version: str
    currency: str = "USD"
    basis: CostBasis = "on_demand"
    rows: tuple[BuyRow, ...]
    decision: Decision | None
    reason: str = ""

    def to_frame(self) -> pd.DataFrame:
        """One row a job and cluster; empty cells where there is no plan. Days, MWh, kW."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows])


def _flat(row: BuyRow) -> dict[str, Any]:
    flat: dict[str, Any] = row.model_dump(exclude={"choice"})
    one = row.choice
    if one is not None:
        flat |= {"num_gpus": one.num_gpus, "power_kw": one.power_kw}
        for name, figure in (("days", one.days), ("cost", one.cost), ("mwh", one.mwh)):
            flat |= {} if figure is None else {
                name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high,
            }  # fmt: skip
    return flat


def offers_of(texts: Sequence[str]) -> tuple[Offer, ...]:
    """The clusters that `--gpus` texts name: `64xH100`, `64..1024xH100` (doubled from the first
    number to the last), and `any` for every GPU of the catalogue. UsageError or HardwareError."""
    names = [name for text in texts for name in _sizes(text)]
    return tuple(Offer(gpus=name) for name in dict.fromkeys(names))


def _sizes(text: str) -> list[str]:
    match = _RANGE.match(text)
    one = _ONE.match(text)
    if match is None and one is None:
        if ".." in text or text.strip().lower() == "any":
            raise UsageError(f"--gpus {text}: write 64..1024xH100, or 64..1024xany for all GPUs")
        return [text]
    first, last, kind = match.groups() if match else (one[1], one[1], "any") if one else ("",) * 3
    if not 1 <= int(first) <= int(last):
        raise UsageError(f"--gpus {text}: give the smaller number first, as 64..1024xH100")
    kinds = gpu_names() if kind.lower() == "any" else (kind,)
    return [
        name for one_kind in kinds for name in _whole_nodes(one_kind, int(first), int(last), text)
    ]


def _whole_nodes(kind: str, first: int, last: int, text: str) -> list[str]:
    """Numbers of GPUs from the first to the last, in whole nodes where they are larger than one."""
    node = parse_gpus(f"1x{kind}").node_gpus
    counts = dict.fromkeys(
        count if count <= node else count // node * node for count in counts_between(first, last)
    )
    found = [count for count in counts if count >= first]
    if not found:
        raise UsageError(f"--gpus {text}: nodes of {kind} have {node} GPUs; give {node} or more")
    return [f"{count}x{kind}" for count in found]


def buy(
    runs: Sequence[TrainingRun],
    offers: Sequence[Offer],
    limits: Limits,
    settings: Settings | None = None,
    *,
    objective: Objective = "cost",
    order: Order = "side-by-side",
    prepare: Prepare | None = None,
    processes: int = 1,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    launch: LaunchNotes = SILENT,
) -> Buying:
    """The clusters to take for some training runs, each after a full search on each cluster.

    `time_limit_s`: of each search. UsageError for input that holds for no cluster.
    """
    chosen = settings or Settings()
    _check(runs, offers, chosen)
    pairs = [(run, entry) for run in runs for entry in _entries(run, offers, prepare, chosen)]
    rows: list[BuyRow | None] = [None] * len(pairs)

    def fill(kept: Limits) -> Buying:
        """Search what keeps these limits by its bound, then choose."""
        for number, (run, entry) in enumerate(pairs):
            if rows[number] is None or not rows[number].searched:  # type: ignore[union-attr]
                rows[number] = _ruled_out(run, entry, kept, objective, chosen)
        ready = [number for number, row in enumerate(rows) if row is None]
        outcomes = run_searches(
            [
                Task(pairs[number][1].request, seed, time_limit_s, only_plans=True, launch=launch)
                for number in ready
            ],
            [f"{pairs[number][0].name} on {pairs[number][1].offer.label}" for number in ready],
            jobs=processes,
            progress=progress,
        )
        for number, outcome in zip(ready, outcomes, strict=True):
            rows[number] = _row(*pairs[number], outcome, chosen)
        return _answer(runs, [row for row in rows if row is not None], limits, objective, order)

    answer = fill(limits)
    if (answer.decision is None or answer.decision.best is None) and limits.any:
        # What would have to give is a question about the clusters beyond the limits, too.
        answer = fill(Limits(certainty=limits.certainty))
    return answer.model_copy(update={"currency": chosen.currency, "basis": chosen.basis})


def _answer(
    runs: Sequence[TrainingRun],
    rows: Sequence[BuyRow],
    limits: Limits,
    objective: Objective,
    order: Order,
) -> Buying:
    """The choice among the rows that have a plan."""
    choices = [row.choice for row in rows if row.choice is not None]
    lost = [run.name for run in runs if not any(one.job == run.name for one in choices)]
    return Buying(
        planner_version=__version__,
        rows=tuple(rows),
        decision=None if lost else decide(choices, limits, objective, order),
        reason=f"no cluster offered can run {', '.join(lost)}" if lost else "",
    )


def _check(runs: Sequence[TrainingRun], offers: Sequence[Offer], settings: Settings) -> None:
    if not offers:
        raise UsageError("no cluster to choose from: give --gpus 64..1024xH100, or --clusters FILE")
    if len(runs) * len(offers) > MOST_SEARCHES:
        raise UsageError(
            f"{len(runs)} jobs on {len(offers)} clusters are {len(runs) * len(offers):,} searches; "
            f"at most {MOST_SEARCHES:,}: give fewer sizes or clusters"
        )
    for run in runs:
        check_tokens(run.tokens)
    demand_distinct(tuple(offers))
    check_providers(settings, offers)


def _entries(
    run: TrainingRun, offers: Sequence[Offer], prepare: Prepare | None, settings: Settings
) -> list[Entry]:
    """The job on each cluster. What is wrong with every one is wrong with the job."""
    base, _ = with_batch(run.request)
    entries = [enter(offer, base, None, prepare) for offer in offers]
    problems = [entry.problem for entry in entries if entry.problem is not None]
    if len(problems) == len(entries):
        raise UsageError(f"{run.name}: {problems[0]}") from problems[0]
    check_currencies(entries, settings)
    return entries


def _ruled_out(
    run: TrainingRun, entry: Entry, limits: Limits, objective: Objective, settings: Settings
) -> BuyRow | None:
    """A row without a search; None where a search is needed."""
    row = BuyRow(job=run.name, cluster=entry.offer.label, searched=False)
    if entry.job is None:
        return row.model_copy(update={"reason": str(entry.problem)})
    price = _gpu_hour(entry, settings)
    if price is None and (objective == "cost" or limits.budget is not None):
        return row.model_copy(update={"reason": f"no {settings.basis.replace('_', '-')} price"})
    reason = _over_a_limit(least_days(entry.job, run.tokens), entry, price, limits, settings)
    return row.model_copy(update={"reason": reason}) if reason else None


def _gpu_hour(entry: Entry, settings: Settings) -> float | None:
    """A lower bound on the price of a GPU hour; None where there is no price."""
    if settings.basis == "owned":
        return None if purchase_of(entry.offer, entry.cluster, settings) is None else 0.0
    choice = choose(entry.offer, entry.cluster, settings.basis, settings)
    return None if choice is None else choice.amount


def _over_a_limit(
    days: float, entry: Entry, price: float | None, limits: Limits, settings: Settings
) -> str:
    """Which limit no plan of at least so many days can keep; empty: a search has to tell."""
    gpus = entry.cluster.num_gpus
    power_kw = facility_kw(power_of(entry.cluster, settings).drawn_w, gpus)
    if limits.power_kw is not None and power_kw > limits.power_kw:
        return f"draws {power_kw:,.0f} kW"
    if limits.deadline_days is not None and days > limits.deadline_days:
        return f"takes {days:,.3g} days even at the GPUs' peak"
    cost = days * HOURS_PER_DAY * gpus * (price or 0.0)
    if limits.budget is not None and cost > limits.budget:
        return f"costs {cost:,.0f} {settings.currency} even at the GPUs' peak"
    return ""


def least_days(job: Job, tokens: int) -> float:
    """Days below which no plan gets: the model's products at the GPUs' peak, nothing recomputed."""
    peak = job.cluster.gpu.peak_flop_per_s[job.precision] * job.cluster.num_gpus
    return tokens * flop_per_token(job.model, job.seq, causal=True) / peak / DAY_S


def _row(run: TrainingRun, entry: Entry, outcome: Outcome, settings: Settings) -> BuyRow:
    row = BuyRow(job=run.name, cluster=entry.offer.label)
    found, reason = run_of(entry, outcome, run.tokens, settings)
    if found is None:
        return row.model_copy(update={"reason": reason})
    choice = choice_of(run.name, row.cluster, entry.cluster.num_gpus, found, settings.basis)
    return row.model_copy(update={"choice": choice, "plan": configuration_text(found.plan)})
