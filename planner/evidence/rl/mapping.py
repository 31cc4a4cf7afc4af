"""Map a measured run of reinforcement learning to a job and the layout that it ran in."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from hardware.files import shipped_toml
from hardware.schema import Cluster
from planner.evidence.rl.lengths import RlLengths, lengths_of
from planner.evidence.rl.rows import RlRow
from planner.evidence.rl.settings import (
    USUAL,
    Taken,
    attention_kernel,
    chunk_of,
    engine_name,
    engine_of,
    engine_versions,
    fuses_rotary,
    generated_batches,
    judge,
    minibatches_of,
    named_cell,
    read_limit,
    reads_again,
    reference_word,
    staleness_of,
    trainer_leaves,
    tuning_text,
    updated_on_host,
    uses_graphs,
    usual_gpu,
    way_of,
)
from planner.evidence.runs.machine import cluster_of
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.recomputing import recompute_mode
from planner.evidence.runs.rows import MeasuredRow
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.models.catalog import load_model
from planner.job.quantities import stated
from planner.job.request import Request
from planner.job.request_fields import Overrides
from planner.job.rl.frameworks import RlFramework, find_rl_framework
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.job.sample_rows import row_tokens
from planner.job.samples import Packing
from planner.job.specs import ModelSpec
from planner.predict.configuration import Configuration, even_layout
from planner.predict.plan import Degrees
from planner.predict.rl.plan import RlLayout

# Frameworks as tables name them, and the modelled framework whose training loop they share.
_FRAMEWORKS = (
    # AReaL, ROLL, SkyRL, RLinf and EasyR1 have verl's trainers and engines.
    ("verl|rllm|areal|^roll\\b|skyrl|rlinf|easyr1", "verl"),
    ("nemo-?(rl|aligner)", "nemo-rl"),
    # DeepSpeed with vLLM's Ray engines.
    ("openrlhf|open-?instruct", "openrlhf"),
    ("slime|vime", "slime"),
    ("trl", "trl"),
    ("prime-?rl", "prime-rl"),
)
# Trainers as tables name them, and the framework's word for them.
_TRAINERS = (
    ("megatron-?fsdp", ""),
    ("megatron", "megatron"),
    # Both generations of FSDP hold the same tensors, around transformers' modelling code.
    ("fsdp|veomni", "fsdp2"),
    ("dtensor", "dtensor"),
    ("deepspeed", "deepspeed"),
    ("automodel", "automodel"),
)
_ALGORITHMS = (
    ("dapo", "dapo"), ("ppo", "ppo"), ("gspo", "gspo"), ("rloo|reinforce", "rloo"),
    ("gpg|grpo|aipo|swe|trainer step|training phase|weight sync", "grpo"),
)  # fmt: skip
# verl padded every sample to the limits of prompt and answer unless `use_remove_padding` was on,
# which its examples turned on in 2025.
_PADDED_UNTIL = "2025-01-01"
# verl's FSDP actors checkpoint unless told otherwise (`enable_gradient_checkpointing`), and so do
# most recipes of long answers. Its Megatron actors do not: that switch hands them the granularity
# of `gradient_checkpointing_kwargs`, which is null (single_controller/base/megatron/worker.py).
_USUAL_RECOMPUTE = "full"
_SWITCHED = "gradient checkpointing"
# Notes that give a complete recipe without packing.
_UNPACKED = r"^(?!.*(sequence packing|dynamic batching)).*logprob mbs"
# Packings with rows of one sample each, which Megatron's profiles do not list.
_OF_SAMPLES = ("padding-free", "limit", "longest")
# Batch for a run that only transfers weights or only trains; its samples do not matter.
_ANY_SAMPLES = 2
_ANY_PROMPTS = 64


@dataclass(frozen=True)
class RlMapped:
    """The job of a row and the layout that it ran in; `lengths` of its samples; `assumed`: usual
    values taken for facts that the row leaves out, in words."""

    row: RlRow
    job: RlJob
    layout: RlLayout
    lengths: RlLengths
    assumed: tuple[str, ...] = ()

    def learnt(self, cluster: Cluster | None) -> RlMapped:
        """The same run with a cluster's calibration, if it ran on that cluster's GPU."""
        own = self.job.trainer.cluster
        if cluster is None or own.gpu.name != cluster.gpu.name:
            return self
        known = own.model_copy(update={"calibration": cluster.calibration})
        trainer = replace(self.layout.trainer, job=replace(self.layout.trainer.job, cluster=known))
        job = replace(self.job, trainer=trainer.job)
        return replace(self, job=job, layout=replace(self.layout, trainer=trainer))


def map_rl(row: RlRow, taken: Taken = USUAL) -> RlMapped:
    """Job and layout of a row. UnpredictableRowError with the reason."""
    try:
        return _mapped(row, taken)
    except UsageError as error:
        raise UnpredictableRowError(str(error)) from None


def _mapped(row: RlRow, taken: Taken) -> RlMapped:
    framework = find_rl_framework(named_cell(_FRAMEWORKS, row, "framework"))
    _demand_no_tools(row)
    model = model_of(row)
    prompts, samples = _batch(row)
    trained, sampled = _gpus(row)
    cluster = _cluster(row, taken, trained)
    lengths = lengths_of(row, prompts * samples, model, _cluster(row, taken, trained + sampled))
    lengths = lengths.scaled(taken.response_scale, cut=not row.is_trainer_alone)
    lengths = replace(lengths, sigma=taken.sigma or lengths.sigma)
    request = _request(row, framework, lengths, (prompts, samples), cluster, taken)
    job = request.resolve()
    update = replace(_trained(row, request, job), cluster=cluster)
    own = _packed_as(packing_of(row, framework, lengths)[0], update)
    trainer = _trainer(row, own, taken)
    job = replace(
        job,
        trainer=trainer.job,
        staleness=(staleness_of(row),),
        fused_rotary=fuses_rotary(row),
        token_limit_read=read_limit(row, trainer),
        engine=replace(
            job.engine,
            graphs=uses_graphs(row),
            generation=engine_versions(row),
            chunk=chunk_of(row, job.engine.chunk),
        ),
    )
    layout = RlLayout(
        placement="separate" if row.is_separate else "colocated",
        trainer=trainer,
        engine=engine_of(row, framework, model, cluster, sampled or trained),
        staleness=staleness_of(row),
        critic=_critic(job, trainer),
        trainer_leaves=trainer_leaves(row, framework, taken),
        streams=row.is_asynchronous,
        way=way_of(row),
    )
    return RlMapped(row, job, layout, lengths, tuple(_assumed(row, lengths)))


def _trained(row: RlRow, request: RlRequest, job: RlJob) -> Job:
    """The update as it was measured: Megatron-Bridge's benchmarks of the trainer alone train on the
    next token, with the framework's own loss."""
    if not (row.is_trainer_alone and row.says("software", "megatron-bridge")):
        return job.trainer
    tokens = round(job.trainer.batch.sequences * job.trainer.row_tokens)
    given = {"framework": "megatron-bridge", "seq": job.trainer.seq, "gbs_tokens": tokens}
    return request.trainer.model_copy(update=given).resolve()


