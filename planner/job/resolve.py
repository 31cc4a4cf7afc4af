"""From a request to its `Job`: look up every name and make every fixed choice.

A request's `overrides` replace what would be looked up: the model, the machine in use, and the
profile as the settings of a launch change it.
"""

from __future__ import annotations

from dataclasses import replace

from constraints.axes import ContextKind
from hardware.schema import Cluster
from planner.job.amounts import Resolution, parse_reserve, parse_resolution
from planner.job.batches import global_batches
from planner.job.errors import UsageError
from planner.job.frameworks.adapters import tuned_profile, tuning_conditions
from planner.job.frameworks.demands import Demand, demand_conditions
from planner.job.frameworks.losses import (
    demand_adapters,
    objective_conditions,
    with_objective,
)
from planner.job.frameworks.profile import (
    FP32_PRECISIONS,
    DtypeModeName,
    FrameworkProfile,
    check_precision,
    demand_arithmetic,
    frameworks_with,
    on_gpu,
)
from planner.job.frameworks.switches import (
    Switches,
    kept_techniques,
    refuses_offload,
    site_of,
    switched,
    technique_conditions,
    unrefused_modes,
    with_techniques,
)
from planner.job.frameworks.techniques import TechniqueDecision, decide
from planner.job.frameworks.workspaces import workspace_bytes
from planner.job.images import vision_conditions
from planner.job.job import Job, offered_exchanges, searched_modes
from planner.job.lookups import (
    find_framework,
    find_model,
    job_cluster,
    teacher_of,
    trained_model,
    tuning_of,
)
from planner.job.objective import read_objective
from planner.job.offload import (
    OPTION,
    Modules,
    check_fraction,
    has_module,
    read_offload,
    searched_offloads,
    usable_modes,
)
from planner.job.optimizers import load_optimizer, shares_of
from planner.job.pool import Pool, SeveralTypes
from planner.job.reads import reads_of
from planner.job.recompute import RecomputeMode, demand_parts
from planner.job.request_fields import RequestFields
from planner.job.samples import Samples
from planner.job.sampling import (
    demand_answers,
    sample_conditions,
    samples_of,
)
from planner.job.schedules import schedule_name
from planner.job.seen import with_images
from planner.job.specs import ModelSpec
from planner.job.tuning import Tuning
from planner.job.unmodelled import modules_not_modelled


def resolve(request: RequestFields) -> Job:
    """The job with every name looked up. Raises UsageError."""
    words = request.gpu_words
    if isinstance(words, SeveralTypes):
        return _on_pool(request, words.pool())
    return _on_cluster(request)


def _on_pool(request: RequestFields, pool: Pool) -> Job:
    """The job on several clusters. It is the same on each, so techniques that one of them lacks are
    left out."""
    jobs = [_on_cluster(request.model_copy(update={"gpus": text})) for text in pool.texts]
    used = [set(job.techniques) for job in jobs]
    if left := used[0].union(*used) - used[0].intersection(*used):
        without = (*request.without, *sorted(left))
        return _on_pool(request.model_copy(update={"without": without}), pool)
    if not jobs[0].framework.parallelism.pipeline:
        raise UsageError(
            f"--gpus {request.gpus}: GPUs of several types share a job as pipeline stages, and "
            f"{jobs[0].framework.name} has no pipeline; give one type"
        )
    pool = replace(pool, parts=tuple(job.cluster for job in jobs))
    choices = [job.technique_choices for job in jobs]
    return replace(
        jobs[0],
        cluster=pool.worlds()[0],
        pool=pool,
        technique_choices=tuple(
            one for one in choices[0] if all(one in others for others in choices)
        ),
    )


