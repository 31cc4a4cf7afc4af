"""`planner memory --inference`: its own options, and what it prints.

`planner memory` owns the options that training and serving share and passes all of them on:
model, gpus, tp, pp, ep, dp, solve (here batch or context), as_json and as_csv.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

# Values of --solve that belong to --inference.
SOLVE_CHOICES = ("batch", "context")


def inference_options(function: Command) -> Command:
    """Options that only serving has; absent ones are None or False."""
    positive = click.IntRange(min=1)
    options = [
        click.option("--inference", is_flag=True, help="Memory of serving instead of training."),
        click.option("--batch", type=int, help="Sequences served at once. [default: 1]"),
        click.option(
            "--context", metavar="TOKENS", help="Tokens a sequence, prompt and answer: 32K, 32Ki."
        ),
        click.option("--weights", metavar="FORMAT", help="bf16, fp8, int8, int4, mxfp4, ..."),
        click.option("--kv-cache", metavar="DTYPE", help="bf16, fp16, fp8, int8, int4."),
        click.option(
            "--gpu-memory-utilization",
            type=float,
            help="Share of the HBM that the engine may fill. [default: 0.9, as in vLLM]",
        ),
        click.option("--block-size", type=positive, help="Tokens a KV block. [default: 16]"),
        click.option(
            "--max-num-batched-tokens",
            metavar="TOKENS",
            help="Tokens of one prefill chunk. [default: as vLLM on this GPU]",
        ),
        click.option(
            "--max-num-seqs",
            type=positive,
            help="Sequences for which the engine reserves. [default: as vLLM, at least --batch]",
        ),
        click.option(
            "--logits",
            type=click.Choice(["sampled", "all"]),
            help="Positions that get logits: the sampled ones, or all of a chunk. "
            "[default: sampled]",
        ),
        click.option("--enforce-eager", is_flag=True, help="No CUDA graphs."),
        click.option(
            "--disable-hybrid-kv-cache-manager",
            is_flag=True,
            help="Sliding-window layers keep every token, too.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def run(options: dict[str, Any]) -> int:
    """Print the memory of serving; returns the exit status, 0 or, if it does not fit, 1."""
    raise NotImplementedError
