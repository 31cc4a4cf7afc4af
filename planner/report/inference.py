"""Report of `planner memory --inference`: memory of a rank, the KV cache, whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from planner.job.models.catalog import ResolvedModel
from planner.job.quantities import GIB, gib
from planner.job.written import picked
from planner.predict.memory.inference import InferenceMemory, ServingSplit
from planner.predict.memory.serving.solve import DeploymentChange, Solved
from planner.predict.memory.serving.stage import ServingStageMemory
from planner.report.said import described, facts, notes, said, table_of
from planner.report.tables import Block, Facts, Notes, TableData, as_report


@dataclass(frozen=True)
class Tuning:
    """Results that `--advise` adds. `splits`: other ways to split the model over the same GPUs;
    `grouped`: the memory of a model with fewer KV heads (grouped-query attention), None if that
    does not apply to the model."""

    splits: Sequence[ServingSplit]
    grouped: DeploymentChange | None


class Held(NamedTuple):
    """A term of a rank's memory in bytes, and the source of the figure."""

    name: str
    size: float
    source: str


def _terms(stage: ServingStageMemory) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """The terms of a rank's memory within the engine's budget, without the KV cache; then the terms
    outside that budget."""
    fmt = stage.pool.deployment.weights
    plain = "" if fmt.quantised else fmt.name

    def held(part: str) -> Iterator[Held]:
        for name, path, source in described(f"inference.{part}"):
            if size := attrgetter(path)(stage):
                texts = (said(text, None, fmt=fmt, plain=plain) or "" for text in (name, source))
                yield Held(next(texts), size, next(texts))

    return tuple(held("within")), tuple(held("beside"))


@as_report
def inference_report(
    result: InferenceMemory,
    model: ResolvedModel,
    solved: Solved | None,
    advice: Sequence[DeploymentChange],
    warnings: Sequence[str],
    tuning: Tuning | None = None,
) -> Iterator[Block]:
    yield Facts((_verdict(result, solved), *_identity(result, model).rows))
    yield _terms_table(result)
    yield _cache_facts(result)
    if not result.fits:
        yield _advice(advice, result)
    if tuning is not None:
        yield from _tuning(result, advice, tuning)
    elif result.deployment.tp * result.deployment.dp > 1:
        yield Notes(("--advise compares latency and throughput of other tp on these GPUs.",))
    yield Notes(_notes(result, warnings))


def _identity(result: InferenceMemory, model: ResolvedModel) -> Facts:
    deployment = result.deployment
    degrees = {name: getattr(deployment, name) for name in ("tp", "pp", "dp", "ep")}
    split = " ".join(f"{name}{value}" for name, value in degrees.items() if value > 1)
    alias = f"{model.asked} is {model.name}" if model.alias_of else ""
    return facts("inference.identity", deployment, alias=alias, split=split)


def _terms_table(result: InferenceMemory) -> TableData:
    stage = result.heaviest
    within, beside = _terms(stage)
    sums = (
        Held("KV cache, as asked", stage.kv_needed, "op table, blocks"),
        Held("total", stage.fixed + stage.kv_needed, ""),
        Held("budget", stage.budget, f"of {gib(stage.usable, 2)} GiB"),
    )
    outside = [(f"beside: {one.name}", gib(one.size, 2), "", one.source) for one in beside]
    where = f", stage {stage.stage + 1} of {len(result.stages)}" if len(result.stages) > 1 else ""
    part: Callable[[Held], float] = lambda one: one.size / stage.budget  # noqa: E731
    return table_of("inference.terms", (*within, *sums), outside, where=where, part=part)


def _cache_facts(result: InferenceMemory) -> Facts:
    deployment, (low, high) = result.deployment, result.kv_token_interval
    copies = result.token_bytes / result.one_copy_token_bytes
    return facts(
        "inference.cache", result, title="KV cache", copies=copies if copies > 1 else None,
        replicas=deployment.dp > 1, low=low, high=high,
        printed=int(result.concurrency * deployment.context),
    )  # fmt: skip


def _verdict(result: InferenceMemory, solved: Solved | None) -> tuple[str, str]:
    if solved is not None and solved.expected:
        held = "context" if solved.what == "batch" else "batch"
        value = getattr(result.deployment, held)
        text = f"--{solved.what} {solved.expected} fits with --{held} {value}"
        return ("largest", f"{text}; {solved.low} to {solved.high} within the uncertainty")
    missing = gib(result.heaviest.missing, 2)
    if solved is not None:
        return ("fits", f"NO: even --{solved.what} 1 is {missing} GiB too much on the fullest GPU")
    if not result.fits:
        text = f"NO: {missing} GiB too much on the fullest GPU"
        return ("fits", text if result.sure else f"{text}, which is within the uncertainty")
    doubt = "" if result.sure else ", which is less than the uncertainty: it may not"
    spare = gib(-result.heaviest.missing, 2)
    return ("fits", f"yes, {spare} GiB to spare on the fullest GPU{doubt}")


