"""What `planner memory --inference` shows: terms of a rank, the KV cache, what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.job.models.catalog import ResolvedModel
from planner.job.quantities import GIB, gib, plural, share
from planner.job.written import picked
from planner.predict.memory.inference import InferenceMemory
from planner.predict.memory.serving.solve import Change, Solved
from planner.predict.memory.serving.stage import StageMemory
from planner.predict.memory.serving_splits import Split
from planner.report.tables import Block, Facts, Notes, Report, TableData, headings


@dataclass(frozen=True)
class Tuning:
    """What `--advise` adds: the same GPUs split otherwise, and the model with grouped queries."""

    splits: Sequence[Split]
    grouped: Change | None


Terms = tuple[tuple[str, float, str], ...]


def stage_terms(stage: StageMemory) -> Terms:
    """(name, bytes, where the figure comes from) of everything a rank holds, KV cache apart."""
    weights, peak = stage.weights, stage.activations
    after = peak.peak - peak.streams
    fmt = stage.pool.deployment.weights
    kept = "weights kept at 16 bits" if fmt.quantised else f"weights, {fmt.name}"
    rows = (
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
    return tuple(row for row in rows if row[1])


def beside_terms(stage: StageMemory) -> Terms:
    """The same for what lies beside the engine's budget."""
    rows = (
        ("CUDA context", stage.context, "GPU catalogue"),
        ("NCCL at start", stage.nccl, "start-up logs"),
        ("CUDA graphs", stage.graphs_beside, "start-up logs"),
    )
    return tuple(row for row in rows if row[1])


def inference_report(
    result: InferenceMemory,
    model: ResolvedModel,
    solved: Solved | None,
    advice: Sequence[Change],
    warnings: Sequence[str],
    tuning: Tuning | None = None,
) -> Report:
    """The whole report."""
    blocks: list[Block] = [
        Facts(_identity(result, model)),
        _terms_table(result),
        Facts(_cache_facts(result), "KV cache"),
        Facts((_verdict(result, solved),)),
    ]
    if not result.fits:
        blocks.append(_advice(advice, result))
    if tuning is not None:
        blocks += _tuning(result, advice, tuning)
    blocks.append(Notes(_notes(result, warnings)))
    return Report(tuple(blocks))


def _identity(result: InferenceMemory, model: ResolvedModel) -> tuple[tuple[str, str], ...]:
    deployment = result.deployment
    alias = f" ({model.asked} is {model.name})" if model.alias_of else ""
    degrees = (
        ("tp", deployment.tp),
        ("pp", deployment.pp),
        ("dp", deployment.dp),
        ("ep", deployment.ep),
    )
    split = " ".join(f"{name}{value}" for name, value in degrees if value > 1)
    return (
        ("model", f"{deployment.model.name}{alias}"),
        ("GPUs", f"{deployment.gpus}×{deployment.gpu.name}{', ' + split if split else ''}"),
        (
            "engine",
            f"{deployment.engine.title}, {deployment.utilization:g} of the HBM, chunks of "
            f"{deployment.chunk:,} tokens, {deployment.sampled:,} sequences",
        ),
        ("weights", deployment.weights.title),
        ("KV cache", f"{deployment.kv.title}, blocks of {deployment.block} tokens"),
        (
            "requests",
            f"{plural(deployment.batch, 'sequence')} of {plural(deployment.context, 'token')}",
        ),
    )


def _terms_table(result: InferenceMemory) -> TableData:
    stage = result.heaviest
    columns = headings("<term | GiB | of budget | ~from")
    rows = [_row(stage, *term) for term in stage_terms(stage)]
    rows.append(_row(stage, "KV cache, as asked", stage.kv_needed, "op table, blocks"))
    rows.append(_row(stage, "total", stage.fixed + stage.kv_needed, ""))
    rows.append(_row(stage, "budget", stage.budget, f"of {gib(stage.usable, 2)} GiB"))
    rows += [
        (f"beside: {name}", gib(size, 2), "", where) for name, size, where in beside_terms(stage)
    ]
    where = f", stage {stage.stage + 1} of {len(result.stages)}" if len(result.stages) > 1 else ""
    return TableData(columns, tuple(rows), f"Memory of the fullest GPU{where}")


