"""`planner memory --inference`: its own options, and what it prints.

`planner memory` owns the options that training and serving share and passes all of them on:
model (required), gpus, tp, pp, ep, dp (None: 1), solve (None, `batch` or `context`), advise,
as_json and as_csv. Missing keys count as None.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hardware.schema import Cluster
from planner.cli.output import print_report
from planner.job.errors import UsageError
from planner.job.models.catalog import ResolvedModel, load_model
from planner.job.pool import parse_one_type
from planner.predict.memory.inference import inference_memory, splits
from planner.predict.memory.serving.deployment import Deployment
from planner.predict.memory.serving.engine import batch_defaults, find_engine
from planner.predict.memory.serving.formats import (
    PUBLISHED_FORMATS,
    PUBLISHED_WIDER,
    kv_format,
    published_format,
    weight_format,
)
from planner.predict.memory.serving.solve import (
    changes,
    solve,
    solved_deployment,
    with_grouped_queries,
)
from planner.report.inference import Tuning, inference_document, inference_report

# Values of --solve that belong to --inference.
SOLVE_CHOICES = ("batch", "context")
DEFAULT_GPU = "H100"
_DEFAULTS: dict[str, Any] = {
    "batch": 1, "context": 4096, "tp": 1, "pp": 1, "dp": 1, "ep": 1,
    "gpu_memory_utilization": 0.9, "block_size": 16, "weights": "bf16", "engine": "vllm",
}  # fmt: skip


def serving_memory(options: dict[str, Any]) -> int:
    """Print the memory of serving; returns the exit status, 0 or, if it does not fit, 1.

    `advise`: every change and every split of the GPUs, also where it fits.
    """

    model = load_model(options["model"])
    stated = _stated_format(options)
    deployment = given_deployment({**options, "weights": options.get("weights") or stated}, model)
    result = inference_memory(deployment)
    solved = None
    if options.get("solve"):
        solved = solve(deployment, options["solve"], result.spread)
        deployment = solved_deployment(deployment, solved)
        result = inference_memory(deployment)
    full = bool(options.get("advise"))
    advice = changes(deployment) if full or not result.fits else ()
    tuning = None
    if full:
        links = _cluster(options, deployment.gpus)
        tuning = Tuning(splits(deployment, links), with_grouped_queries(deployment))
    if options.get("as_json"):
        click.echo(json.dumps(inference_document(result, solved, advice, tuning), indent=2))
    else:
        warnings = (*_warnings(deployment), *_of_checkpoint(options, stated))
        print_report(inference_report(result, model, solved, advice, warnings, tuning))
    return 0 if result.fits else 1


def given_deployment(options: dict[str, Any], model: ResolvedModel) -> Deployment:
    """The deployment that the options describe, not yet checked against the rules of engines."""
    stated = {name: value for name, value in options.items() if value is not None}
    given = _DEFAULTS | stated
    for name in ("tp", "pp", "dp"):
        if int(given[name]) < 1:
            raise UsageError(f"--{name} {given[name]}: a degree is at least 1")
    tp, pp, dp = (int(given[name]) for name in ("tp", "pp", "dp"))
    cluster = _cluster(options, tp * pp * dp)
    if "tp" not in stated and pp == dp == 1:
        tp = cluster.num_gpus
    if (product := tp * pp * dp) != cluster.num_gpus:
        raise UsageError(
            f"tp·pp·dp = {tp}·{pp}·{dp} = {product} GPUs, --gpus has {cluster.num_gpus}; give "
            f"--gpus {product}x{cluster.gpu.name}, or --tp, --pp and --dp that multiply to "
            f"{cluster.num_gpus}"
        )
    weights = weight_format(given["weights"])
    usual_kv = "fp32" if weights.name == "fp32" else "bf16"
    chunk, sequences = batch_defaults(cluster.gpu)
    return Deployment(
        model=model.spec,
        gpu=cluster.gpu,
        batch=given["batch"],
        context=given["context"],
        weights=weights,
        kv=kv_format(given.get("kv_cache", usual_kv)),
        tp=tp,
        pp=pp,
        dp=dp,
        ep=given["ep"],
        utilization=given["gpu_memory_utilization"],
        block=given["block_size"],
        chunk=given.get("max_num_batched_tokens", chunk),
        sequences=given.get("max_num_seqs", sequences),
        all_logits=given.get("logits") == "all",
        graphs=not given.get("enforce_eager"),
        window_cache=not given.get("disable_hybrid_kv_cache_manager"),
        engine=find_engine(given["engine"]),
    )


def _configuration(options: dict[str, Any]) -> dict[str, Any]:
    """The config.json that --model names, which is known to be one; empty for a catalogue name."""
    path = Path(options["model"])
    return json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else {}


def _stated_format(options: dict[str, Any]) -> str | None:
    """The format that the checkpoint's own configuration states; None where it states none."""
    return published_format(_configuration(options))


def _of_checkpoint(options: dict[str, Any], stated: str | None) -> tuple[str, ...]:
    """What the configuration says of its weights, and what was made of it."""
    if "quantization_config" not in _configuration(options):
        return ()
    if stated is None:
        return ("Its quantization_config states a format that is not known: give --weights.",)
    given = options.get("weights")
    if given is not None and given != stated:
        return (f"Its quantization_config says --weights {stated}, not {given}.",)
    return (f"--weights {stated} is read from its quantization_config.",)


def _cluster(options: dict[str, Any], gpus: int) -> Cluster:
    return parse_one_type(options.get("gpus") or f"{gpus}x{DEFAULT_GPU}")


def _warnings(deployment: Deployment) -> tuple[str, ...]:
    """What is legal here and will surprise elsewhere."""
    model, found = deployment.model, []
    if deployment.context > model.max_positions:
        found.append(
            f"Warning: {deployment.context:,} tokens exceed the {model.max_positions:,} positions "
            f"of {model.name}; engines refuse it unless its rotary embedding is scaled."
        )
    published = PUBLISHED_FORMATS.get(model.family)
    if published is not None and deployment.weights.name != published:
        found.append(f"{model.name} is published in {published}: --weights {published}.")
    wider = PUBLISHED_WIDER.get((model.name, deployment.weights.name))
    if wider is not None:
        found.append(f"The published checkpoint leaves attention at 16 bits: --weights {wider}.")
    if model.mtp_layers:
        found.append("Multi-token-prediction layers are not loaded.")
    return tuple(found)
