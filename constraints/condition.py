"""Conditions that a user sets: `--require "tp*cp <= 8"`, `--forbid "zero == 3"`, `--fix mbs=1`."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, Protocol

import numpy as np

from constraints.axes import AXES, EXPERTS, LARGEST_DEGREE, WORLD, product_of
from constraints.errors import ConstraintError
from constraints.expression import Condition, condition_mask, number_values, parse_condition
from constraints.numbers import (
    DEGREES,
    ClusterNumbers,
    Columns,
    IntArray,
    Mask,
    ModelNumbers,
)
from hardware.files import shipped_toml

Verb = Literal["require", "forbid", "fix"]

_SIZES = shipped_toml("constraints", "condition.toml")
_ALIASES = {"num_microbatches": "grad_acc", "world": "gpus"}
NAMES: dict[str, str] = {
    **{name: axis.words for name, axis in AXES.items()},
    **{name: row["words"] for name, row in _SIZES.items()},
    **{alias: f"the same as {name}" for alias, name in _ALIASES.items()},
}
# Options that choose by name, which no condition can.
_OPTIONS = ("recompute", "framework", "precision", "dtype", "optimizer", "schedule", "attention")
_FIX = re.compile(r"\s*(\w+)\s*={1,2}\s*(-?[0-9_]+)\s*")
# Most values of one side of a comparison that are listed if no configuration satisfies it.
_MOST_VALUES = 16


class Sizes(Protocol):
    """Sizes of the model and the cluster, which conditions may read besides the columns."""

    @property
    def model(self) -> ModelNumbers:
        """The model's shape."""

    @property
    def cluster(self) -> ClusterNumbers:
        """The GPUs."""


def shape_values(columns: Columns, sizes: Sizes) -> dict[str, IntArray]:
    """Every name of `NAMES` as a column, for shapes with these degrees."""
    gpus = product_of(WORLD, columns)
    per_node = sizes.cluster.gpus_per_node
    values = {name: columns[name] for name in DEGREES} | {
        "edp": gpus // columns["pp"] // product_of(EXPERTS, columns),
        "gbs_tokens": columns["gbs"] * sizes.model.seq,
        "gpus": gpus,
        "nodes": -(-gpus // per_node),
    }
    values |= {alias: values[name] for alias, name in _ALIASES.items()}
    fixed = {name: row["field"] for name, row in _SIZES.items() if "field" in row}
    return values | {
        name: np.full_like(gpus, attrgetter(path)(sizes)) for name, path in fixed.items()
    }


@dataclass(frozen=True)
class UserCondition:
    """One condition of the user: `verb` (require, forbid, fix) and `text` as written."""

    verb: Verb
    text: str
    condition: Condition
    # The option that implies the condition, if it is not the condition's own.
    of: str = ""

    @property
    def option(self) -> str:
        """The condition as on the command line: `--require "pp <= 4"`."""
        if self.of:
            return f"{self.of}, which needs {self.text}"
        plain = re.fullmatch(r"[\w=.,+-]+", self.text)
        return f"--{self.verb} {self.text}" if plain else f'--{self.verb} "{self.text}"'

    @property
    def words(self) -> str:
        """The condition in words: `require pp <= 4`."""
        if self.of:
            return self.option
        return f"{self.verb} {self.text}"

    def mask(self, columns: Columns, sizes: Sizes) -> Mask:
        """True for shapes that satisfy the condition."""
        holds = condition_mask(self.condition, shape_values(columns, sizes))
        return ~holds if self.verb == "forbid" else holds

    def named(self, degree: str) -> tuple[int, ...]:
        """Values of a degree that the condition asks for; empty if it forbids something."""
        if self.verb == "forbid":
            return ()
        numbers = self.condition.named
        wanted = [*numbers.get(degree, ())]
        for alias, name in _ALIASES.items():
            wanted += numbers.get(alias, ()) if name == degree else ()
        least = AXES[degree].least if degree in AXES else 1
        return tuple(number for number in wanted if least <= number <= LARGEST_DEGREE)

    def values_tried(self, columns: Columns, sizes: Sizes) -> str:
        """`tp*cp is 1, 2, 4 or 8 in them`, for a single comparison; empty for anything else."""
        tree = self.condition.tree
        if not (isinstance(tree, ast.Compare) and len(tree.ops) == 1):
            return ""
        found = number_values(self.condition, tree.left, shape_values(columns, sizes))
        if not found or isinstance(tree.left, ast.Constant):
            return ""
        if len(found) > _MOST_VALUES:
            listed = f"{found[0]:,} to {found[-1]:,}"
        else:
            head = ", ".join(f"{value:,}" for value in found[:-1])
            listed = f"{head} or {found[-1]:,}" if head else f"{found[-1]:,}"
        return f"{ast.unparse(tree.left)} is {listed} in them"


def user_condition(verb: Verb, text: str) -> UserCondition:
    """Parse the text of --require, --forbid or --fix. ConstraintError says what is wrong."""
    shown = " ".join(text.split())
    if verb != "fix":
        return UserCondition(verb, shown, _parse(shown))
    match = _FIX.fullmatch(shown)
    if match is None:
        raise ConstraintError(_fix_hint(shown))
    name, number = match[1], match[2]
    return UserCondition(verb, f"{name}={number}", _parse(f"{name} == {number}"))


def _parse(text: str) -> Condition:
    for option in _OPTIONS:
        if re.search(rf"\b{option}\b", text):
            raise ConstraintError(_option_hint(option))
    return parse_condition(text, tuple(NAMES))


def _option_hint(option: str) -> str:
    return f"{option} is chosen by name; give --{option} instead"


def _fix_hint(text: str) -> str:
    """Explain what is wrong with a --fix that is not NAME=NUMBER."""
    name = re.match(r"\s*(\w*)", text)
    given = name[1] if name else ""
    if given in _OPTIONS:
        return _option_hint(given)
    close = difflib.get_close_matches(given, NAMES, n=1, cutoff=0.5) if given else []
    example = f"{close[0]}=4" if close else "mbs=1"
    if not text:
        return f"nothing is given; write NAME=NUMBER, for example {example}"
    return f"{text!r}: write NAME=NUMBER, for example {example}; other conditions go to --require"