def _advice(advice: Sequence[DeploymentChange], result: InferenceMemory) -> Block:
    if fitting := [change for change in advice if change.fits]:
        return table_of("inference.fit", fitting, spare=_spare)
    if not advice:
        return Notes(("No change that was tried applies to this deployment.",))
    nearest = min(advice, key=lambda change: change.missing)
    missing, still = gib(result.heaviest.missing, 2), gib(nearest.missing, 2)
    found = f"Nearest: {nearest.options}, which still misses {still} of {missing} GiB."
    return Notes((f"Nothing that was tried fits. {found}",))


def _spare(change: DeploymentChange) -> float:
    return -change.missing


def _tuning(
    result: InferenceMemory, advice: Sequence[DeploymentChange], tuning: Tuning
) -> Iterator[Block]:
    """Advice as blocks: the largest parts of the memory, changes that make it smaller, and, if
    there are several splits, latency against throughput for each."""
    stage = result.heaviest
    weights, cache = stage.weights.total, stage.kv_needed
    yield facts("inference.holds", stage, weights=weights, cache=cache, cache_most=weights <= cache)
    listed = sorted(
        (*advice, *([tuning.grouped] if tuning.grouped else [])), key=lambda one: one.missing
    )
    if smaller := [one for one in listed if one.missing < stage.missing]:

        def saved(one: DeploymentChange) -> float:
            return stage.missing - one.missing

        yield table_of("inference.smaller", smaller, saved=saved, spare=_spare)
    if len(tuning.splits) > 1:
        yield _splits(tuning.splits)
        yield Notes((described("inference.splits-note"),))


def _splits(found: Sequence[ServingSplit]) -> TableData:
    fitting = [one for one in found if one.memory.fits]
    quickest = min(fitting, key=lambda one: one.token_s, default=None)
    widest = max(fitting, key=lambda one: one.tokens_per_s, default=None)

    def marks(one: ServingSplit) -> str:
        told = {
            "does not fit": not one.memory.fits,
            "least latency": one is quickest,
            "most throughput": one is widest,
        }
        return ", ".join(text for text, true in told.items() if true)

    return table_of("inference.splits", found, marks=marks)


def _notes(result: InferenceMemory, warnings: Sequence[str]) -> tuple[str, ...]:
    spread = result.spread
    ends = {"low": spread.low / GIB, "high": spread.high / GIB}
    # Positive if a full cache and the memory outside the budget leave too little for a forward
    # pass.
    beyond = max(stage.overfull for stage in result.stages)
    overfull = [said(described("inference.overfull"), None, beyond=beyond)] if beyond > 0.0 else []
    accuracy = notes("inference.notes", spread, engine=result.deployment.engine, **ends)
    return (*warnings, *filter(None, overfull), *accuracy)


def inference_document(
    result: InferenceMemory,
    solved: Solved | None,
    advice: Sequence[DeploymentChange],
    tuning: Tuning | None = None,
) -> dict[str, Any]:
    """The answer as plain data for --json: bytes and tokens."""
    deployment, (low, high) = result.deployment, result.kv_token_interval
    document = {
        **picked(
            deployment,
            "model=model.name gpu=gpu.name gpus batch context tp pp dp ep utilization block chunk"
            " sequences weights=weights.name kv_cache=kv.name engine=engine.name",
        ),
        **picked(
            result,
            "fits sure missing_bytes=heaviest.missing kv_bytes_per_token=one_copy_token_bytes"
            " kv_bytes_per_token_and_layer_on_gpu=layer_token_bytes kv_tokens",
        ),
        "kv_tokens_low": low,
        "kv_tokens_high": high,
        **picked(result, "max_concurrency=concurrency interval_rows=spread.rows"),
        "not_in_logs": list(result.spread.uncovered),
        "solved": solved and asdict(solved),
        "stages": [_stage_document(stage) for stage in result.stages],
        "changes": [picked(change, "options missing_bytes=missing") for change in advice],
    }
    if tuning is None:
        return document
    grouped = tuning.grouped
    document["grouped_queries"] = grouped and picked(grouped, "model=options missing_bytes=missing")
    names = "tp=memory.deployment.tp dp=memory.deployment.dp fits=memory.fits"
    document["splits"] = [
        picked(one, f"{names} sequences read_s reduce_s tokens_per_s") for one in tuning.splits
    ]
    return document


def _stage_document(stage: ServingStageMemory) -> dict[str, Any]:
    names = (
        "stage layers budget_bytes=budget usable_bytes=usable available_kv_bytes=available"
        " kv_needed_bytes=kv_needed"
    )
    parts = zip(("within_budget", "beside_budget"), _terms(stage), strict=True)
    return picked(stage, names) | {
        part: {name: size for name, size, _ in terms} for part, terms in parts
    }