def _packed_as(packing: Packing, job: Job) -> Job:
    """The job with this packing if the trainer's profile does not list it but the
    reinforcement-learning framework makes such rows (of one sample each)."""
    if packing == job.samples.packing or job.samples.lengths is None:
        return job
    samples = replace(job.samples, packing=packing, packer="none")
    rows = job.batch.sequences * row_tokens(job.samples, job.seq) / job.samples.lengths.mean
    return replace(job, samples=samples, batch=replace(job.batch, sequences=rows))


@cache
def _model_names() -> tuple[tuple[str, str], ...]:
    return tuple(map(tuple, shipped_toml("planner.evidence.rl", "models.toml")["names"]))


def model_of(row: RlRow) -> ModelSpec:
    """The catalogue's model for a row. UnpredictableRowError."""
    text = row.text("model") or ""
    plain = re.sub(r"\s*\([^)]*\)$", "", text.rpartition("/")[2] if "/" in text[:20] else text)
    for name in (text, plain):
        known = next((to for form, to in _model_names() if re.fullmatch(form, name.lower())), None)
        if known is not None:
            plain = known
            break
    if not plain:
        raise UnpredictableRowError(f"model {text!r} cannot be identified")
    try:
        return load_model(plain).spec
    except UsageError:
        raise UnpredictableRowError(f"model {text!r} is not in the catalogue") from None


