"""Commands to copy: they make the request that they came from."""

from __future__ import annotations

import shlex

import click
import pytest

from constraints.rule import Layout
from planner.cli.declared import command
from planner.cli.evaluate import given_configuration
from planner.cli.options import build_request, limit_values
from planner.job.request import Request
from planner.predict.command_line import evaluate_command, search_command
from planner.predict.plan import Degrees

REQUESTS = {
    "plain": Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000),
    "switches": Request(
        model="8b", gpus="8xH100", gbs=64, seq=4096, precision="fp8", use=("cuda-graphs",),
        sequence_parallel=False, bias=False, hbm_reserve="5%", fit_probability=0.9,
        optimizer="lion", allow_tp_across_domains=True,
        without=("bf16-gradients", "fused-dispatch"),
    ),
    "limits": Request(
        model="mixtral-8x7b", gpus="32xH100", gbs=256, recompute=("none", "full"),
        limits={"tp": (1, 2), "zero": (1,), "shard": (0,)}, require=("pp <= 4", "tp*cp in (2, 4)"),
        forbid=("zero == 3",), fix=("mbs=1",),
    ),
    "offload": Request(
        model="8b", gpus="8xH100", gbs=64, optimizer_offload="search", activation_offload="all"
    ),
}  # fmt: skip


def _options(command: click.Command, text: str) -> dict[str, object]:
    planner, name, *words = shlex.split(text)
    assert (planner, name) == ("planner", command.name)
    return command.make_context(command.name, words).params


@pytest.mark.parametrize("name", REQUESTS)
def test_a_search_is_the_one_that_it_came_from(name: str) -> None:
    request = REQUESTS[name]
    options = _options(command("search"), search_command(request))
    options["gpus"] = next(iter(options["gpus"]))  # type: ignore[call-overload]
    made = build_request(options, recompute=options["recompute"])
    made = made.model_copy(update={"limits": limit_values(options, made.resolve())})
    assert made == request


def test_an_evaluation_has_the_degrees_and_the_switches() -> None:
    degrees = Degrees(tp=2, pp=4, cp=1, dp=1, zero=0, mbs=2, grad_acc=32)
    text = evaluate_command(REQUESTS["switches"], degrees, "full")
    options = _options(command("evaluate"), text)
    given = given_configuration(options)
    request = given.request
    assert (given.degrees, given.recompute) == (degrees, "full")
    assert (request.gbs, request.precision, request.bias) == (64, "fp8", False)
    layout = Layout(4, 1, (8, 8, 8, 8), recomputed={"full": (8, 8, 0, 0)})
    text = evaluate_command(REQUESTS["switches"], degrees, "full", layout)
    assert _options(command("evaluate"), text)["recompute_layers"] == layout.recomputed["full"]


def test_what_evaluate_cannot_choose_has_no_command() -> None:
    assert evaluate_command(REQUESTS["offload"]) == ""