def _row(stage: StageMemory, name: str, size: float, source: str) -> tuple[str, str, str, str]:
    return (name, gib(size, 2), share(size / stage.budget), source)


def _cache_facts(result: InferenceMemory) -> tuple[tuple[str, str], ...]:
    deployment = result.deployment
    low, high = result.kv_token_interval
    replica = " on each replica" if deployment.dp > 1 else ""
    facts = [
        (
            "a token",
            f"{result.one_copy_token_bytes:,.0f} B in all {deployment.model.layers} layers, "
            f"{result.layer_token_bytes:,.0f} B a layer on a GPU",
        ),
        (
            "room",
            f"{result.kv_tokens:,} tokens{replica} in sequences of {deployment.context:,} "
            f"({low:,} to {high:,})",
        ),
        (
            "vLLM prints",
            f"maximum concurrency {result.concurrency:.2f}x, "
            f"{int(result.concurrency * deployment.context):,} tokens",
        ),
    ]
    copies = result.token_bytes / result.one_copy_token_bytes
    if copies > 1:
        facts.insert(1, ("copies", f"{copies:g}: tp {deployment.tp} repeats keys and values"))
    return tuple(facts)


def _verdict(result: InferenceMemory, solved: Solved | None) -> tuple[str, str]:
    if solved is not None and solved.expected:
        held = "context" if solved.what == "batch" else "batch"
        value = getattr(result.deployment, held)
        text = f"--{solved.what} {solved.expected} fits with --{held} {value}"
        return ("largest", f"{text}; {solved.low} to {solved.high} within the uncertainty")
    spare = gib(-result.heaviest.missing, 2)
    if solved is not None:
        missing = gib(result.heaviest.missing, 2)
        return ("fits", f"NO: even --{solved.what} 1 is {missing} GiB too much on the fullest GPU")
    if not result.fits:
        text = f"NO: {gib(result.heaviest.missing, 2)} GiB too much on the fullest GPU"
        return ("fits", text if result.sure else f"{text}, which is within the uncertainty")
    doubt = "" if result.sure else ", which is less than the uncertainty: it may not"
    return ("fits", f"yes, {spare} GiB to spare on the fullest GPU{doubt}")


def _advice(advice: Sequence[Change], result: InferenceMemory) -> Block:
    fitting = [change for change in advice if change.fits]
    if fitting:
        columns = headings("~change | GiB to spare")
        rows = tuple((c.options, gib(-c.missing, 2)) for c in fitting)
        return TableData(columns, rows, "What would fit")
    if not advice:
        return Notes(("No change that was tried applies to this deployment.",))
    nearest = min(advice, key=lambda change: change.missing)
    return Notes(
        (
            f"Nothing that was tried fits. Nearest: {nearest.options}, which still misses "
            f"{gib(nearest.missing, 2)} of {gib(result.heaviest.missing, 2)} GiB.",
        )
    )


def _tuning(result: InferenceMemory, advice: Sequence[Change], tuning: Tuning) -> list[Block]:
    """What holds the memory and what makes it smaller; latency against throughput."""
    stage = result.heaviest
    weights, cache = stage.weights.total, stage.kv_needed
    most = "weights" if weights > cache else "the KV cache"
    helps = "a narrower --weights" if weights > cache else "a narrower --kv-cache or fewer KV heads"
    blocks: list[Block] = [
        Facts(
            (
                (
                    "holds most",
                    f"{most}: weights {gib(weights, 2)}, KV cache {gib(cache, 2)} GiB of the "
                    f"fullest GPU; {helps} or more tp saves most",
                ),
            )
        )
    ]
    listed = [*advice, *([tuning.grouped] if tuning.grouped else [])]
    columns = headings("~change | GiB saved | GiB to spare")
    rows = tuple(
        (one.options, gib(stage.missing - one.missing, 2), gib(-one.missing, 2))
        for one in sorted(listed, key=lambda one: one.missing)
        if one.missing < stage.missing
    )
    if rows:
        blocks.append(TableData(columns, rows, "What makes it smaller on the fullest GPU"))
    if len(tuning.splits) > 1:
        blocks += [_splits(tuning.splits), Notes(_SPLIT_NOTES)]
    return blocks