def _demand_no_tools(row: RlRow) -> None:
    """Raise UnpredictableRowError for samples that wait for tools, because no column states their
    seconds."""
    if row.says("algorithm", r"agent|multi-turn|\bswe\b") or row.says("reward", "environment"):
        raise UnpredictableRowError("the turns of tools and their seconds are not stated")


def _batch(row: RlRow) -> tuple[int, int]:
    """Prompts of a step, and samples per prompt. Arbitrary numbers for a transfer of weights that
    was measured alone. UnpredictableRowError if a number is not stated."""
    if row.is_transfer_alone:
        return _ANY_PROMPTS, _ANY_SAMPLES
    if row.is_trainer_alone:
        return _packs(row) // _ANY_SAMPLES, _ANY_SAMPLES
    samples = row.integer("samples_per_prompt")
    prompts = row.integer("prompts_per_step") or _prompts(row, samples)
    if prompts is None:
        raise UnpredictableRowError("prompts_per_step is not stated")
    if samples is None:
        raise UnpredictableRowError("samples_per_prompt is not stated")
    return prompts, samples


def _prompts(row: RlRow, samples: int | None) -> int | None:
    """Prompts of a step from the batch and number of its updates. verl counts the batch in prompts,
    others in samples. None if the row does not state both."""
    batch, updates = row.integer("train_global_batch"), row.integer("minibatches")
    if batch is None or updates is None:
        return None
    each = 1 if row.says("framework", "verl") else samples or 1
    return max(1, batch * updates // each)


def _packs(row: RlRow) -> int:
    """Packs in one step of a trainer that is measured alone."""
    if batch := row.integer("train_global_batch"):
        return batch
    each = row.noted(r"N micro-batches of")
    if not each:
        raise UnpredictableRowError("the batch of a step is not stated")
    ranks = (row.integer("train_gpus") or row.integer("num_gpus") or 1) // (
        (row.integer("train_cp") or 1) * (row.integer("train_tp") or 1)
    )
    return max(_ANY_SAMPLES, round(each) * ranks)


