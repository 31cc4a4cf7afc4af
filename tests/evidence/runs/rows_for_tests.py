"""Measured rows as dictionaries, in the documented column format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from planner.cost import fields as f
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows
from planner.job.frameworks.profile import load_framework

# Korthikanti et al. 2022, Table 5: GPT 175B on 64 A100, full recompute, 18.13 s.
KORTHIKANTI_175B = {
    "source": "korthikanti2022", "model": "GPT-175B", "layers": "96", "hidden": "12288",
    "ffn": "49152", "heads": "96", "kv_heads": "96", "vocab": "51200", "act": "gelu",
    "seq": "2048", "gpu": "A100-80GB", "num_gpus": "64", "gpus_per_node": "8", "tp": "8",
    "pp": "8", "vpp": "3", "cp": "1", "ep": "1", "zero": "none", "seq_parallel": "n", "mbs": "1",
    "gbs": "64", "precision": "fp16", "recompute": "full", "flash": "n",
    "framework": "Megatron-LM", "step_time_s": "18.13", "oom": "0",
}  # fmt: skip


def row(**changes: str) -> MeasuredRow:
    """The Korthikanti row with some cells changed; an empty string empties a cell."""
    return MeasuredRow("made_up.csv", 2, KORTHIKANTI_175B | changes)


def predicted(seconds: float, gib: float = 1.0, **changes: str) -> Prediction:
    """A hand-made prediction for the row: so long a step, so much memory on every stage."""
    found = row(**changes)
    step = np.zeros(f.STEP_COLUMNS)
    step[[f.STEP_TIME, f.STEP_COMPUTE]] = seconds
    stages = np.zeros((2, f.STAGE_COLUMNS))
    stages[:, [f.STAGE_ALLOCATED, f.STAGE_PEAK]] = gib * 2**30
    return Prediction(found, map_row(found), step=step, stages=stages)


Cells = dict[str, str]
# What a profile has where a row has these cells, by the setting's name (`kernels.issue_s`); a text
# `as PROFILE` is what ships of that one.
Case = tuple[Cells, dict[str, Any]]


def cases(by_sentence: Mapping[str, list[Case]]) -> pytest.MarkDecorator:
    """A decorator of `check_settings`: every case under its sentence."""
    listed = [(words, case) for words, some in by_sentence.items() for case in some]
    return pytest.mark.parametrize(
        "case", [one for _, one in listed], ids=[one for one, _ in listed]
    )


def check_settings(case: Case) -> None:
    """The settings of the row's profile are those of the case."""
    cells, expected = case
    profile = map_row(row(**cells)).job.framework
    for path, value in expected.items():
        found = attrgetter(path)
        like = isinstance(value, str) and value.startswith("as ")
        assert found(profile) == (found(load_framework(value[3:])) if like else value), path


@cache
def published(source: str, file: str) -> list[Prediction]:
    rows = read_rows(PUBLISHED / f"{file}.csv")
    return predict_rows(one for one in rows if one.source == source)
