"""`planner memory`: what fills a GPU's memory in each phase of a step, or in serving with
`--inference`."""

from __future__ import annotations

import json
from functools import partial
from math import gcd
from pathlib import Path
from typing import Any

import click

from constraints.axes import AXES, LARGEST_DEGREE
from hardware.schema import Cluster
from planner.cli.declared import names_of
from planner.cli.errors import ExitStatus
from planner.cli.evaluate import given_configuration
from planner.cli.fit import fit_request
from planner.cli.options import LIMITS, given
from planner.cli.output import check_files, limited, print_report, watched, write_plot
from planner.cli.usual_framework import take_usual_framework
from planner.job.errors import UsageError
from planner.job.frameworks.names import profile_named
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import ResolvedModel, load_model
from planner.job.pool import parse_one_type
from planner.job.quantities import gib
from planner.job.written import write_text
from planner.predict.command_line import search_command
from planner.predict.memory.account import (
    Footprint,
    StageAccount,
    dropless_worst_case,
    footprint_of,
)
from planner.predict.memory.advice import advise
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
from planner.predict.memory.serving.solve import changes, solved_deployment, with_grouped_queries
from planner.predict.memory.serving.solve import solve as solve_serving
from planner.predict.memory.solve import solve
from planner.predict.memory.terms import peak_tensors
from planner.predict.plan_text import configuration_text
from planner.report.charts.memory import MemoryFigure, memory_figure
from planner.report.fit import advice_blocks, leading_facts
from planner.report.inference import Tuning, inference_document, inference_report
from planner.report.memory import memory_json, memory_report, solution_blocks
from planner.search.fit import fitting_plan

SOLVE_TRAINING = ("mbs", "seq", "layers")
# If none of these is given, the user asks how to fit, not whether one configuration does.
_CHOICES = (
    *(name for name in AXES if name not in ("mbs", "grad_acc", "shard")), "recompute", "solve",
    "advise", "layers_per_stage", "recompute_layers",
)  # fmt: skip
_NO_CONDITIONS: dict[str, Any] = {"require": (), "forbid": (), "fix": ()}
_SECONDS_INSTEAD = 20.0
# Options that training and serving share.
_SHARED = (
    "model", "gpus", "tp", "pp", "dp", "ep", "solve", "advise", "as_json", "quiet",
)  # fmt: skip

# The option of serving that replaces an option of training.
_OF_SERVING = {
    "seq": "--context", "mbs": "--batch", "gbs": "--batch", "precision": "--weights",
    "framework": "--engine",
}  # fmt: skip


def run(**options: Any) -> None:
    ctx = click.get_current_context()
    if options["advise"] and options["solve"] is not None:
        raise UsageError("give --solve or --advise, not both")
    if options["inference"]:
        ctx.exit(serving_memory(_serving_options(options)))
    _refuse_serving_options(options)
    ctx.exit(_train(options))


def _train(options: dict[str, Any]) -> int:
    """Run `planner memory` for training: account for memory, solve or advise if asked, write and
    print. Returns the exit status."""
    output = check_files(options)
    counted = options["cluster"] is not None or not _needs_count(options["gpus"])
    notes = [*_complete(options), *take_usual_framework(options)]
    proposal = given_configuration(options)
    configuration = proposal.resolve()
    solution = advice = None
    if options["solve"] is not None:
        fixed = options["gbs"] is not None or options["gbs_tokens"] is not None
        solution = solve(configuration, options["solve"], batch_is_fixed=fixed)
    # Use the largest value that fits, if --solve looked for one.
    best = solution and (solution.safe.largest or solution.safe.beyond)
    footprint = best.footprint if best else footprint_of(configuration)
    stages = _stages(options["stage"], footprint)
    worst = dropless_worst_case(footprint.configuration)
    if options["advise"]:
        with limited(options["time_limit"]) as until, watched(options["quiet"]) as watch:
            advice = advise(proposal, may_add_gpus=not counted, watch=watch, over=until.over)
    document = partial(memory_json, proposal.request, footprint, worst, solution, advice)
    if output is not None:
        write_text(output, document(), force=options["force"])
    if options["plot"] is not None:
        _draw(options["plot"], memory_figure(footprint, stages))
    if options["as_json"]:
        click.echo(document(), nl=False)
    else:
        more = [*(solution_blocks(solution) if solution else ())]
        more += advice_blocks(advice) if advice else ()
        tensors = peak_tensors(footprint, stages[0]) if options["tensors"] else ()
        instead = "" if footprint.fits else _instead(options, footprint)
        print_report(
            memory_report(
                footprint, stages, tensors=tensors, worst=worst, notes=notes, more=more,
                first=leading_facts(advice) if advice else (), instead=instead,
                by_layer=options["by_layer"],
            )
        )  # fmt: skip
    solved = solution is None or solution.safe.largest is not None
    return 0 if footprint.fits and solved else ExitStatus.NOTHING_FITS