def _gpus(row: RlRow) -> tuple[int, int]:
    """(GPUs that train, separate GPUs that sample). UnpredictableRowError."""
    total = row.integer("num_gpus")
    trained = row.integer("train_gpus") or (None if row.is_separate else total)
    sampled = row.integer("rollout_gpus") if row.is_separate else 0
    if row.is_transfer_alone and trained is None:
        trained, sampled = (total // 2, total // 2) if total else _gpus_of_degrees(row)
    if not trained or (row.is_separate and sampled is None and not row.is_trainer_alone):
        raise UnpredictableRowError("the numbers of GPUs that train and that sample are not stated")
    return trained, sampled or 0


def _gpus_of_degrees(row: RlRow) -> tuple[int | None, int | None]:
    """(trainer GPUs, engine GPUs) of a measured weight transfer whose table has only the degrees of
    both sides."""
    found = [row.integer(f"train_{name}") for name in ("tp", "pp", "cp", "ep", "dp")]
    engine = row.integer("rollout_tp")
    if not any(found) or engine is None:
        return None, None
    tp, pp, cp, ep, dp = (one or 1 for one in found)
    return pp * max(ep, tp * cp * dp), engine * round(stated(row.noted(r"->.*DPN"), 1.0))


def _cluster(row: RlRow, taken: Taken, count: int) -> Cluster:
    cells = {
        "gpu": taken.gpu or (row.text("gpu") or usual_gpu(row)).partition("/")[0],
        "num_gpus": str(count),
        "gpus_per_node": row.text("gpus_per_node") or "",
    }
    return cluster_of(MeasuredRow(row.file, row.line, cells))


def _request(
    row: RlRow,
    framework: RlFramework,
    lengths: RlLengths,
    batch: tuple[int, int],
    cluster: Cluster,
    taken: Taken,
) -> RlRequest:
    """The request that `--rl` and its options would give for the row."""
    algorithm = named_cell(_ALGORITHMS, row, "algorithm")
    packing, limit = packing_of(row, framework, lengths)
    model = model_of(row)
    trainer = Request(
        model=model.name,
        gpus=f"{cluster.num_gpus}x{cluster.gpu.name}",
        framework=_profile(row, framework),
        precision="fp8" if row.says("train_precision", "fp8") else "bf16",
        lengths=lengths.text,
        packing="pack-varlen" if packing in _OF_SAMPLES else packing,
        train=tuning_text(row),
        optimizer_offload=updated_on_host(row),
        use=("fused-dispatch",) if model.moe and row.notes_say("deepep") else (),
        overrides=Overrides(model=_with_positions(model, max(limit, lengths.longest))),
    )
    resampled = taken.batches or (generated_batches(row) if row.resamples else None)
    return RlRequest(
        trainer=trainer,
        algorithm="dapo" if resampled else algorithm,
        prompts=batch[0],
        samples_per_prompt=batch[1],
        framework=framework.name,
        minibatches=minibatches_of(row, batch[0] * batch[1]),
        epochs=row.integer("epochs") or 1,
        placement="separate" if row.is_separate else "colocated",
        reference=reference_word(row),
        reward=judge(row),
        engine=engine_name(row),
        rollout_precision="fp8" if row.says("rollout_precision", "fp8") else "bf16",
        kv_share=row.number("kv_fraction"),
        token_limit=limit,
        old_logprobs=reads_again(row),
        resampling=resampled or (1.0 if algorithm == "dapo" else None),
    )


def _with_positions(model: ModelSpec, tokens: int) -> ModelSpec:
    """The model with enough positions for the run, even if it was made for fewer."""
    return model.model_copy(update={"max_positions": max(model.max_positions, tokens)})


def _profile(row: RlRow, framework: RlFramework) -> str:
    """The name of the trainer's profile."""
    if not row.text("train_backend") and row.is_transfer_alone:
        return framework.usual_trainer
    word = _trainer_word(row, framework)
    known = framework.trainers.get(word)
    if known is None:
        raise UnpredictableRowError(f"{framework.name} has no trainer {word!r}")
    return known


def _trainer_word(row: RlRow, framework: RlFramework) -> str:
    """The trainer: as stated; otherwise Megatron if degrees split layers, pipelines or experts,
    else the framework's first one."""
    if row.text("train_backend"):
        return named_cell(_TRAINERS, row, "train_backend")
    split = any((row.integer(f"train_{name}") or 1) > 1 for name in ("tp", "pp", "ep"))
    words = framework.trainers
    return "megatron" if split and "megatron" in words else next(iter(words))


def packing_of(row: RlRow, framework: RlFramework, lengths: RlLengths) -> tuple[Packing, int]:
    """How samples become the rows of a micro-batch, and the tokens of one row.

    A row's limit is for one GPU; ranks of context parallelism (Ulysses) share a micro-batch
    (verl/utils/seqlen_balancing.py; openrlhf/utils/seqlen_balancing.py). If neither a limit nor a
    number of samples is stated, the limit is the longest sample, as in verl's recipes
    (recipe/dapo/run_dapo_qwen2.5_32b.sh).
    """
    limit = row.integer("max_tokens_per_gpu")
    nemo = framework.name == "nemo-rl"
    if limit:
        # NeMo's dynamic batching sorts samples and pads those of a micro-batch to similar lengths,
        # up to this limit (distributed/batched_data_dict.py, shard_by_batch_size).
        ranks = 1 if nemo else row.integer("train_cp") or 1
        return "pack-varlen", max(limit * ranks, lengths.longest)
    if (nemo and not row.notes_say(_UNPACKED)) or (not nemo and row.is_trainer_alone):
        return "pack-varlen", lengths.longest
    if nemo and row.is_trainer_alone:
        # Padded to the longest of the batch, which may have any length up to the limit if samples
        # are unknown.
        return "longest", lengths.longest
    padded = nemo or (row.text("date") or _PADDED_UNTIL) < _PADDED_UNTIL
    by_samples = row.text("train_mbs") or row.notes_say("no dynamic batching")
    if framework.token_batches and not padded:
        tokens = lengths.longest * (row.integer("train_cp") or 1)
        return ("padding-free", lengths.longest) if by_samples else ("pack-varlen", tokens)
    return ("limit" if framework.token_batches else "longest"), lengths.longest


def _trainer(row: RlRow, job: Job, taken: Taken) -> Configuration:
    """The trainer's configuration. UnpredictableRowError if its degrees are not stated."""
    degrees = _degrees(row, job)
    if degrees.cp > 1 and not job.framework.parallelism.context:
        job = replace(job, context_kinds=("a2a",))
    job = replace(job, attention_kernel=attention_kernel(row))
    said = taken.recompute or _recomputation(row, job)
    cells = {"recompute": said, "framework": job.framework.name}
    mode = recompute_mode(MeasuredRow(row.file, row.line, cells), job.framework)
    layout = even_layout(job, degrees.pp, degrees.vpp, mode)
    return Configuration(replace(job, recompute=(mode,)), degrees, mode, layout)


def _recomputation(row: RlRow, job: Job) -> str:
    """The row's recomputation, as it takes effect in its framework."""
    said = row.text("recompute")
    null = job.framework.name.startswith("megatron") and row.says("framework", "verl")
    if null and (said is None or _SWITCHED in said):
        return "none"
    return said or _USUAL_RECOMPUTE


def _degrees(row: RlRow, job: Job) -> Degrees:
    found = {name: row.integer(f"train_{name}") for name in ("tp", "pp", "cp", "ep")}
    gpus = job.cluster.num_gpus
    sharded = not job.framework.name.startswith("megatron")
    alone = row.is_transfer_alone
    if not (sharded or alone) and gpus > 1 and not (found["tp"] or found["pp"]):
        raise UnpredictableRowError("tp and pp of the trainer are not stated")
    tp, pp, cp, ep = (one or 1 for one in found.values())
    dp = max(1, gpus // (tp * pp * cp))
    mbs = 1 if job.samples.packing == "pack-varlen" else row.integer("train_mbs") or 1
    mbs = max(1, min(mbs, ceil(job.batch.sequences / dp)))
    grad_acc = max(1, round(job.batch.sequences / (dp * mbs)))
    shard = _shard(row, dp * cp) if sharded else 0
    return Degrees(
        tp=tp, pp=pp, vpp=round(stated(row.noted("VPP N"), 1.0)), cp=cp, ep=min(ep, tp * cp * dp),
        etp=1 if ep > 1 else tp, dp=dp, zero=3 if sharded else 1, mbs=mbs, grad_acc=grad_acc,
        shard=shard,
    )  # fmt: skip


def _shard(row: RlRow, ranks: int) -> int:
    found = re.search(r"fsdp_size (\d+)", row.fact("train_zero_or_shard"))
    size = int(found[1]) if found else 0
    return size if 0 < size < ranks and ranks % size == 0 else 0


def _critic(job: RlJob, trainer: Configuration) -> Configuration | None:
    if job.critic is None:
        return None
    return replace(trainer, job=replace(trainer.job, model=job.critic))


def _assumed(row: RlRow, lengths: RlLengths) -> list[str]:
    """Sentences on the values assumed for facts that the row leaves out."""
    texts = []
    if lengths.counted == "open":
        texts.append(f"answers of {lengths.response:,} tokens on average")
    if not row.text("rollout_tp") and not row.is_trainer_alone:
        texts.append("engines with the fewest GPUs")
    if not row.text("kv_fraction"):
        texts.append("the framework's share for the engine")
    return texts
