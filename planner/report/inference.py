"""What `planner memory --inference` shows: terms of a rank, the KV cache, what fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.job.models.catalog import ResolvedModel
from planner.job.quantities import GIB, gib, plural, share
from planner.job.written import picked
from planner.predict.memory.inference import InferenceMemory
from planner.predict.memory.serving.solve import DeploymentChange, Solved
from planner.predict.memory.serving.stage import ServingStageMemory
from planner.predict.memory.serving_splits import ServingSplit
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table


@dataclass(frozen=True)
class Tuning:
    """What `--advise` adds: the same GPUs split otherwise, and the model with grouped queries."""

    splits: Sequence[ServingSplit]
    grouped: DeploymentChange | None


Terms = tuple[tuple[str, float, str], ...]


def _terms(stage: ServingStageMemory) -> tuple[Terms, Terms]:
    """(name, bytes, where the figure comes from) of everything a rank holds, KV cache apart; then
    of what lies beside the engine's budget."""
    weights, peak = stage.weights, stage.activations
    after = peak.peak - peak.streams
    fmt = stage.pool.deployment.weights
    kept = "weights kept at 16 bits" if fmt.quantised else f"weights, {fmt.name}"
    within = (
        (f"weights, {fmt.name} matrices", weights.matrices, "op table"),
        ("weights, scales", weights.scales, fmt.title),
        (kept, weights.kept, "op table"),
        ("weights, MLA copies", weights.absorbed, "16-bit, absorbed"),
        ("rotary table", weights.rotary, "max positions"),
        ("hidden states of a chunk", peak.streams, "chunk × hidden"),
        ("widest op, or sampling", after, "op table, logits"),
        ("beside torch", stage.non_torch, "start-up logs"),
        ("CUDA graphs", stage.graphs_within, "start-up logs"),
    )
    beside = (
        ("CUDA context", stage.context, "GPU catalogue"),
        ("NCCL at start", stage.nccl, "start-up logs"),
        ("CUDA graphs", stage.graphs_beside, "start-up logs"),
    )
    return tuple(row for row in within if row[1]), tuple(row for row in beside if row[1])


@as_report
def inference_report(
    result: InferenceMemory,
    model: ResolvedModel,
    solved: Solved | None,
    advice: Sequence[DeploymentChange],
    warnings: Sequence[str],
    tuning: Tuning | None = None,
) -> Iterator[Block]:
    """The whole report."""
    yield Facts(_identity(result, model))
    yield _terms_table(result)
    yield Facts(tuple(_cache_facts(result)), "KV cache")
    yield Facts((_verdict(result, solved),))
    if not result.fits:
        yield _advice(advice, result)
    if tuning is not None:
        yield from _tuning(result, advice, tuning)
    elif result.deployment.tp * result.deployment.dp > 1:
        yield Notes(("--advise compares latency and throughput of other tp on these GPUs.",))
    yield Notes(_notes(result, warnings))


def _identity(result: InferenceMemory, model: ResolvedModel) -> tuple[tuple[str, str], ...]:
    deployment = result.deployment
    alias = f" ({model.asked} is {model.name})" if model.alias_of else ""
    degrees = {name: getattr(deployment, name) for name in ("tp", "pp", "dp", "ep")}
    split = " ".join(f"{name}{value}" for name, value in degrees.items() if value > 1)
    engine = (
        f"{deployment.engine.title}, {deployment.utilization:g} of the HBM, chunks of "
        f"{deployment.chunk:,} tokens, {deployment.sampled:,} sequences"
    )
    asked = f"{plural(deployment.batch, 'sequence')} of {plural(deployment.context, 'token')}"
    return (
        ("model", f"{deployment.model.name}{alias}"),
        ("GPUs", f"{deployment.gpus}×{deployment.gpu.name}{', ' + split if split else ''}"),
        ("engine", engine),
        ("weights", deployment.weights.title),
        ("KV cache", f"{deployment.kv.title}, blocks of {deployment.block} tokens"),
        ("requests", asked),
    )


def _terms_table(result: InferenceMemory) -> TableData:
    stage = result.heaviest
    within, beside = _terms(stage)
    rows = [_row(stage, *term) for term in within]
    rows.append(_row(stage, "KV cache, as asked", stage.kv_needed, "op table, blocks"))
    rows.append(_row(stage, "total", stage.fixed + stage.kv_needed, ""))
    rows.append(_row(stage, "budget", stage.budget, f"of {gib(stage.usable, 2)} GiB"))
    rows += [(f"beside: {name}", gib(size, 2), "", where) for name, size, where in beside]
    where = f", stage {stage.stage + 1} of {len(result.stages)}" if len(result.stages) > 1 else ""
    return table("<term | GiB | of budget | ~from", rows, f"Memory of the fullest GPU{where}")


def _row(
    stage: ServingStageMemory, name: str, size: float, source: str
) -> tuple[str, str, str, str]:
    return (name, gib(size, 2), share(size / stage.budget), source)


