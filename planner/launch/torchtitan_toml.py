"""Writer for torchtitan 0.2.2: a TOML file, and a module with the model's size where needed.

The last version that reads TOML, and the last with checkpointing of every k-th layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch.architecture import all_settings
from planner.launch.architecture import refusals as architecture_refusals
from planner.launch.contract import Branch, Choice, Command, Files, Launch, Refusal, save_steps
from planner.launch.options import TORCHTITAN, last
from planner.launch.settings_text import (
    Section,
    Setting,
    python_value,
    section_choices,
    toml_text,
)
from planner.launch.titan_plan import (
    COMPILE,
    DEMANDS,
    ENVIRONMENT,
    KERNELS,
    SAMPLES,
    TRIAL,
    VARIABLES,
    async_tensor,
    mesh_of,
    plan_refusals,
    recompute_kind,
    run_refusals,
    sample_files,
    shared_parallelism,
    shared_training,
)
from planner.launch.titan_table import FLAVORS_0_2, Flavor, flavor_of, titan_table_0_2

VERSION = "0.2.2"
FILE, SIZE_MODULE, SIZE = "torchtitan.toml", "planned_model", "planned"
# Precision -> kind of torchtitan's converters, and their recipe.
_LOW = {"fp8": ("float8", "rowwise"), "mxfp8": ("mx", "mxfp8_cublas")}


def refusals(launch: Launch) -> Iterator[Refusal]:
    """What torchtitan 0.2.2 cannot express of the plan."""
    yield from job_refusals(launch.job)
    yield from plan_refusals(launch)
    degrees = launch.plan.degrees
    if mesh_of(degrees).shard * degrees.cp == 1:
        yield Refusal(
            "torchtitan 0.2.2 keeps bf16 compute with fp32 parameters only where FSDP shards "
            "(dp_shard·cp > 1); otherwise it trains under autocast, which this plan is not "
            "costed for",
            "zero 2 or 3 over more than one rank, or --framework torchtitan (0.3)",
        )


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What torchtitan 0.2.2 cannot express of the job."""
    optimizer, model = job.optimizer, job.model
    if not flavor_of(model, FLAVORS_0_2):
        nearest = "--framework torchtitan (0.3), or megatron-core"
        table = titan_table_0_2(model)
        yield from architecture_refusals(table, model, "torchtitan 0.2.2", nearest)
    yield from run_refusals(job)
    if optimizer.family != "adamw" or any(dtype != "fp32" for _, dtype in optimizer.states):
        yield Refusal(
            f"torchtitan 0.2.2 trains with AdamW and fp32 moments, not with {optimizer.name}",
            "--optimizer adamw",
        )
    if job.precision == "mxfp8" and job.cluster.gpu.vendor != "nvidia":
        yield Refusal("torchtitan runs mxfp8 on NVIDIA Blackwell only", "--precision fp8")


def files(launch: Launch) -> Files:
    """The TOML file, and the module that registers the size if torchtitan has none such."""
    gpus = f"{launch.plan.degrees.gpus} x {launch.job.cluster.gpu.name}"
    header = (
        f"# torchtitan {VERSION}: {launch.job.model.name} on {gpus}\n"
        f"# torchrun ... -m torchtitan.train --job.config_file {FILE}\n\n"
    )
    found = {FILE: header + toml_text(sections(launch)), **sample_files()}
    if _flavor(launch) is None:
        found[f"{SIZE_MODULE}.py"] = _size_module(launch.job.model)
    return found


def command(launch: Launch) -> Command:
    """torchtitan's trainer with the file."""
    return Command(
        argv=("-m", "torchtitan.train", "--job.config_file", FILE,
              "--model.hf_assets_path", "${HF_ASSETS}", "--training.steps", "${TRAIN_STEPS}"),
        variables=VARIABLES,
        branches=(
            Branch("DATASET", ("--training.dataset_path", "${DATASET}")),
            Branch("CHECKPOINTS", ("--checkpoint.enable", "--checkpoint.folder", "${CHECKPOINTS}",
                                   "--checkpoint.interval", str(save_steps(launch)))),
        ),
        environment=ENVIRONMENT,
        demands=DEMANDS,
    )  # fmt: skip


