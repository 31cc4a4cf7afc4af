"""A training run given in samples and epochs: its tokens, and its hours and dollars."""

from __future__ import annotations

from collections.abc import Iterable

from hardware.schema import Cluster
from planner.compare.interval import Range
from planner.compare.offers import Offer, choose
from planner.compare.run import HOURS_PER_DAY, W_PER_KW, ideal_days, power_of
from planner.compare.settings import Settings
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.objective import read_objective
from planner.job.quantities import MOST_TOKENS, plural, short_count
from planner.job.request import Request
from planner.job.sampling import samples_of
from planner.job.tuning import read_tuning
from planner.predict.plan import Plan

# Default number of samples of a step: Alpaca and Vicuna were tuned with 128.
USUAL_SAMPLES = 128


def mean_tokens(request: Request) -> float:
    """Mean tokens of a training sample, summed over its rows (a preference pair has two) and cut at
    the length limit. UsageError."""
    model = request.find_model().spec
    samples, seq = samples_of(request, request.find_framework(), model)
    adapters = read_tuning(request.train, request.freeze).has_adapters
    rows = read_objective(request.objective, adapters=adapters).rules.rows
    return rows * (seq if samples.lengths is None else samples.lengths.mean)


def tokens_of(request: Request, samples: int, epochs: float) -> int:
    """Tokens of training on a number of samples, each seen `epochs` times. UsageError."""
    tokens = round(samples * epochs * mean_tokens(request))
    if not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(
            f"--samples {samples:,} --epochs {epochs:g}: {tokens:,} tokens; a training has 1 to "
            "10^18"
        )
    return tokens


def with_usual_batch(request: Request) -> tuple[Request, tuple[str, ...]]:
    """The request with a batch, and a sentence if it had to be assumed."""
    if (request.gbs, request.gbs_tokens, request.batch_ramp) != (None, None, None):
        return request, ()
    tokens = round(USUAL_SAMPLES * mean_tokens(request))
    note = (
        f"Batch: about {USUAL_SAMPLES} samples ({tokens:,} tokens), as none was given "
        "(--gbs, --gbs-tokens)."
    )
    return request.model_copy(update={"gbs_tokens": tokens}), (note,)


def training_text(job: Job, plan: Plan, request: Request, samples: int, epochs: float) -> str:
    """Hours and cost of a training on the plan's GPUs, without interruptions: `3 epochs of 52,000
    samples (67.9 M tokens): 0.64 h (0.59 to 0.85); $13.4 (12.4 to 17.9) at $2.62 a GPU hour on
    demand`."""
    tokens = tokens_of(request, samples, epochs)
    hours = ideal_days(plan, tokens).times(HOURS_PER_DAY)
    title = training_title(request, samples, epochs).removesuffix(")")
    return (
        f"{title}, {tokens / plan.gbs_tokens:,.0f} steps): {_range_text(hours)} h; "
        f"{_cost_text(job.cluster, request, hours)}"
    )


def trainings(
    request: Request, plans: Iterable[tuple[str, Plan]], samples: int, epochs: float
) -> tuple[tuple[str, str], ...]:
    """Hours and cost of the training after each change to a request, as `20.4 h (18 to 25); $26
    …`."""
    tokens, found = tokens_of(request, samples, epochs), []
    for change, plan in plans:
        option, _, gpus = change.partition(" ")
        there = {"gpus": gpus, "cluster": None} if option == "--gpus" and " " not in gpus else {}
        changed = request.model_copy(update=there)
        hours = ideal_days(plan, tokens).times(HOURS_PER_DAY)
        cost = _cost_text(changed.find_cluster(), changed, hours)
        found.append((change, f"{_range_text(hours)} h; {cost}"))
    return tuple(found)


def training_title(request: Request, samples: int, epochs: float) -> str:
    """The title, for example `3 epochs of 52,000 samples (67.9 M tokens)`."""
    times = "1 epoch" if epochs == 1 else f"{epochs:g} epochs"
    tokens = tokens_of(request, samples, epochs)
    return f"{times} of {plural(samples, 'sample')} ({short_count(tokens)} tokens)"


def _cost_text(cluster: Cluster, request: Request, hours: Range) -> str:
    """The rent at the on-demand price, or the cost of electricity for GPUs that cannot be
    rented."""
    settings = Settings()
    offer = Offer(gpus=request.gpus, cluster=request.cluster)
    chosen = choose(offer, cluster, "on_demand", settings)
    if chosen is not None:
        usd = hours.times(cluster.num_gpus * chosen.per_gpu_hour)
        return f"${_range_text(usd)} at ${chosen.per_gpu_hour:.2f} a GPU hour on demand"
    drawn_kw = power_of(cluster, settings).drawn_w * cluster.num_gpus / W_PER_KW
    price = settings.value("electricity")
    usd = hours.times(drawn_kw * price)
    return (
        f"${_range_text(usd)} of electricity, {drawn_kw:.2g} kW at ${price:.2f} a kWh; no price on "
        f"demand is known for {cluster.gpu.name}"
    )


def _range_text(amount: Range) -> str:
    """A range as text, for example `0.64 (0.59 to 0.85)`."""
    return f"{_number(amount.value)} ({_number(amount.low)} to {_number(amount.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"
