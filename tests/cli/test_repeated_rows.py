"""A row of a search's CSV repeats its plan: what JSON has of a configuration, the row has too."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields
from typing import Any

import pytest

from constraints.rule import Layout
from planner.predict.command_line import degree_options
from planner.predict.plan import Plan, SampleFigures
from planner.search.frame import COLUMNS
from tests.cli.conftest import Run

# Fields of a plan that are told apart in columns of their own.
_SPREAD = {
    "degrees": tuple(name for name, *_ in degree_options()),
    "layout": ("layers_per_block", "recomputed_per_stage", "mtp_standalone", "schedule"),
    "step_time": ("step_time_low_s", "step_time_high_s"),
    "peak_interval": ("peak_low_bytes", "peak_high_bytes"),
    "time": ("compute_s", "unequal_s"),
    "full_memory": ("full_memory_step_time_s",),
    "samples": ("packing", "balance", "samples_per_s", "mfu_counted"),
}
# What the configuration and the request that was given make of a plan.
_FOLLOWS = {"stages", "assumptions", "ramp", "passes"}
_FOLLOWS_OF_SAMPLES = {"lengths", "mean_tokens", "cut", "samples"}
# The schedule says where blocks lie; degrees say how many there are.
_FOLLOWS_OF_LAYOUT = {"pp", "vpp", "placement"}


def test_every_field_of_a_plan_is_in_a_column() -> None:
    for name in Plan.model_fields:
        assert name in _FOLLOWS or all(one in COLUMNS for one in _SPREAD.get(name, (name,))), name
    for name in SampleFigures.model_fields:
        assert name in _FOLLOWS_OF_SAMPLES or name in COLUMNS, name
    said = {"block_layers": "layers_per_block", "recomputed": "recomputed_per_stage"}
    for field in fields(Layout):
        name = said.get(field.name, field.name)
        assert field.name in _FOLLOWS_OF_LAYOUT or name in COLUMNS, field.name


def _repeated(row: dict[str, str], offered: list[str]) -> list[str]:
    """Options of `planner evaluate` by the columns of a row alone."""
    words = []
    for name, option, _ in degree_options():
        words += [f"--{option}", row[name]] if name != "shard" or row[name] != "0" else []
    words += ["--recompute", row["recompute"]]
    if row["recompute"] != "none" and row["recomputed_per_stage"] != row["layers_per_stage"]:
        words += ["--recompute-layers", row["recomputed_per_stage"].replace("/", ",")]
    words += ["--layers-per-stage", row["layers_per_block"].replace("/", ",")]
    words += ["--schedule", row["schedule"]] if int(row["pp"]) > 1 else []
    words += ["--seq", row["seq"], "--optimizer-offload", row["optimizer_offload"]]
    if row["activation_offload"]:
        words += ["--activation-offload", row["activation_offload"].replace("/", ",")]
        words += ["--activation-offload-fraction", row["activation_offload_fraction"]]
    used = row["techniques"].split("/") if row["techniques"] else []
    for name in offered:
        words += ["--with" if name in used else "--without", name]
    for name in ("packing", "balance", "cp_comm_type"):
        if row[name] and row[name] != "none":
            words += [f"--{name.replace('_', '-')}", row[name]]
    return words


_JOBS = {
    "techniques": ("--gpus", "8xH100", "--gbs", "32", "--tp", "2"),
    "uneven blocks": ("--gpus", "8xH100", "--gbs", "32", "--pp", "4", "--vpp", "2", "--tp", "1"),
    "context": ("--gpus", "8xH100", "--gbs", "8", "--cp", "4", "--seq", "32768"),
    "offloaded": (
        "--gpus", "8xH100", "--gbs", "16", "--tp", "1", "--pp", "1", "--optimizer-offload", "0.5",
        "--activation-offload", "search",
    ),
    "samples": (
        "--gpus", "8xH100", "--gbs", "64", "--lengths", "256:1,2048:1", "--framework", "torch-3d",
        "--packing", "longest", "--balance", "tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _JOBS)
def test_a_row_repeats_its_plan(run: Run, name: str) -> None:
    job = ("--model", "llama-3.2-3b", *_JOBS[name])
    found = run("search", *job, "--csv", "-q")
    assert found.exit_code == 0, found.output
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    offered = sorted({one for row in rows for one in row["techniques"].split("/") if one})
    for row in (rows[0], rows[-1]):
        again = run("evaluate", *_given(job), *_repeated(row, offered), "--json", "-q")
        assert again.exit_code == 0, again.output
        plan: dict[str, Any] = json.loads(again.stdout)["plans"][0]
        assert plan["step_time_s"] == pytest.approx(float(row["step_time_s"]), rel=1e-9)
        assert plan["peak_bytes"] == pytest.approx(float(row["peak_bytes"]), rel=1e-9)


def _given(words: tuple[str, ...]) -> list[str]:
    """What the user asked whatever the plan: machine, model, framework, samples."""
    kept = ("--model", "--gpus", "--framework", "--lengths")
    return [
        word
        for option, value in zip(words[::2], words[1::2], strict=True)
        if option in kept
        for word in (option, value)
    ]