def _on_cluster(request: RequestFields) -> Job:
    resolved = find_model(request)
    if resolved.left_out:
        raise UsageError(modules_not_modelled(resolved.asked, resolved.left_out))
    framework = find_framework(request)
    check_precision(framework, request.precision)
    if request.cublas_workspace_config is not None:
        workspace_bytes(request.cublas_workspace_config)
    dtype = _dtype(request, framework)
    profile = framework.in_mode(dtype)
    model = trained_model(request, resolved.spec, profile)
    tuning = tuning_of(request, model, profile)
    model = model.with_frozen(tuning.frozen_layers)
    objective = read_objective(request.objective, adapters=tuning.has_adapters)
    model = model.with_scores() if objective.rules.scores else model
    samples, seq = samples_of(request, profile, model)
    demand_answers(request, profile, samples, objective)
    samples, model = with_images(request, model, profile, tuning, samples, seq)
    cluster = job_cluster(request, profile)
    profile = switched(profile, _switches(request), cluster.num_gpus)
    decision = _techniques(request, profile, model, cluster, tuning, samples)
    offered, profile = profile, with_techniques(profile, decision.used, decision.unused)
    profile = tuned_profile(on_gpu(profile, cluster.gpu.architecture), tuning, model)
    demand_adapters(profile, objective, has_adapters=tuning.has_adapters)
    profile = with_objective(profile, objective)
    precision = request.precision
    demand_arithmetic(framework, cluster.gpu, precision)
    offload, choices = _activation_offload(request, profile, model)
    fraction = _offload_fraction(request, model)
    check_fraction(fraction, bool(offload or choices), profile)
    modes = _recompute_modes(request, profile, searched_modes(model, profile), model)
    if request.recompute is None:
        modes = usable_modes(profile, offload, modes, precision) or modes
        modes = unrefused_modes(offered, decision.used, modes) or modes
    batch, ramp = global_batches(request, seq, samples, objective.rules.rows)
    optimizer = load_optimizer(request.optimizer)
    share, shares = shares_of(request.optimizer_offload, profile, optimizer)
    return Job(
        model=model,
        cluster=cluster,
        framework=profile,
        optimizer=optimizer,
        batch=batch,
        ramp=ramp,
        seq=seq,
        samples=samples,
        precision=precision,
        dtype=dtype,
        attention=request.attention or profile.attention,
        recompute=modes,
        reserve=parse_reserve(request.hbm_reserve),
        fit_probability=request.fit_probability,
        resolution=_resolution(request, cluster),
        limits={name: frozenset(values) for name, values in request.limits.items()},
        conditions=(
            *request.conditions(),
            *technique_conditions(offered, decision.demanded),
            *tuning_conditions(profile, tuning),
            *objective_conditions(profile, objective),
            *vision_conditions(model),
            *sample_conditions(profile, samples),
            *demand_conditions(_demands(request, profile), model, tuning, samples),
        ),
        dropout=request.dropout,
        written_for=request.framework_word,
        expert_imbalance=request.expert_imbalance,
        allow_tp_across_domains=request.allow_tp_across_domains,
        model_alias=resolved.alias_of and request.model,
        optimizer_kernel=request.optimizer_kernel,
        optimizer_offload=share,
        offload_shares=shares,
        activation_offload=offload,
        offload_choices=choices,
        offload_fraction=fraction,
        techniques=kept_techniques(offered, profile, decision.used),
        technique_choices=decision.choices,
        schedule=_schedule(request, profile),
        context_kinds=_context_kinds(request, profile, model, seq, samples),
        context_inner=request.cp_sizes[0] if request.cp_sizes else 0,
        published_mtp=resolved.spec.mtp_layers,
        beside=resolved.beside,
        cublas_workspace_config=request.cublas_workspace_config,
        tuning=tuning,
        objective=objective,
        reads=reads_of(objective, teacher_of(objective, model, profile)),
    )


def _demands(request: RequestFields, profile: FrameworkProfile) -> tuple[Demand, ...]:
    """Conditions of the framework. Launch files may run jobs for which no file would be written."""
    return profile.demands if request.overrides.launched is None else ()


# --- precision, techniques, offload ---------------------------------------------------------------


def _dtype(request: RequestFields, framework: FrameworkProfile) -> DtypeModeName:
    """The dtype mode: fp32 if products are in fp32 or TF32, else as asked or the default.
    UsageError if precision and mode contradict each other."""
    wide = request.precision in FP32_PRECISIONS
    dtype = request.dtype or ("fp32" if wide else framework.usual_mode)
    if wide == (dtype == "fp32"):
        return dtype
    fix = "leave --dtype out" if wide else "give --precision fp32 or --dtype bf16 or amp"
    raise UsageError(
        f"--precision {request.precision} with --dtype {dtype}: fp32 products require fp32 "
        f"weights, gradients and activations, and the other way round; {fix}"
    )


def _switches(request: RequestFields) -> Switches:
    return Switches(
        sequence_parallel=request.sequence_parallel,
        gradient_as_bucket_view=request.gradient_as_bucket_view,
        set_to_none=request.set_to_none,
    )


def _techniques(
    request: RequestFields, profile: FrameworkProfile, model: ModelSpec, cluster: Cluster,
    tuning: Tuning, samples: Samples,
) -> TechniqueDecision:  # fmt: skip
    """Techniques that the job uses, and those that a search decides on. A launch uses what its
    files say, even if it does not work there."""
    launched = request.overrides.launched
    if launched is None:
        inside = not request.allow_tp_across_domains
        site = site_of(profile, model, cluster, inside=inside, tuning=tuning, samples=samples)
        return decide(profile.name, profile.techniques, request.use, request.without, site)
    names = [one.name for one in profile.techniques]
    return TechniqueDecision(
        used=tuple(name for name in names if name in launched.variations),
        unused=tuple(name for name in names if f"no-{name}" in launched.variations),
    )