def choices(launch: Launch) -> Iterator[Choice]:
    """The settings worth a sentence."""
    return section_choices(sections(launch))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the file is written for."""
    low = ["torchao>=0.14"] if launch.job.precision in _LOW else []
    return (f"torchtitan=={VERSION}", "torch>=2.10", *low)


# --- the sections ---------------------------------------------------------------------------


def sections(launch: Launch) -> tuple[Section, ...]:
    """The tables of the file."""
    custom = _flavor(launch) is None
    size_module = Setting("custom_import", SIZE_MODULE, "registers the size below")
    return (
        Section("job", (Setting("dump_folder", "./outputs"),)),
        *([Section("experimental", (size_module,))] if custom else []),
        _model(launch),
        _parallelism(launch),
        _training(launch),
        Section("activation_checkpoint", tuple(_recompute(launch))),
        _optimizer(launch),
        Section("lr_scheduler", (Setting("warmup_steps", 10, "PLACEHOLDER", told=False),)),
        COMPILE,
        *_quantize(launch),
        Section("metrics", (Setting("log_freq", 1),)),
    )  # fmt: skip


def _flavor(launch: Launch) -> Flavor | None:
    """The registered size; none with context parallelism in latent attention, whose registered
    sizes use FlexAttention, which 0.2.2 does not split."""
    if launch.job.model.mla and launch.plan.degrees.cp > 1:
        return None
    return flavor_of(launch.job.model, FLAVORS_0_2)


def _model(launch: Launch) -> Section:
    flavor, model = _flavor(launch), launch.job.model
    kind = flavor.module if flavor else _module_name(model)
    shape = f"{model.name}: {model.layers} layers of {model.hidden}, from {SIZE_MODULE}.py"
    return Section(
        "model",
        (
            Setting("name", kind),
            Setting(
                "flavor",
                flavor.name if flavor else SIZE,
                "" if flavor else shape,
            ),
            *_converters(launch),
        ),
    )


def _module_name(model: ModelSpec) -> str:
    return "deepseek_v3" if model.mla else "qwen3"


def _parallelism(launch: Launch) -> Section:
    degrees = launch.plan.degrees
    experts = Setting(last(TORCHTITAN["etp"]), 1 if degrees.ep > 1 else degrees.etp)
    return shared_parallelism(launch, "output", *async_tensor(launch), experts)


def _training(launch: Launch) -> Section:
    data = (
        Setting("dataset", "c4_test", "files of a folder: nothing from the internet", told=False),
        Setting("dataset_path", SAMPLES, "PLACEHOLDER: your data", told=False),
    )
    return Section("training", (*shared_training(launch), TRIAL, *data))


def _recompute(launch: Launch) -> Iterator[Setting]:
    kind = recompute_kind(launch)
    mode = launch.job.framework.recompute_mode(launch.plan.recompute)
    names = {"none": "none", "full": "full", "budget": "memory_budget"}
    yield Setting("mode", names.get(kind, "selective"), f"recompute: {launch.plan.recompute}")
    if kind == "selective":
        why = "keeps attention and every second product of a layer"
        yield Setting(last(TORCHTITAN["recompute-of"]), "op", why)
    if kind == "every":
        yield Setting(
            last(TORCHTITAN["recompute-of"]), str(mode.every), f"every {mode.every}. layer"
        )
    if kind == "budget":
        yield Setting("memory_budget", mode.budget, "the compiler picks what to keep")
    if kind in ("full", "every", "selective"):
        why = "stops once the last tensor that backward needs is back, as the prediction counts"
        yield Setting("early_stop", launch.job.framework.recomputing.stops_early, why)


def _optimizer(launch: Launch) -> Section:
    kernel = KERNELS[launch.job.optimizer_setting.kernel]
    return Section(
        "optimizer",
        (
            Setting("name", "AdamW"),
            Setting("implementation", kernel),
            Setting("lr", 3e-4, "PLACEHOLDER: your learning rate", told=False),
        ),
    )


def _converters(launch: Launch) -> list[Setting]:
    if launch.job.precision not in _LOW:
        return []
    kind, _ = _LOW[launch.job.precision]
    names = [f"quantize.linear.{kind}"]
    names += [f"quantize.grouped_mm.{kind}"] if launch.job.model.moe else []
    return [Setting("converters", names, f"products in {launch.job.precision}")]


def _quantize(launch: Launch) -> list[Section]:
    """Recipes of the converters: output projection and router stay in bf16."""
    if launch.job.precision not in _LOW:
        return []
    kind, recipe = _LOW[launch.job.precision]
    skip = Setting("filter_fqns", ["output", "router.gate"], "these stay in bf16")
    found = [Section(f"quantize.linear.{kind}", (Setting("recipe_name", recipe), skip))]
    if launch.job.model.moe is not None:
        found.append(Section(f"quantize.grouped_mm.{kind}", (Setting("fqns", ["experts"]),)))
    return found


# --- a size of one's own --------------------------------------------------------------------


def _size_module(model: ModelSpec) -> str:
    module = _module_name(model)
    names = {"qwen3": ("Qwen3ModelArgs", "qwen3_args"),
             "deepseek_v3": ("DeepSeekV3ModelArgs", "deepseekv3_args")}  # fmt: skip
    kind, registry = names[module]
    imports = [f"from torchtitan.models.{module} import {registry}, {kind}"]
    imports += ["from torchtitan.models.moe import MoEArgs"] if model.moe else []
    lines = [
        f'"""Size of {model.name} for torchtitan {VERSION}, under the name "{SIZE}"."""',
        "",
        *imports,
        "",
        f'{registry}["{SIZE}"] = {kind}(',
        *[f"    {name}={value}," for name, value in _arguments(model).items()],
        ")",
    ]
    return "\n".join(lines) + "\n"


# Keys of the table that stand in the router's arguments.
_ROUTER = ("num_experts", "top_k", "load_balance_coeff", "score_func", "route_norm", "route_scale",
           "num_expert_groups", "num_limited_groups")  # fmt: skip
# DeepSeek's names here -> in 0.3.
_OLDER = {"dense_hidden_dim": "inter_dim", "moe_hidden_dim": "moe_inter_dim"}
_ELSEWHERE = (*_ROUTER, "shared_experts", "num_shared_experts", "EXPERT_LAYERS")


def _arguments(model: ModelSpec) -> dict[str, object]:
    """Arguments of the size: values of the table, the router's in a table of their own."""
    table = titan_table_0_2(model)
    values = {key: value for key, (value, _) in all_settings(table, model).items()}
    one_table: dict[str, object] = {
        _OLDER.get(key, key): value for key, value in values.items() if key not in _ELSEWHERE
    }
    if model.moe is None:
        return one_table
    shared = model.moe.shared_ffn // model.moe.ffn
    router = {"num_shared_experts": shared, **{key: values[key] for key in _ROUTER}}
    lines = "".join(f"        {key}={python_value(value)},\n" for key, value in router.items())
    one_table |= {"moe_args": f"MoEArgs(\n{lines}        score_before_experts=False,\n    )"}
    return one_table | ({} if model.mla else {"moe_enabled": True})
