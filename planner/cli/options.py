"""Options that commands share, and what they become: a `Request`, limits, an output file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from planner.cli import complete
from planner.cli import option_types as types

if TYPE_CHECKING:
    from constraints.numbers import DegreeLimit
    from planner.job.job import Job
    from planner.job.request import Request


Command = TypeVar("Command", bound=Callable[..., Any])

# Degrees that can be limited in a search, with their help.
LIMITS = {
    "tp": "Tensor parallelism: 8, 1,2,4,8, ..8 or 2..",
    "pp": "Pipeline stages.",
    "vpp": "Virtual (interleaved) chunks per stage.",
    "cp": "Context parallelism.",
    "ep": "Expert parallelism.",
    "etp": "Tensor parallelism inside experts.",
    "dp": "Data parallelism.",
    "zero": "ZeRO stage: 0, 1 (distributed optimizer), 2, 3 (FSDP).",
    "shard": "Ranks that share a parameter under ZeRO (HSDP); 0: all of dp·cp.",
    "mbs": "Micro-batch, sequences.",
}
# Degrees whose option has another name.
_OPTION_NAMES = {"shard": "shard-size"}


# Degrees of one given configuration, with their help and default (None: derived).
_DEGREES: tuple[tuple[str, int | None, str], ...] = (
    ("tp", 1, "Tensor parallelism."),
    ("pp", 1, "Pipeline stages."),
    ("vpp", 1, "Chunks per stage."),
    ("cp", 1, "Context parallelism."),
    ("ep", 1, "Expert parallelism."),
    ("etp", 1, "TP inside experts."),
    ("dp", None, "Data parallelism. [default: from the GPUs]"),
)
# No model has more experts than this for one rank to take the load of.
MOST_IMBALANCE = 4096


def together(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Several decorators as one; the first is listed first in --help."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def model_option(required: bool = True) -> Callable[[Command], Command]:
    """`--model`, as every command takes it."""
    return click.option(
        "--model",
        required=required,
        shell_complete=complete.models,
        help="Name or alias (70b), or path to a Hugging Face config.json or a model .toml.",
    )


gpus_option = click.option(
    "--gpus", shell_complete=complete.gpus, help="64xH100, or nodes x GPUs: 8x8xH100."
)
cluster_option = click.option(
    "--cluster", type=types.FILE, help="Instead of --gpus: a TOML file that describes it."
)
# How it is trained, with which framework and batch.
training_options = together(
    click.option(
        "--gbs-tokens", type=types.TOKENS, help="Global batch in tokens: 4M = 4·10^6, 4Mi = 4·2^20."
    ),
    click.option("--gbs", type=types.SEQUENCES, help="Instead: global batch in sequences, exact."),
    click.option(
        "--gbs-tolerance",
        type=types.Number(0, 1, high_open=True),
        default=0.05,
        help="Share by which a plan's batch may differ from --gbs-tokens.",
    ),
    click.option(
        "--seq",
        type=types.SEQUENCE,
        help="Sequence length in tokens. [default: the model's pretraining length]",
    ),
    click.option(
        "--framework",
        shell_complete=complete.frameworks,
        default="megatron-core",
        help="See: planner frameworks.",
    ),
    click.option(
        "--precision",
        show_default="bf16",
        help="bf16, fp16, fp8, mxfp8, nvfp4, or fp32 and tf32, whose weights and "
        "gradients are fp32: as GPU and framework have them.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["bf16", "amp", "fp32"]),
        help="Weights in 16 bits, in fp32 under autocast, or fp32 throughout. "
        "[default: the framework's usual one]",
    ),
    click.option(
        "--optimizer",
        default="adamw",
        metavar="NAME[:KEY=TYPE,...]",
        help="adamw, adamw-bf16, adamw-fp8, adamw-8bit, adamw-4bit, adafactor, "
        "adafactor-momentum, lion, muon, sgd; types as adamw:exp_avg=fp8,master=fp16 or "
        "sgd:momentum=none.",
    ),
    click.option(
        "--optimizer-kernel",
        type=click.Choice(["fused", "foreach", "forloop"]),
        help="How torch updates parameters. [default: as the framework does]",
    ),
    click.option(
        "--optimizer-offload",
        metavar="SHARE|search",
        default="0",
        type=types.SHARE,
        help="Share of optimizer state and update on the CPU; search: the best for each plan.",
    ),
    click.option(
        "--activation-offload",
        metavar="off|all|search|MODULES",
        default="off",
        type=types.MODULES,
        help="Activations kept on the host, by module, as core_attn,attn_proj; search: the "
        "best for each plan.",
    ),
    click.option(
        "--activation-offload-fraction",
        default="1",
        type=types.FRACTION,
        help="Of the layers' activations that can leave the GPU; searches take 1.",
    ),
    click.option(
        "--attention",
        type=click.Choice(["flash", "eager"]),
        help="Fused attention kernels, or scores kept in memory. [default: the "
        "framework's, flash but for textbooks]",
    ),
    click.option(
        "--schedule",
        metavar="NAME",
        help="Pipeline schedule: 1f1b, interleaved, gpipe, zb-h1, zb-h2, zb-v, dualpipe, "
        "dualpipev. [default: the framework's usual]",
    ),
    click.option(
        "--cp-comm-type",
        type=click.Choice(["p2p", "all_gather", "a2a", "a2a+p2p"]),
        help="How context parallelism exchanges. [default: the fastest in a search, else "
        "the framework's usual]",
    ),
    click.option(
        "--with",
        "use",
        metavar="TECHNIQUE",
        multiple=True,
        help="A technique of the framework that every plan uses (planner frameworks NAME "
        "lists them); may be given again.",
    ),
    click.option(
        "--without",
        metavar="TECHNIQUE",
        multiple=True,
        help="A technique of the framework that no plan uses; may be given again.",
    ),
    click.option(
        "--sharp",
        is_flag=True,
        help="InfiniBand switches reduce gradients (SHARP): Megatron's --use-sharp.",
    ),
    click.option(
        "--sequence-parallel/--no-sequence-parallel",
        default=True,
        help="Activations outside the tensor-parallel products are split over tp.",
    ),
    click.option(
        "--gradient-as-bucket-view",
        is_flag=True,
        help="DDP: gradients are views of the buckets, not copies.",
    ),
    click.option(
        "--set-to-none/--no-set-to-none",
        default=True,
        help="zero_grad frees gradients, or zeroes them in place.",
    ),
    click.option(
        "--cublas-workspace-config",
        metavar=":KIB:COUNT",
        help="CUBLAS_WORKSPACE_CONFIG of the run. [default: torch's for the GPU]",
    ),
    click.option(
        "--bias/--no-bias",
        default=True,
        help="Biases of linear layers and norms, where the model has them.",
    ),
    click.option("--dropout", is_flag=True, help="The model trains with dropout."),
    click.option(
        "--expert-imbalance",
        type=types.Number(1, MOST_IMBALANCE),
        default=1.0,
        help="Load of the busiest expert rank over the mean.",
    ),
    click.option(
        "--hbm-reserve", default="0", help="HBM to keep free: a share (0.05, 5%) or a size (4GiB)."
    ),
    click.option(
        "--fit-probability",
        default="80%",
        type=types.PROBABILITY,
        help="How surely a plan must fit its GPUs, by the error of memory predictions; "
        "faster plans that fit less surely are listed apart.",
    ),
    click.option(
        "--allow-tp-across-nodes", is_flag=True, help="Let TP groups leave the NVLink domain."
    ),
)


# What is trained, on what and how.
job_options = together(model_option(), gpus_option, cluster_option, training_options)


# One given configuration: degrees, batch, where layers live and which recompute.
configuration_options = together(
    *(
        click.option(f"--{name}", type=types.DEGREE, default=default, help=text)
        for name, default, text in _DEGREES
    ),
    click.option(
        "--zero", type=click.IntRange(0, 3), help="ZeRO stage. [default: the framework's usual one]"
    ),
    click.option("--mbs", type=types.DEGREE, default=1, help="Micro-batch, sequences."),
    click.option(
        "--grad-acc",
        type=types.MICRO_BATCHES,
        help="Micro-batches per step; without --gbs and --gbs-tokens it sets the batch.",
    ),
    click.option(
        "--layers-per-stage",
        type=types.LAYERS,
        help="Uneven layers, one number for each of the pp·vpp blocks: 19,20,20,21 or 4,5x14,4.",
    ),
    click.option(
        "--mtp-standalone",
        is_flag=True,
        help="Multi-token prediction in the block before the last, which then holds head "
        "and loss alone (0 layers).",
    ),
    click.option(
        "--shard-size",
        type=types.SHARD,
        default=0,
        help="Ranks that share a parameter under ZeRO (HSDP). 0: all of dp·cp.",
    ),
    click.option(
        "--recompute",
        default="none",
        metavar="MODE",
        help="none, full, selective, modules (layernorm,moe_act), full/2 (every 2nd "
        "layer), full:uniform=4, full:block=4, budget=0.5: as the framework has them.",
    ),
    click.option(
        "--recompute-layers",
        type=types.LAYERS,
        help="Layers of each stage that recompute. [default: all]",
    ),
)


# Limits on the degrees that a search may use.
limit_options = together(
    *(
        click.option(
            f"--{_OPTION_NAMES.get(name, name)}",
            name,
            metavar="VALUES",
            type=types.degree_limit(name),
            help=text,
        )
        for name, text in LIMITS.items()
    )
)


ramp_option = click.option(
    "--batch-ramp",
    metavar="RAMP",
    type=types.RAMP,
    help="A batch that grows: 3072..15360/469B, or 4M:252M,8M:2.87T,16M (batch:tokens until which "
    "it holds); its last is the global batch.",
)


# Conditions on a configuration, in the user's own words; each may be given several times.
condition_options = together(
    click.option(
        "--require",
        multiple=True,
        type=types.condition("require", "pp <= 4"),
        help='What a plan must obey, as "pp <= 4" or "tp*cp in (4, 8)". Names: tp, pp, '
        "vpp, cp, ep, etp, dp, edp, zero, shard, mbs, grad_acc (num_microbatches), gbs, "
        "gbs_tokens, gpus (world), nodes, gpus_per_node, domain, seq, layers, heads, "
        "kv_heads, experts.",
    ),
    click.option(
        "--forbid",
        multiple=True,
        type=types.condition("forbid", "zero == 3"),
        help='What no plan may do, as "zero == 3".',
    ),
    click.option(
        "--fix",
        metavar="NAME=NUMBER",
        multiple=True,
        type=types.condition("fix", "mbs=1"),
        help="One value alone: mbs=1.",
    ),
)


# Where results go, and in which form.
output_options = together(
    click.option("--json", "as_json", is_flag=True, help="Print the plan file, nothing else."),
    click.option("--csv", "as_csv", is_flag=True, help="Print one row a plan, SI units."),
    click.option(
        "-o", "--output", type=types.FILE, help="Write a plan file that later commands read."
    ),
    click.option("--force", is_flag=True, help="Overwrite the output file."),
    click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)


def time_limit_option(help_text: str) -> Callable[[Command], Command]:
    """`--time-limit SECONDS` of a command that searches."""
    return click.option("--time-limit", metavar="SECONDS", type=types.TIME_LIMIT, help=help_text)


OutputFormat = Literal["text", "json", "csv"]


def output_format(as_json: bool, as_csv: bool) -> OutputFormat:
    """The one format asked for."""
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, not both")
    return "json" if as_json else "csv" if as_csv else "text"


def build_request(options: dict[str, Any], **more: Any) -> Request:
    """The request that the shared options make; a command without some takes their defaults."""
    from planner.job.request import Request

    named = Request.model_fields.keys() - {"recompute", "limits", "cp_sizes"}
    fields = {name: value for name, value in options.items() if name in named}
    if fields["precision"] is None:
        del fields["precision"]
    return Request(**fields, allow_tp_across_domains=options["allow_tp_across_nodes"], **more)


_ZERO_STAGES = range(4)


def with_limits(request: Request, options: dict[str, Any], job: Job) -> Request:
    """The request with the limits on degrees that the options set."""
    limits = limit_values(options, job)
    return request.model_copy(update={"limits": limits}) if limits else request


def limit_values(options: dict[str, Any], job: Job) -> dict[str, tuple[int, ...]]:
    """Values of each limited degree.

    Numbers that the user names stay as they are; a range stands for the values in it that a
    search tries: divisors of the GPUs, of the layers or of the experts, and powers of two.
    """
    return {
        name: _limited(options[name], name, job) for name in LIMITS if options[name] is not None
    }


def _limited(limit: DegreeLimit, name: str, job: Job) -> tuple[int, ...]:
    tried = _ZERO_STAGES if name == "zero" else _useful(job) | ({0} if name == "shard" else set())
    within = {value for value in tried if limit.allows_value(value)}
    return tuple(sorted(within | {value for value in limit.named if limit.allows_value(value)}))


def _useful(job: Job) -> set[int]:
    gpus, layers = job.cluster.num_gpus, job.model.layers
    experts = job.model.moe.experts if job.model.moe else 1
    powers = {1 << power for power in range(gpus.bit_length())}
    divisors = {
        value
        for number in (gpus, layers, layers + 1, layers + 2, experts)
        for value in range(1, number + 1)
        if number % value == 0
    }
    return powers | divisors