def _offloaded(request: RequestFields, model: ModelSpec) -> str:
    """The modules of `activation_offload`. For a launch, without those that the model lacks,
    because Megatron ignores them."""
    if request.overrides.launched is None:
        return request.activation_offload
    names = [name for name in request.activation_offload.split(",") if has_module(name, model)]
    return ",".join(names) or "off"


def _offload_fraction(request: RequestFields, model: ModelSpec) -> float:
    """`activation_offload_fraction`; 1 if a launch offloads no module."""
    none = request.overrides.launched is not None and _offloaded(request, model) == "off"
    return 1.0 if none else request.activation_offload_fraction


def _activation_offload(
    request: RequestFields, profile: FrameworkProfile, model: ModelSpec
) -> tuple[Modules, tuple[Modules, ...]]:
    """The given modules, and the sets that the search chooses from, if it does."""
    text = _offloaded(request, model)
    if text == "off":
        return (), ()
    if name := refuses_offload(profile, request.use):
        raise UsageError(
            f"{OPTION} {request.activation_offload} with --with {name}: offloaded tensors in CUDA "
            "graphs are not modelled; leave one of them out  [activation-offload-cuda-graphs]"
        )
    if request.activation_offload == "search":
        return (), searched_offloads(profile, model, request.precision)
    return read_offload(text, profile, model), ()


def _recompute_modes(
    request: RequestFields,
    profile: FrameworkProfile,
    searched: tuple[RecomputeMode, ...],
    model: ModelSpec,
) -> tuple[RecomputeMode, ...]:
    if request.recompute is None:
        return searched
    modes = tuple(profile.recompute_mode(name) for name in request.recompute)
    for mode in modes:
        demand_parts(mode, model)
        if mode.block:
            raise UsageError(
                f"--recompute full:block={mode.block}: a search chooses the number of layers "
                "itself; give --recompute full"
            )
    return modes


# --- schedule, context exchange -------------------------------------------------------------------


def _context_kinds(
    request: RequestFields,
    profile: FrameworkProfile,
    model: ModelSpec,
    seq: int,
    samples: Samples,
) -> tuple[ContextKind, ...]:
    """The kinds of exchange that context parallelism may use. Raises UsageError."""
    offered, kind = profile.parallelism.context_kinds, request.cp_comm_type
    if request.cp_sizes and (kind != "a2a+p2p" or len(request.cp_sizes) != 2):
        raise UsageError(
            f"cp_sizes {list(request.cp_sizes)}: give two numbers, and only with the exchange "
            "a2a+p2p"
        )
    kinds = offered_exchanges(profile, model, seq)
    if samples.by_sample:
        # Groups of two levels are created once, for one number of ranks.
        kinds = tuple(one for one in kinds if one != "a2a+p2p")
        if kind == "a2a+p2p":
            raise UsageError(
                f"--cp-comm-type {kind} with --balance {samples.balance}: its two-level groups "
                f"have a fixed number of ranks; give {', '.join(kinds)}, or leave it out"
            )
    if request.overrides.launched is not None:
        kinds = _launched_exchanges(kind, kinds, profile)
    if kind is not None and kind not in (*offered, *kinds):
        raise UsageError(f"--cp-comm-type {kind}: {profile.name} has " + ", ".join(offered))
    return kinds if kind is None else tuple(one_kind for one_kind in kinds if one_kind == kind)


def _launched_exchanges(
    kind: ContextKind | None, kinds: tuple[ContextKind, ...], profile: FrameworkProfile
) -> tuple[ContextKind, ...]:
    """The exchange that the files set, or the framework's default. Rules check whether its kernels
    support it."""
    if kind is None:
        return kinds[:1]
    return kinds if profile.parallelism.context_in_transformer_engine else (kind,)


def _schedule(request: RequestFields, profile: FrameworkProfile) -> str | None:
    """The requested schedule, or the framework's default. UsageError if it has no such schedule."""
    offered = profile.parallelism.schedules
    if request.schedule is None:
        usual = offered[0]
        return None if usual in ("1f1b", "interleaved") else usual
    name = schedule_name(request.schedule)
    if name not in offered:
        having = frameworks_with(lambda other: name in other.parallelism.schedules)
        raise UsageError(
            f"--schedule {name}: {profile.name} has " + ", ".join(offered) + "; "
            f"frameworks that have it: {', '.join(having) or 'none'}"
        )
    return name


def _resolution(request: RequestFields, cluster: Cluster) -> Resolution:
    found, most = parse_resolution(request.resolution), cluster.gpu.hbm_usable_bytes
    if found.memory_bytes > most:
        raise UsageError(
            f"--resolution {request.resolution!r}: a GPU has {most / 2**30:.1f} GiB; give less"
        )
    return found