def _cache_facts(result: InferenceMemory) -> Iterator[tuple[str, str]]:
    deployment, (low, high) = result.deployment, result.kv_token_interval
    replica = " on each replica" if deployment.dp > 1 else ""
    yield (
        "a token",
        f"{result.one_copy_token_bytes:,.0f} B in all {deployment.model.layers} layers, "
        f"{result.layer_token_bytes:,.0f} B a layer on a GPU",
    )
    copies = result.token_bytes / result.one_copy_token_bytes
    if copies > 1:
        yield "copies", f"{copies:g}: tp {deployment.tp} repeats keys and values"
    yield (
        "room",
        f"{result.kv_tokens:,} tokens{replica} in sequences of {deployment.context:,} "
        f"({low:,} to {high:,})",
    )
    printed = int(result.concurrency * deployment.context)
    yield "vLLM prints", f"maximum concurrency {result.concurrency:.2f}x, {printed:,} tokens"


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
    if rows := [(change.options, gib(-change.missing, 2)) for change in advice if change.fits]:
        return table("~change | GiB to spare", rows, "What would fit")
    if not advice:
        return Notes(("No change that was tried applies to this deployment.",))
    nearest = min(advice, key=lambda change: change.missing)
    missing, still = gib(result.heaviest.missing, 2), gib(nearest.missing, 2)
    found = f"Nearest: {nearest.options}, which still misses {still} of {missing} GiB."
    return Notes((f"Nothing that was tried fits. {found}",))


def _tuning(
    result: InferenceMemory, advice: Sequence[DeploymentChange], tuning: Tuning
) -> Iterator[Block]:
    """What holds the memory and what makes it smaller; latency against throughput."""
    stage = result.heaviest
    weights, cache = stage.weights.total, stage.kv_needed
    most = "weights" if weights > cache else "the KV cache"
    helps = "a narrower --weights" if weights > cache else "a narrower --kv-cache or fewer KV heads"
    held = f"weights {gib(weights, 2)}, KV cache {gib(cache, 2)} GiB of the fullest GPU"
    yield Facts((("holds most", f"{most}: {held}; {helps} or more tp saves most"),))
    listed = [*advice, *([tuning.grouped] if tuning.grouped else [])]
    rows = [
        (one.options, gib(stage.missing - one.missing, 2), gib(-one.missing, 2))
        for one in sorted(listed, key=lambda one: one.missing)
        if one.missing < stage.missing
    ]
    if rows:
        title = "What makes it smaller on the fullest GPU"
        yield table("~change | GiB saved | GiB to spare", rows, title)
    if len(tuning.splits) > 1:
        yield _splits(tuning.splits)
        yield Notes(_SPLIT_NOTES)


_SPLIT_NOTES = (
    "read: weights and cache of a GPU once at the full HBM rate, of mixtures every expert; "
    "reduce: two all-reduces a layer, NCCL's (engines have faster ones for few tokens). Nothing "
    "else of a decode step is counted, and no server was measured: compare the splits, do not "
    "promise the figures.",
)


def _splits(found: Sequence[ServingSplit]) -> TableData:
    fitting = [one for one in found if one.memory.fits]
    quickest = min(fitting, key=lambda one: one.token_s, default=None)
    widest = max(fitting, key=lambda one: one.tokens_per_s, default=None)

    def marks(one: ServingSplit) -> str:
        said = {
            "does not fit": not one.memory.fits,
            "least latency": one is quickest,
            "most throughput": one is widest,
        }
        return ", ".join(text for text, true in said.items() if true)

    return table(
        "<split | weights\nGiB | sequences\nheld | read\nms"
        " | reduce\nms | ms\na token | tokens/s | ~",
        (
            (
                f"tp{one.memory.deployment.tp} dp{one.memory.deployment.dp}",
                gib(one.memory.heaviest.weights.total, 1),
                f"{one.sequences:,.1f}",
                f"{one.read_s * 1e3:,.2f}",
                f"{one.reduce_s * 1e3:,.2f}",
                f"{one.token_s * 1e3:,.2f}",
                f"{one.tokens_per_s:,.0f}",
                marks(one),
            )
            for one in found
        ),
        "The same GPUs split otherwise, at the batch asked for",
    )


def _notes(result: InferenceMemory, warnings: Sequence[str]) -> tuple[str, ...]:
    spread, engine = result.spread, result.deployment.engine
    low, high = spread.low / GIB, spread.high / GIB
    kind = "the whole range" if spread.uncovered else "the 80 % interval"
    accuracy = (
        f"Room for the KV cache: {low:+.2f} to {high:+.2f} GiB, {kind} of "
        f"{plural(spread.rows, 'published start-up log')} ({engine.logs} on "
        f"{' and '.join(spread.gpus)}); their median error is {share(spread.median_error)}. "
        "Constants of the engine were read off most of the same logs; nothing was measured for "
        "this answer."
    )
    warnings = (*warnings, *_overfull(result))
    if not spread.uncovered:
        return (*warnings, accuracy)
    missing = f"The logs have none with {', '.join(spread.uncovered)}: the error may be larger."
    return (*warnings, accuracy, missing)


def _overfull(result: InferenceMemory) -> Iterator[str]:
    """Where a full cache and what lies beside the budget leave too little for a forward pass."""
    beyond = max(stage.overfull for stage in result.stages)
    if beyond > 0.0:
        yield (
            "vLLM fills its budget whatever lies beside it. With a full cache and its largest "
            f"forward pass it then needs {gib(beyond, 2)} GiB more than the GPU has, and may run "
            "out of memory: a lower --gpu-memory-utilization avoids that."
        )


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
