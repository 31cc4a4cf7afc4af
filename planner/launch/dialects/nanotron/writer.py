"""Writer for nanotron (repository of 2026-04): a YAML file for its run_train.py."""

from __future__ import annotations

from collections.abc import Iterator

from constraints.layout_context import greedy_split
from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch.architecture import ArchitectureRow, lacking, row, settings
from planner.launch.architecture import refusals as architecture_refusals
from planner.launch.contract import (
    FOLDER,
    TRAIN_STEPS,
    TRIAL_STEPS,
    WARMUP_STEPS,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
    Variable,
    folder_variable,
    needed,
    pretrained_variable,
    ramp_refusals,
    rate_variable,
)
from planner.launch.options import last, run_options
from planner.launch.quoting import Value
from planner.launch.settings_text import (
    SettingsSection,
    WrittenSetting,
    filled,
    section_choices,
    yaml_text,
)
from planner.launch.time_limit import save_steps
from planner.predict.configuration import model_costs

PROGRAM, CONFIG = "train.py", "nanotron.yaml"
OPTIONS = run_options("nanotron")["run"]
VARIABLES = (
    needed(
        "NANOTRON",
        "folder of a nanotron checkout (2026-04)",
        holds="${NANOTRON}/run_train.py",
    ),
    pretrained_variable("a checkpoint of nanotron's (README.md says how to make one)"),
    Variable(
        "DATASET",
        "",
        "folder of tokens as nanotron reads them (Nanoset); empty: made up",
        holds="${DATASET}",
    ),
    Variable("TOKENIZER", "", "folder or name of their Hugging Face tokenizer; empty: none"),
    folder_variable("DATASET"),
    TRAIN_STEPS,
    WARMUP_STEPS,
    rate_variable("3e-4"),
    rate_variable("3e-5", "MIN_LEARNING_RATE", "last"),
)


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """What nanotron cannot express of the plan: it places the layers itself, and the plan's stages
    must be those."""
    pp, planned = launch.plan.degrees.pp, launch.plan.layout.block_layers
    built = stage_split(launch.job.model, pp)
    if pp == 1 or built == planned:
        return
    same = [count for count in range(pp, 0, -1) if _splits_evenly(launch.job.model, count)]
    yield Refusal(
        f"nanotron places the layers itself, by cost with the output projection counted: "
        f"{_listed(built)} on {pp} stages, not the plan's {_listed(planned)}",
        f"pp {same[0]}",
    )


def _listed(counts: tuple[int, ...]) -> str:
    return "+".join(str(count) for count in counts)