_SPLIT_NOTES = (
    "read: weights and cache of a GPU once at the full HBM rate, of mixtures every expert; "
    "reduce: two all-reduces a layer, NCCL's (engines have faster ones for few tokens). Nothing "
    "else of a decode step is counted, and no server was measured: compare the splits, do not "
    "promise the figures.",
)


def _splits(found: Sequence[Split]) -> TableData:
    fitting = [one for one in found if one.memory.fits]
    quickest = min(fitting, key=lambda one: one.token_s, default=None)
    widest = max(fitting, key=lambda one: one.tokens_per_s, default=None)
    columns = headings(
        "<split | weights\nGiB | sequences\nheld | read\nms",
        "reduce\nms | ms\na token | tokens/s | ~",
    )
    rows = tuple(
        (
            f"tp{one.memory.deployment.tp} dp{one.memory.deployment.dp}",
            gib(one.memory.heaviest.weights.total, 1),
            f"{one.sequences:,.1f}",
            f"{one.read_s * 1e3:,.2f}",
            f"{one.reduce_s * 1e3:,.2f}",
            f"{one.token_s * 1e3:,.2f}",
            f"{one.tokens_per_s:,.0f}",
            ", ".join(
                text
                for text, true in (
                    ("does not fit", not one.memory.fits),
                    ("least latency", one is quickest),
                    ("most throughput", one is widest),
                )
                if true
            ),
        )
        for one in found
    )
    return TableData(columns, rows, "The same GPUs split otherwise, at the batch asked for")


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
    if not spread.uncovered:
        return (*warnings, accuracy)
    missing = f"The logs have none with {', '.join(spread.uncovered)}: the error may be larger."
    return (*warnings, accuracy, missing)


def inference_document(
    result: InferenceMemory,
    solved: Solved | None,
    advice: Sequence[Change],
    tuning: Tuning | None = None,
) -> dict[str, Any]:
    """The answer as plain data for --json: bytes and tokens."""
    deployment, (low, high) = result.deployment, result.kv_token_interval
    return {
        "model": deployment.model.name,
        "gpu": deployment.gpu.name,
        "gpus": deployment.gpus,
        **picked(deployment, "batch context tp pp dp ep utilization block chunk sequences"),
        "weights": deployment.weights.name,
        "kv_cache": deployment.kv.name,
        "engine": deployment.engine.name,
        "fits": result.fits,
        "sure": result.sure,
        "missing_bytes": result.heaviest.missing,
        "kv_bytes_per_token": result.one_copy_token_bytes,
        "kv_bytes_per_token_and_layer_on_gpu": result.layer_token_bytes,
        "kv_tokens": result.kv_tokens,
        "kv_tokens_low": low,
        "kv_tokens_high": high,
        "max_concurrency": result.concurrency,
        "interval_rows": result.spread.rows,
        "not_in_logs": list(result.spread.uncovered),
        "solved": None if solved is None else asdict(solved),
        "stages": [_stage_document(stage) for stage in result.stages],
        "changes": [{"options": c.options, "missing_bytes": c.missing} for c in advice],
        **({} if tuning is None else _tuning_document(tuning)),
    }


def _tuning_document(tuning: Tuning) -> dict[str, Any]:
    grouped = tuning.grouped
    return {
        "grouped_queries": None
        if grouped is None
        else {"model": grouped.options, "missing_bytes": grouped.missing},
        "splits": [
            {
                "tp": one.memory.deployment.tp,
                "dp": one.memory.deployment.dp,
                "fits": one.memory.fits,
                **picked(one, "sequences read_s reduce_s tokens_per_s"),
            }
            for one in tuning.splits
        ],
    }


def _stage_document(stage: StageMemory) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "budget_bytes": stage.budget,
        "usable_bytes": stage.usable,
        "available_kv_bytes": stage.available,
        "kv_needed_bytes": stage.kv_needed,
        "within_budget": {name: size for name, size, _ in stage_terms(stage)},
        "beside_budget": {name: size for name, size, _ in beside_terms(stage)},
    }