# --- input ---------------------------------------------------------------------------------------


def _serving_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with None for those that neither were given nor belong to serving. Raises
    UsageError if an option that only training has is given."""
    of_serving = names_of("serving")
    stated = {name for name in options if given(name)}
    strange = sorted(stated - of_serving - set(_SHARED))
    if strange:
        instead = (f"{there} for {_spelled([name])}" for name, there in _OF_SERVING.items()
                   if name in strange)  # fmt: skip
        hint = ", ".join(instead)
        text = f"--inference does not go with {_spelled(strange)}: only training has that"
        raise UsageError(f"{text}; give {hint}" if hint else text)
    if options["solve"] in SOLVE_TRAINING:
        others = ", ".join(SOLVE_CHOICES)
        raise UsageError(f"--solve {options['solve']} is for training; --inference takes {others}")
    return {name: value if name in stated | of_serving else None for name, value in options.items()}


def _refuse_serving_options(options: dict[str, Any]) -> None:
    """Raise UsageError if an option for serving is given without --inference."""
    strange = sorted(name for name in names_of("serving") if given(name))
    if strange:
        raise UsageError(f"{_spelled(strange)}: only with --inference")
    if options["solve"] in SOLVE_CHOICES:
        others = ", ".join(SOLVE_TRAINING)
        raise UsageError(f"--solve {options['solve']} needs --inference; training takes {others}")


def _spelled(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _complete(options: dict[str, Any]) -> list[str]:
    """Fill in the GPUs, dp and the batch if they are not given. Returns notes on what was filled
    in."""
    notes = []
    profile = load_framework(profile_named(options["framework"]))
    experts = load_model(options["model"]).spec.moe is not None
    usual = profile.usual_etp(experts=experts, tp=options["tp"], ep=options["ep"])
    options["etp"] = options["etp"] or usual
    if options["cluster"] is None and _needs_count(options["gpus"]):
        gpu = options["gpus"] or DEFAULT_GPU
        # Fewest replicas over which the experts spread: ep·etp divides dp·cp·tp.
        group, inner = options["ep"] * options["etp"], options["tp"] * options["cp"]
        options["dp"] = options["dp"] or group // gcd(group, inner)
        world = options["tp"] * options["pp"] * options["cp"] * options["dp"]
        if world > LARGEST_DEGREE:
            raise UsageError(
                f"tp·pp·cp·dp = {world:,} GPUs: a job has 1 to {LARGEST_DEGREE:,} GPUs"
            )
        options["gpus"] = f"{world}x{gpu}"
        notes.append(f"{world:,} {gpu}, as many as the degrees multiply to (--gpus)")
    if options["gbs"] is None and options["gbs_tokens"] is None and options["grad_acc"] is None:
        pp = options["pp"]
        # Enough micro-batches for the pipeline to hold as many as it ever does.
        options["grad_acc"] = 1 if pp == 1 else 2 * pp
        acc = "1 micro-batch" if pp == 1 else f"{2 * pp} micro-batches"
        notes.append(f"{acc} a step (--grad-acc, --gbs or --gbs-tokens say otherwise)")
    return notes


def _needs_count(gpus: str | None) -> bool:
    """Whether --gpus is missing or names a GPU without a count (`H200`)."""
    return gpus is None or gpus.strip()[:1].isalpha()


def _stages(wanted: str | int, footprint: Footprint) -> list[StageAccount]:
    if wanted == "all":
        return list(footprint.stages)
    if wanted == "heaviest":
        return [footprint.heaviest]
    count = len(footprint.stages)
    if not 0 <= int(wanted) < count:
        has = "the only stage is 0" if count == 1 else f"stages are 0 to {count - 1}"
        raise UsageError(f"--stage {wanted}: {has}")
    return [footprint.stages[int(wanted)]]


# --- output --------------------------------------------------------------------------------------


def _draw(plot: Path, figure: MemoryFigure) -> None:
    from planner.report.charts.memory import memory_chart
    from planner.report.pages.studies import memory_page

    write_plot(plot, lambda: memory_chart(figure), lambda: memory_page(figure))


def _instead(options: dict[str, Any], footprint: Footprint) -> str:
    """A plan that fits, found by a search with the same GPUs and batch. Empty if the user gave
    degrees."""
    if any(given(name) for name in _CHOICES) or not given("gpus"):
        return ""
    stated = any(given(name) for name in ("gbs", "gbs_tokens", "grad_acc"))
    degrees = footprint.configuration.degrees
    batch = {"gbs": degrees.gbs if stated else None, "gbs_tokens": None}
    free = dict.fromkeys((*LIMITS, "recompute")) | _NO_CONDITIONS
    request, _ = fit_request(options | batch | free)
    plan = fitting_plan(request, _SECONDS_INSTEAD)
    if plan is None:
        return ""
    fits = f"{configuration_text(plan)} fits, with {gib(plan.peak_bytes)} GiB"
    return f"{fits}, as a search found: {search_command(request)}"


# Values of --solve for --inference.
SOLVE_CHOICES = ("batch", "context")
DEFAULT_GPU = "H100"
_DEFAULTS: dict[str, Any] = {
    "batch": 1, "context": 4096, "tp": 1, "pp": 1, "dp": 1, "ep": 1,
    "gpu_memory_utilization": 0.9, "block_size": 16, "weights": "bf16", "engine": "vllm",
}  # fmt: skip


def serving_memory(options: dict[str, Any]) -> int:
    """Print the memory of serving. Returns exit status 0, or 1 if it does not fit. `advise`:
    list every change and every split of the GPUs even if it fits."""

    model = load_model(options["model"])
    # The format that the checkpoint's own configuration states, if it states one.
    stated = published_format(_configuration(options))
    deployment = given_deployment({**options, "weights": options.get("weights") or stated}, model)
    result = inference_memory(deployment)
    solved = None
    if options.get("solve"):
        solved = solve_serving(deployment, options["solve"], result.spread)
        deployment = solved_deployment(deployment, solved)
        result = inference_memory(deployment)
    full = bool(options.get("advise"))
    advice = changes(deployment) if full or not result.fits else ()
    tuning = None
    if full:
        links = _cluster(options, deployment.gpus)
        tuning = Tuning(tuple(splits(deployment, links)), with_grouped_queries(deployment))
    if options.get("as_json"):
        click.echo(json.dumps(inference_document(result, solved, advice, tuning), indent=2))
    else:
        warnings = (*_warnings(deployment), *_of_checkpoint(options, stated))
        print_report(inference_report(result, model, solved, advice, warnings, tuning))
    return 0 if result.fits else 1


def given_deployment(options: dict[str, Any], model: ResolvedModel) -> Deployment:
    """The deployment that the options describe, not yet checked against the engine's rules."""
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
        weights=weights,
        kv=kv_format(given.get("kv_cache", usual_kv)),
        tp=tp,
        pp=pp,
        dp=dp,
        utilization=given["gpu_memory_utilization"],
        block=given["block_size"],
        chunk=given.get("max_num_batched_tokens", chunk),
        sequences=given.get("max_num_seqs", sequences),
        all_logits=given.get("logits") == "all",
        graphs=not given.get("enforce_eager"),
        window_cache=not given.get("disable_hybrid_kv_cache_manager"),
        engine=find_engine(given["engine"]),
        **{name: given[name] for name in ("batch", "context", "ep")},
    )


def _configuration(options: dict[str, Any]) -> dict[str, Any]:
    """The config.json that --model names; empty for a model of the catalogue."""
    path = Path(options["model"])
    return json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else {}


def _of_checkpoint(options: dict[str, Any], stated: str | None) -> tuple[str, ...]:
    """Notes on the weight format in config.json, and on how it was interpreted."""
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
    model, found = deployment.model, []
    if deployment.context > model.max_positions:
        found.append(
            f"Warning: {deployment.context:,} tokens exceed the {model.max_positions:,} positions "
            f"of {model.name}; engines refuse it unless its rotary embedding is scaled."
        )
    published = PUBLISHED_FORMATS.get(model.family)
    if published is not None and deployment.weights.name != published:
        found.append(f"{model.name} is published in {published}: --weights {published}.")
    wider = PUBLISHED_WIDER.get(model.name, {}).get(deployment.weights.name)
    if wider is not None:
        found.append(f"The published checkpoint leaves attention at 16 bits: --weights {wider}.")
    if model.mtp_layers:
        found.append("Multi-token-prediction layers are not loaded.")
    return tuple(found)