def _splits_evenly(model: ModelSpec, pp: int) -> bool:
    return model.layers % pp == 0 and stage_split(model, pp) == (model.layers // pp,) * pp


def stage_split(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers of each stage as nanotron places them."""
    return greedy_split(model.layers, pp, *model_costs(model))


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What nanotron cannot express of the job."""
    yield from architecture_refusals(NANOTRON, job.model, "nanotron", "--framework megatron-core")
    optimizer = job.optimizer
    if optimizer.family != "adamw" or any(dtype != "fp32" for _, dtype in optimizer.states):
        yield Refusal(
            f"nanotron trains with AdamW and fp32 moments, not with {optimizer.name}",
            "--optimizer adamw",
        )
    if job.optimizer_setting.kernel == "foreach":
        yield Refusal("nanotron has AdamW fused or one by one", "--optimizer-kernel fused")
    if job.attention == "eager":
        yield Refusal("nanotron runs flash attention", "--attention flash")
    if job.dropout:
        yield Refusal("nanotron's Llama has no dropout", "no --dropout")
    yield from ramp_refusals(job, "nanotron")


def files(launch: Launch) -> Files:
    """The YAML file, and the program that puts the user's variables into it."""
    gpus = launch.plan.degrees.gpus
    written: dict[str, Value] = {"model": launch.job.model.name, "gpus": gpus}
    config = filled(
        f"nanotron/{CONFIG}.txt", **written, sections=yaml_text(sections(launch)).rstrip("\n")
    )
    program = filled(f"nanotron/{PROGRAM}.txt", save_steps=save_steps(launch), folder=FOLDER)
    return {CONFIG: config, PROGRAM: program}


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The sections of the file that the plan decides."""
    return (
        SettingsSection("parallelism", tuple(_parallelism(launch))),
        SettingsSection("model", tuple(_model(launch))),
        SettingsSection("tokens", tuple(_tokens(launch))),
        SettingsSection("optimizer", tuple(_optimizer(launch))),
    )


def _parallelism(launch: Launch) -> Iterator[WrittenSetting]:
    degrees = launch.plan.degrees
    yield WrittenSetting(last(OPTIONS["dp"]), degrees.dp)
    yield WrittenSetting(last(OPTIONS["tp"]), degrees.tp)
    split = _listed(launch.plan.layout.block_layers)
    yield WrittenSetting(
        last(OPTIONS["pp"]), degrees.pp, f"layers by stage: {split}" if degrees.pp > 1 else ""
    )
    engine = OPTIONS["schedule"]
    yield WrittenSetting(last(engine), engine.text(launch.plan.schedule))
    whole = launch.splits_sequence
    reason = f"with{'' if whole else 'out'} sequence parallelism" if degrees.tp > 1 else ""
    mode = OPTIONS["no-sequence-parallel"]
    yield WrittenSetting(last(mode), mode.text(not whole), reason)
    yield WrittenSetting(
        "tp_linear_async_communication",
        False,
        "exchanges are not hidden behind products, as the prediction counts"
        if degrees.tp > 1
        else "",
    )
    keeps = launch.job.framework.saved.keeps_gathered_inputs
    yield WrittenSetting(
        "tp_recompute_allgather",
        not keeps,
        "" if degrees.tp == 1 else ("gathered inputs are kept" if keeps else "gathered again"),
    )
    recompute = last(OPTIONS["recompute"])
    yield WrittenSetting(recompute, launch.recomputes_layers, launch.recompute_reason)
    yield WrittenSetting(last(OPTIONS["ep"]), degrees.ep)
    yield WrittenSetting(last(OPTIONS["cp"]), degrees.cp)


def _model(launch: Launch) -> Iterator[WrittenSetting]:
    yield WrittenSetting("dtype", "bfloat16")
    yield WrittenSetting("init_method", {"std": settings(NANOTRON, launch.job.model)[_STD]})
    yield WrittenSetting("make_vocab_size_divisible_by", 1)
    yield WrittenSetting("ddp_bucket_cap_mb", 25)
    yield WrittenSetting(
        "model_config",
        model_config(launch.job.model),
        "token ids are PLACEHOLDERS: your tokenizer's",
    )


# How nanotron says a model: keys of model_config, but for the initialiser.
_STD = "init_method.std"
NANOTRON: tuple[ArchitectureRow, ...] = (
    row("hidden", "hidden_size"),
    row("ffn", "intermediate_size"),
    row("layers", "num_hidden_layers"),
    row("heads", "num_attention_heads"),
    row("kv_heads", "num_key_value_heads"),
    row("vocab", "vocab_size"),
    row("max_positions", "max_position_embeddings"),
    row("activation", "hidden_act"),
    row("tied_embeddings", "tie_word_embeddings"),
    row("qkv_bias", "attention_bias", default=False),
    row("rope.theta", "rope_theta"),
    row("norm_eps", "rms_norm_eps"),
    row("init_std", _STD),
    *lacking({"qkv-bias", "tied"}),
)  # fmt: skip


def model_config(model: ModelSpec) -> dict[str, Value]:
    """Llama, or Qwen2 where query, key and value have biases."""
    kind = "is_qwen2_config" if model.qkv_bias else "is_llama_config"
    values = settings(NANOTRON, model)
    del values[_STD]
    return {
        kind: True,
        **values,
        "rope_interleaved": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "_attn_implementation": "flash_attention_2",
    }


def _tokens(launch: Launch) -> Iterator[WrittenSetting]:
    degrees = launch.plan.degrees
    yield WrittenSetting(last(OPTIONS["seq"]), launch.plan.seq)
    yield WrittenSetting(last(OPTIONS["mbs"]), degrees.mbs)
    yield WrittenSetting(
        last(OPTIONS["grad_acc"]),
        degrees.grad_acc,
        f"global batch {degrees.gbs} = {degrees.mbs} · {degrees.grad_acc} · dp {degrees.dp}; "
        f"{launch.plan.gbs_tokens:,} tokens",
    )
    yield WrittenSetting("train_steps", TRIAL_STEPS, "TRAIN_STEPS sets it", told=False)


def _optimizer(launch: Launch) -> Iterator[WrittenSetting]:
    zero = launch.plan.degrees.zero
    reasons = {0: "every data-parallel rank holds it", 1: "sharded over the data-parallel ranks"}
    yield WrittenSetting(last(OPTIONS["zero"]), zero, f"optimizer state: {reasons[zero]}")
    yield WrittenSetting(last(OPTIONS["bf16-gradients"]), True)
    yield WrittenSetting("clip_grad", 1.0)
    yield WrittenSetting("weight_decay", 0.1)
    fused = launch.job.optimizer_setting.kernel == "fused"
    yield WrittenSetting(
        "optimizer_factory",
        {
            "name": "adamW",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "torch_adam_is_fused": fused,
        },
    )


def command(launch: Launch) -> RunCommand:  # noqa: ARG001 (the writers' contract)
    """nanotron's run_train.py with the file."""
    return RunCommand(
        argv=(PROGRAM, "${NANOTRON}/run_train.py", "--config-file", CONFIG),
        environment={
            "CUDA_DEVICE_MAX_CONNECTIONS": (
                "1",
                "kernels start in the order of issue, on which nanotron's overlap relies",
            )
        },
        variables=VARIABLES,
    )


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings worth a sentence."""
    return section_choices(sections(launch))


def requirements(launch: Launch) -> tuple[str, ...]:  # noqa: ARG001 (the writers' contract)
    """Packages that the file is written for."""
    return (
        "nanotron from its repository, 2026-04 (not the stale 0.4 of PyPI)",
        "flash-attn>=2.5",
        "torch>=2.5",
    )
