"""`budget`: the largest model, the most tokens or the lowest loss that a compute budget allows.

The budget is a number of FLOP, or days on GPUs. FLOP are 6·N·D, as the scaling law counts them. On
GPUs they follow from the step time of the best plan of a search, including interruptions.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cache
from math import exp, gcd, inf, log, sqrt
from typing import TYPE_CHECKING, Literal

from hardware.frozen import Frozen
from planner._version import __version__
from planner.compare.comparison import EnteredOffer, enter, run_of, with_batch
from planner.compare.interval import Range, columns
from planner.compare.laws import (
    FLOP_PER_PARAMETER_AND_TOKEN,
    CriticalBatch,
    critical_batch,
    load_laws,
)
from planner.compare.offers import Offer, check_providers
from planner.compare.results import Run, flat_run
from planner.compare.searches import ONE_BY_ONE, How, Outcome, search_one
from planner.compare.settings import CostBasis, Settings
from planner.job.errors import NothingFitsError, UsageError
from planner.job.models.catalog import load_model
from planner.job.quantities import DAY_S
from planner.job.request import Request
from planner.job.request_fields import Overrides
from planner.job.specs import ModelSpec
from planner.job.written import toml_text
from planner.predict.ops.table import parameter_count

if TYPE_CHECKING:
    import pandas as pd

# Models of one family, by size (arXiv 2407.21783, table 3; Llama 3.2 for the small ones).
FAMILY = ("llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b")
_HEAD = 128
# Widths of wide models are multiples of this (eight heads), so that tensor parallelism divides
# them.
_STEP, _WIDE = 1024, 4096
# Range of sizes for which the family's proportions still make sense.
LEAST, MOST = 1e8, 2e13


def shaped(parameters: float) -> ModelSpec:
    """A Llama-like model with about this number of parameters. Its width and FFN are interpolated
    between the two nearest sizes of the family (in logarithms; outside the family's range,
    extrapolated from the nearest two), and its number of layers makes up the rest."""
    if not LEAST <= parameters <= MOST:
        raise UsageError(
            f"{parameters:.3g} parameters: shapes are made for {LEAST:.0e} to {MOST:.0e}; give "
            "--model NAME for another"
        )
    base = load_model("llama-3-8b").spec
    hidden = _width(_between(parameters, [(size, spec.hidden) for size, spec in _family()]))
    ratio = _between(parameters, [(size, spec.ffn / spec.hidden) for size, spec in _family()])
    heads = hidden // _HEAD
    update = {
        "hidden": hidden, "heads": heads, "head_dim": _HEAD, "kv_heads": gcd(8, heads),
        "ffn": _width(hidden * ratio),
    }  # fmt: skip
    one, two = (_size(base.model_copy(update=update | {"layers": n})) for n in (1, 2))
    layers = max(2, round(1 + (parameters - one) / (two - one)))
    # An even number, so that at least two equal stages are possible; a layer more or less is then a
    # small part of the model.
    layers = layers if layers < 24 else round(layers / 2) * 2
    spec = base.model_copy(update=update | {"layers": layers})
    size = _size(spec)
    name = f"{size / 1e12:.3g}t" if size >= 1e12 else f"{size / 1e9:.3g}b"
    return spec.model_copy(update={"name": f"dense-{name}"})


@cache
def _family() -> list[tuple[float, ModelSpec]]:
    specs = [load_model(name).spec for name in FAMILY]
    return sorted(((float(_size(spec)), spec) for spec in specs), key=lambda pair: pair[0])


def _size(spec: ModelSpec) -> int:
    return parameter_count(spec).total


def _between(parameters: float, known: list[tuple[float, float]]) -> float:
    """A figure for a model with this number of parameters, by a power law through the two nearest
    sizes. `known`: pairs of size and figure, in rising order."""
    sizes = [size for size, _ in known]
    at = min(max(1, bisect_right(sizes, parameters)), len(known) - 1)
    (low, first), (high, second) = known[at - 1], known[at]
    share = log(parameters / low) / log(high / low)
    return first * exp(share * log(second / first))


def _width(value: float) -> int:
    step = _STEP if value >= _WIDE else _STEP // 2
    return max(1, round(value / step)) * step


def shape_toml(spec: ModelSpec) -> str:
    """The shape as a model file for `--model`."""
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_positions",
             "pretraining_seq")  # fmt: skip
    shape = {
        "family": "llama",
        **{name: getattr(spec, name) for name in names},
        "activation": "silu",
        "tied_embeddings": False,
        "rope": {"theta": spec.rope.theta},
    }
    return toml_text({"source": "planner budget: between the sizes of Llama 3", "shape": shape})


# Sizes are tried until the best one is met within this share, which is finer than shapes differ.
CLOSE = 0.03
MOST_SEARCHES = 12
# Share of the peak assumed for the first guess; searches replace it.
_GUESS = 0.4
# Damping of each step towards the right size: D falls as 1/N, while its best value grows as N.
_DAMPING = 0.5
_REFERENCE_TOKENS = 10**12

Goal = Literal["least loss", "most tokens", "largest model", "compute-optimal", "as given"]


@dataclass(frozen=True)
class Ask:
    """A budget query: `flops`, or `days` on `gpus`, or neither. The model's size may be given
    (`parameters`, or `model`); `tokens`: None, a number, or `chinchilla` for the best number for
    the model's size."""

    flops: float | None = None
    days: float | None = None
    gpus: str | None = None
    parameters: float | None = None
    model: str | None = None
    tokens: int | Literal["chinchilla"] | None = None

    @property
    def has_size(self) -> bool:
        return self.parameters is not None or self.model is not None


