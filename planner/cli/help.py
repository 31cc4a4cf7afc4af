"""Options of a command by group: `--help` shows those that matter first, `--help-all` all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

# Title -> names of options, in the order of the help. What no group has is under "Other".
GROUPS: dict[str, tuple[str, ...]] = {
    "Job": (
        "model", "gpus", "gpu", "cluster", "clusters", "first", "last", "counts",
        "flops", "days", "parameters", "tokens",
        "jobs_file", "jobs", "gbs_tokens", "gbs", "gbs_tolerance", "batch", "batch_ramp", "seq",
        "framework",
        "precision", "precision_fallback", "plan",
    ),
    "Degrees": (
        "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard", "shard_size", "mbs",
        "grad_acc", "layers_per_stage", "mtp_standalone", "allow_tp_across_nodes",
    ),
    "Memory": (
        "recompute", "recompute_layers", "optimizer", "optimizer_offload", "activation_offload",
        "activation_offload_fraction", "hbm_reserve", "fit_probability", "dtype", "stage",
        "tensors", "solve", "advise",
    ),
    "Limits": ("deadline", "budget", "power", "racks", "certainty", "minimise", "order"),
    "Rules of your own": ("require", "forbid", "fix"),
    "How it trains": (
        "use", "without",
        "schedule", "cp_comm_type", "attention", "sharp", "sequence_parallel",
        "expert_imbalance", "dropout", "bias", "optimizer_kernel", "gradient_as_bucket_view",
        "set_to_none", "cublas_workspace_config", "vocab",
    ),
    "Serving, with --inference": (
        "inference", "context", "weights", "kv_cache", "engine", "gpu_memory_utilization",
        "block_size", "max_num_batched_tokens", "max_num_seqs", "logits", "enforce_eager",
        "disable_hybrid_kv_cache_manager",
    ),
    "Prices": (
        "prices", "skypilot", "providers", "currency", "rates", "basis", "or_owned", "explain",
    ),
    "Owning": (
        "capex", "amortisation", "interest", "utilisation", "load", "pue", "electricity",
        "hosting", "carbon", "rack_power",
    ),
    "Failures and checkpoints": (
        "mtbf_gpu", "mtbf_node", "restart_time", "repair_time", "spares", "write_bandwidth",
        "checkpoint_interval", "asynchronous",
    ),
    "Measured": ("measured_step_time", "measured_mfu", "measured_memory"),
    "Files": ("env", "ignored"),
    "The search": ("time_limit", "workers", "seed"),
    "Output": (
        "output", "as_json", "as_csv", "save_model", "plot", "top", "whole", "wide", "sort",
        "verbose", "force", "quiet", "help_all",
    ),
}  # fmt: skip
OTHER = "Other"
# What `--help` shows of a command with more options than anyone reads.
FIRST = frozenset(
    {
        "model", "gpus", "gpu", "clusters", "first", "last", "tokens", "jobs_file", "deadline",
        "budget", "flops", "days", "parameters", "gbs_tokens", "gbs", "seq",
        "framework", "precision", "recompute", "require", "prices", "solve", "advise", "inference",
        "measured_step_time", "time_limit", "output", "as_json", "top", "plot", "fixed", "help_all",
    }
)  # fmt: skip
# Of commands that take one configuration, also this.
FIRST_DEGREES = ("tp", "pp", "cp", "ep", "dp", "zero", "mbs", "grad_acc")


class GroupedCommand(click.Command):
    """A command with many options. `first`: names that `--help` shows beside those of `FIRST`."""

    def __init__(self, *args: Any, first: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.first = FIRST | set(first)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show all options.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options that matter first, by group; all of them after `--help-all`."""
        whole = bool(ctx.meta.get(_ALL))
        for title, options in grouped(self, ctx).items():
            shown = [option for option in options if whole or option.name in self.first]
            if rows := [row for option in shown if (row := help_row(option, ctx))]:
                with formatter.section(title):
                    formatter.write_dl(rows)


# `[1<=x<=1048576]`, or behind a default `; 1<=x<=1048576`.
_RANGE = re.compile(
    r"\s*\[[-+e\d.]*(<=?x|x>=?)(<=?)?[-+e\d.]*\]|; [-+e\d.]*(<=?x|x>=?)(<=?)?[-+e\d.]*"
)


def help_row(option: click.Option, ctx: click.Context) -> tuple[str, str] | None:
    """An option and its words, without ranges of numbers: an error tells them who needs them."""
    record = option.get_help_record(ctx)
    if record is None:
        return None
    names, words = record
    return names.replace(" RANGE", ""), _RANGE.sub("", words).rstrip()


_ALL = "planner.help_all"


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    ctx.meta[_ALL] = True
    click.echo(ctx.get_help(), color=ctx.color)
    ctx.exit()


def grouped(command: click.Command, ctx: click.Context) -> Mapping[str, list[click.Option]]:
    """The options of a command by title, in the order of `GROUPS`; `--help` itself left out."""
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    named = {option.name: option for option in options if "--help" not in option.opts}
    found = {
        title: [named.pop(name) for name in names if name in named]
        for title, names in GROUPS.items()
    }
    return {
        title: members
        for title, members in {**found, OTHER: list(named.values())}.items()
        if members
    }
