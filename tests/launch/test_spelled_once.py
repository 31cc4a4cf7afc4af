"""Megatron's options that its tables have are spelled in the tables alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import planner.launch
from planner.launch.dialects.hf import DEEPSPEED
from planner.launch.dialects.megatron.options import MEGATRON as SETTINGS
from planner.launch.dialects.megatron.options import MEGATRON_LAYOUT, MEGATRON_RECOMPUTE
from planner.launch.dialects.megatron.table import MEGATRON
from planner.launch.dialects.torchtitan import TORCHTITAN
from planner.launch.options import Options, run_options

FOLDER = Path(planner.launch.__file__).parent
DIALECTS = FOLDER / "dialects"
TABLES = ("table.py",)
OPTIONS = {**SETTINGS, **MEGATRON_LAYOUT, **MEGATRON_RECOMPUTE}
# Names here that are Megatron's too say which row is meant.
OURS = OPTIONS.keys() | {entry.fields[0].rpartition(".")[2] for entry in MEGATRON}


def test_no_reader_and_no_writer_spells_an_option_again() -> None:
    names = {option.name for option in OPTIONS.values()}
    names |= {entry.name for entry in MEGATRON if entry.key}
    files = [*DIALECTS.glob("megatron/*.py"), *FOLDER.glob("check/*.py")]
    again = [
        f"{file.name}:{node.lineno}: {node.value}"
        for file in files
        if file.name not in TABLES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.removeprefix("--") in names - OURS
    ]
    assert len(files) > 20 and not again


@pytest.mark.parametrize(
    ("dialect", "options"),
    [("nanotron", run_options("nanotron")["run"]), ("torchtitan", TORCHTITAN), ("hf", DEEPSPEED)],
)
def test_nor_a_key_of_another_framework(dialect: str, options: Options) -> None:
    keys = {option.key for option in options.values() if "." in option.key}
    files = [*DIALECTS.glob(f"{dialect}/*.py")]
    assert len(files) > 1
    assert not [
        f"{file.name}:{node.lineno}: {node.value}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in keys
    ]