class Budget(Frozen):
    """The answer. `parameters`: active ones per token, without those of other experts; `loss`:
    None, with `why_no_loss`, for models that the law does not cover; `best_parameters`: the size
    with the lowest loss for the same FLOP; `run`: on the GPUs, None if none were given; `shape`:
    the model that was made, None if one was given."""

    planner_version: str = __version__
    goal: Goal
    model: str
    parameters: float
    tokens: Range
    flop: Range
    loss: Range | None
    why_no_loss: str = ""
    beyond: str
    best_parameters: Range
    critical_batch: CriticalBatch
    law: str
    law_source: str
    gpus: str = ""
    run: Run | None = None
    shape: ModelSpec | None = None
    notes: tuple[str, ...] = ()
    currency: str
    basis: CostBasis

    def to_frame(self) -> pd.DataFrame:
        """One row: the answer and, if GPUs were given, the run of its best plan."""
        import pandas as pd

        head = self.model_dump(include={"goal", "model", "parameters", "gpus", "currency"})
        figures = columns("tokens", self.tokens) | columns("flop", self.flop)
        return pd.DataFrame([head | figures | columns("loss", self.loss) | flat_run(self.run)])


@dataclass(frozen=True)
class _Sized:
    """A size with its model and, if GPUs were given, the run of its best plan, or the reason why
    there is none."""

    request: Request
    spec: ModelSpec
    parameters: float
    entry: EnteredOffer | None = None
    outcome: Outcome | None = None
    run: Run | None = None
    reason: str = ""

    def days_a_token(self) -> Range:
        if self.run is None:
            raise NothingFitsError(f"{self.spec.name}: {self.reason}")
        return self.run.days.times(1.0 / _REFERENCE_TOKENS)


def budget(
    request: Request,
    ask: Ask,
    settings: Settings | None = None,
    *,
    how: How = ONE_BY_ONE,
) -> Budget:
    """The model, tokens or loss that a compute budget allows. `request`: the job without a cluster;
    the model is `ask.model` if that is set. UsageError for contradictory input, NothingFitsError if
    nothing runs."""
    _check(ask)
    one_settings = settings or Settings()
    check_providers(one_settings, ())
    return _Study(request, ask, one_settings, how).answer()


