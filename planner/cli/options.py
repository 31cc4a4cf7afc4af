"""Options that commands share, and what they become: a `Request`, limits, an output file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

from constraints import ConstraintError, DegreeLimit, parse_degree_limit
from planner.errors import UsageError
from planner.request import Request, parse_tokens

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


def _tokens(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback: a number of tokens, as 4M, 4Mi or 4194304."""
    if value is None:
        return None
    try:
        return parse_tokens(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _limit(ctx: click.Context, param: click.Parameter, value: str | None) -> DegreeLimit | None:
    """Callback: allowed values of a degree, as 8, 1,2,4, ..8 or 2.. ."""
    if value is None:
        return None
    try:
        return parse_degree_limit(value, param.name or "")
    except ConstraintError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _apply(function: Command, decorators: list[Callable[[Command], Command]]) -> Command:
    """The function under all decorators; the first is listed first in --help."""
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def job_options(function: Command) -> Command:
    """What is trained, on what, with which framework and batch."""
    positive = click.IntRange(min=1)
    return _apply(
        function,
        [
            click.option(
                "--model",
                required=True,
                help="Name or alias (70b), or path to a Hugging Face config.json or a model .toml.",
            ),
            click.option("--gpus", help="64xH100, or nodes x GPUs: 8x8xH100."),
            click.option("--cluster", help="Instead of --gpus: a TOML file that describes it."),
            click.option(
                "--gbs-tokens",
                metavar="TOKENS",
                callback=_tokens,
                help="Global batch in tokens: 4M = 4·10^6, 4Mi = 4·2^20.",
            ),
            click.option("--gbs", type=positive, help="Instead: global batch in sequences, exact."),
            click.option(
                "--gbs-tolerance",
                type=click.FloatRange(0, 1, max_open=True),
                default=0.05,
                show_default=True,
                help="Share by which a plan's batch may differ from --gbs-tokens.",
            ),
            click.option(
                "--seq",
                metavar="TOKENS",
                callback=_tokens,
                help="Sequence length in tokens. [default: the model's pretraining length]",
            ),
            click.option(
                "--framework",
                default="megatron-core",
                show_default=True,
                help="See: planner frameworks.",
            ),
            click.option(
                "--precision",
                default="bf16",
                show_default=True,
                help="bf16, fp16, fp8, mxfp8, nvfp4: as GPU and framework have them.",
            ),
            click.option(
                "--optimizer",
                default="adamw",
                show_default=True,
                metavar="NAME[:KEY=TYPE,...]",
                help="adamw, adamw-bf16, adamw-fp8, adamw-8bit, adamw-4bit, adafactor, lion, "
                "muon, sgd; types as adamw:exp_avg=fp8,master=fp16 or "
                "sgd:momentum=none.",
            ),
            click.option(
                "--optimizer-kernel",
                type=click.Choice(["fused", "foreach", "forloop"]),
                help="How torch updates parameters. [default: as the framework does]",
            ),
            click.option(
                "--optimizer-offload",
                type=click.FloatRange(0, 1),
                default=0.0,
                show_default=True,
                help="Share of optimizer state and update on the CPU.",
            ),
            click.option(
                "--attention",
                type=click.Choice(["flash", "eager"]),
                default="flash",
                show_default=True,
                help="Fused attention kernels, or scores kept in memory.",
            ),
            click.option(
                "--schedule",
                metavar="NAME",
                help="Pipeline schedule: 1f1b, interleaved, gpipe, zb-h1, zb-h2, zb-v, dualpipe, "
                "dualpipev. [default: the framework's usual]",
            ),
            click.option("--dropout", is_flag=True, help="The model trains with dropout."),
            click.option(
                "--expert-imbalance",
                type=click.FloatRange(min=1),
                default=1.0,
                show_default=True,
                help="Load of the busiest expert rank over the mean.",
            ),
            click.option(
                "--hbm-reserve",
                default="0",
                show_default=True,
                help="HBM to keep free: a share (0.05, 5%) or a size (4GiB).",
            ),
            click.option(
                "--allow-tp-across-nodes",
                is_flag=True,
                help="Let TP groups leave the NVLink domain.",
            ),
        ],
    )


def limit_options(function: Command) -> Command:
    """Limits on the degrees that a search may use."""
    return _apply(
        function,
        [
            click.option(
                f"--{_OPTION_NAMES.get(name, name)}",
                name,
                metavar="VALUES",
                callback=_limit,
                help=text,
            )
            for name, text in LIMITS.items()
        ],
    )


def output_options(function: Command) -> Command:
    """Where results go, and in which form."""
    return _apply(
        function,
        [
            click.option(
                "--json", "as_json", is_flag=True, help="Print the plan file, nothing else."
            ),
            click.option("--csv", "as_csv", is_flag=True, help="Print one row a plan, SI units."),
            click.option("-o", "--output", help="Write a plan file that later commands read."),
            click.option("--force", is_flag=True, help="Overwrite the output file."),
            click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
        ],
    )


OutputFormat = Literal["text", "json", "csv"]


def output_format(as_json: bool, as_csv: bool) -> OutputFormat:
    """The one format asked for."""
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, not both")
    return "json" if as_json else "csv" if as_csv else "text"


_REQUEST_OPTIONS = (
    "model",
    "gpus",
    "cluster",
    "gbs_tokens",
    "gbs",
    "gbs_tolerance",
    "seq",
    "framework",
    "precision",
    "optimizer",
    "optimizer_kernel",
    "optimizer_offload",
    "attention",
    "schedule",
    "dropout",
    "expert_imbalance",
    "hbm_reserve",
)


def build_request(options: dict[str, Any], **more: Any) -> Request:
    """The request that the shared options make; a command without some takes their defaults."""
    fields = {name: options[name] for name in _REQUEST_OPTIONS if name in options}
    return Request(**fields, allow_tp_across_domains=options["allow_tp_across_nodes"], **more)