def _check(ask: Ask) -> None:
    if ask.flops is not None and ask.days is not None:
        raise UsageError(
            "--flops and --days: the days on GPUs determine the FLOP; leave one of them out"
        )
    if ask.days is not None and ask.gpus is None:
        raise UsageError("--days: on which GPUs? give --gpus 512xH100")
    if ask.model is not None and ask.parameters is not None:
        raise UsageError("--model and --params: give the size once")
    has_budget = ask.flops is not None or ask.days is not None
    if has_budget and ask.has_size and ask.tokens is not None:
        option = "--flops" if ask.flops is not None else "--days"
        raise UsageError(
            f"{option} with a model and --tokens: two of the three determine the third; leave "
            "one out"
        )
    if not has_budget and ask.tokens is None:
        raise UsageError(
            "give a budget: --flops 1e25, or --days 30 --gpus 512xH100; or --tokens 15T, or "
            "--tokens chinchilla with --model or --params"
        )
    if not has_budget and ask.tokens == "chinchilla" and not ask.has_size:
        raise UsageError(
            "--tokens chinchilla: for which model? give --model or --params, or a budget as "
            "--flops 1e25"
        )


@dataclass(frozen=True)
class _Study:
    request: Request
    ask: Ask
    settings: Settings
    how: How

    def answer(self) -> Budget:
        ask, law = self.ask, load_laws()[0]
        if ask.days is not None:
            return self._in_time(ask.days)
        given = float(ask.tokens) if isinstance(ask.tokens, int) else None
        each = None if ask.flops is None else ask.flops / FLOP_PER_PARAMETER_AND_TOKEN
        if ask.has_size:
            wanted = None
        elif given is None:
            wanted = law.best_parameters(ask.flops or 0.0).value
        else:
            wanted = each / given if each else law.best_size(given).value
        sized = self._size(wanted)
        tokens = given or (
            each / sized.parameters if each else law.best_tokens(sized.parameters).value
        )
        exact = Range(value=tokens, low=tokens, high=tokens)
        searched = self._searched(sized, 1) if ask.gpus else sized
        return self._budget(searched, exact)

    def _goal(self) -> Goal:
        ask = self.ask
        if ask.has_size and isinstance(ask.tokens, int):
            return "as given"
        if ask.tokens == "chinchilla" or (ask.flops is None and ask.days is None):
            return "compute-optimal"
        if ask.has_size:
            return "most tokens"
        return "largest model" if ask.tokens is not None else "least loss"

    def _in_time(self, days: float) -> Budget:
        """The answer for a time limit: with the given size, or with the size found by searching
        closer and closer ones."""
        if self.ask.has_size:
            sized = self._searched(self._size(None), 1)
            return self._budget(sized, _inverse(sized.days_a_token(), days))
        found: list[_Sized] = []
        low, high, wanted = LEAST, inf, self._first_guess(days)
        for number in range(1, MOST_SEARCHES + 1):
            sized = self._searched(self._size(wanted), number)
            found.append(sized)
            if sized.run is None:
                high, better = min(high, sized.parameters), inf
            else:
                low, ratio = max(low, sized.parameters), self._ratio(sized, days)
                better = sized.parameters * ratio
                if abs(ratio - 1.0) <= CLOSE:
                    break
            # If memory is the limit, halve the remaining range in logarithms; otherwise use the
            # speed just seen.
            wanted = better if better < high else sqrt(low * high)
            if self._is_same(wanted, sized) or high <= low * (1.0 + CLOSE):
                break
        return self._closest(found, days)

    def _ratio(self, sized: _Sized, days: float) -> float:
        """An estimate of the size of the model that suits the number of days, divided by the size
        of this one; from the speed of this one."""
        tokens = days / sized.days_a_token().value
        if isinstance(self.ask.tokens, int):
            return tokens / self.ask.tokens
        return float((tokens / load_laws()[0].best_tokens(sized.parameters).value) ** _DAMPING)

    def _closest(self, found: list[_Sized], days: float) -> Budget:
        """The best answer among the sizes that were searched. NothingFitsError if none of them
        runs."""
        law = load_laws()[0]

        def tokens_of(one: _Sized) -> Range:
            return _inverse(one.days_a_token(), days)

        running = [sized for sized in found if sized.run is not None]
        if not running:
            found[-1].days_a_token()
        if isinstance(self.ask.tokens, int):
            enough = [one for one in running if self._ratio(one, days) >= 1.0 - CLOSE]
            best = max(enough or running[-1:], key=lambda one: one.parameters)
        else:
            best = min(running, key=lambda one: law.loss(one.parameters, tokens_of(one)).value)
        tokens = tokens_of(best)
        failed = [one for one in found if one.run is None]
        if not failed or self._ratio(best, days) <= 1.0 + CLOSE:
            return self._budget(best, tokens)
        smallest = min(failed, key=lambda one: one.parameters)
        why = smallest.reason.partition(". ")[0]
        note = f"No larger one runs: {smallest.spec.name} was tried ({why})."
        return self._budget(best, tokens, (note,))

    def _is_same(self, wanted: float, sized: _Sized) -> bool:
        if not LEAST <= wanted <= MOST:
            raise UsageError(
                f"the right model would have {wanted:.3g} parameters, outside {LEAST:.0e} to "
                f"{MOST:.0e}; give --model or --params"
            )
        return shaped(wanted) == sized.spec

    def _first_guess(self, days: float) -> float:
        cluster = Offer(gpus=self.ask.gpus).resolve()
        flop = _GUESS * days * DAY_S * cluster.num_gpus * cluster.gpu.peak(self.request.precision)
        tokens = self.ask.tokens
        if isinstance(tokens, int):
            wanted = flop / FLOP_PER_PARAMETER_AND_TOKEN / tokens
        else:
            wanted = load_laws()[0].best_parameters(flop).value
        return min(max(wanted, LEAST), MOST)

    def _size(self, wanted: float | None) -> _Sized:
        if self.ask.model is not None:
            request: Request = self.request.model_copy(update={"model": self.ask.model})
            spec = request.find_model().spec
            active = parameter_count(spec).active
        else:
            spec = shaped(wanted or self.ask.parameters or LEAST)
            active = parameter_count(spec).total
            shaped_as = {"model": spec.name, "overrides": Overrides(model=spec)}
            request = self.request.model_copy(update=shaped_as)
        return _Sized(request, spec, float(active))

    def _searched(self, sized: _Sized, number: int) -> _Sized:
        how = self.how
        if how.progress is not None:
            how.progress(f"searching {sized.spec.name}", number - 1, MOST_SEARCHES)
        base, _ = with_batch(sized.request)
        entry = enter(Offer(gpus=self.ask.gpus), base, None, how.prepare)
        if entry.problem is not None:
            raise entry.problem
        outcome = search_one(how.task(entry.request, only_plans=True))
        run, reason = run_of(entry, outcome, _REFERENCE_TOKENS, self.settings)
        return replace(sized, entry=entry, outcome=outcome, run=run, reason=reason)

    def _budget(self, sized: _Sized, tokens: Range, notes: tuple[str, ...] = ()) -> Budget:
        law = load_laws()[0]
        per_token = FLOP_PER_PARAMETER_AND_TOKEN * sized.parameters
        run = None
        if sized.entry is not None:
            sized.days_a_token()  # NothingFitsError where there is no plan
            # Again, at the final number of tokens: days, money, cost of the batch.
            run, _ = run_of(sized.entry, sized.outcome, round(tokens.value), self.settings)
            notes = (*notes, *with_batch(sized.request)[1])
        is_known = sized.spec.moe is None and not sized.spec.has_states
        return Budget(
            goal=self._goal(),
            model=sized.spec.name,
            parameters=sized.parameters,
            tokens=tokens,
            flop=tokens.times(per_token),
            loss=law.loss(sized.parameters, tokens) if is_known else None,
            why_no_loss="" if is_known else "the law covers only dense transformers",
            beyond=law.beyond(sized.parameters, tokens.value),
            best_parameters=law.best_parameters(tokens.value * per_token),
            critical_batch=critical_batch(tokens.value),
            law=law.name,
            law_source=law.source,
            gpus=self.ask.gpus or "",
            run=run,
            shape=None if self.ask.model is not None else sized.spec,
            notes=notes,
            currency=self.settings.currency,
            basis=self.settings.basis,
        )


def _inverse(days_a_token: Range, days: float) -> Range:
    """The tokens that can be trained in a number of days. The low end of the range belongs to the
    slow end of `days_a_token`, the high end to its fast end."""
    ends = {"low": days / days_a_token.high, "high": days / days_a_token.low}
    return Range(value=days / days_a_token.value, **ends)
