"""Conditions on what a measured row says of its software, in its own words."""

from __future__ import annotations

import re
from collections.abc import Callable

from planner.evidence.runs.rows import MeasuredRow


def described(row: MeasuredRow) -> str:
    """All that a row says of its software, in lower case."""
    cells = (row.text(name) or "" for name in ("variant", "kernel", "software", "notes"))
    return "; ".join(cells).lower()


def says(pattern: str) -> Callable[[MeasuredRow], bool]:
    """Whether a row says so."""
    return lambda row: re.search(pattern, described(row)) is not None


def torchtitan_eager(row: MeasuredRow) -> bool:
    """torchtitan compiles nothing unless told to (`compile.enable`, off in its configurations);
    float8 and asynchronous TP are of use in compiled blocks alone (its docs/float8.md and pull
    request 429), so rows that name them compile."""
    text = f"{row.text('framework') or ''}; {described(row)}".lower()
    compiles = re.search(r"\bcompile|\basync_?tp\b|float8", text) is not None
    return "torchtitan" in text and (not compiles or re.search(r"\beager\b", text) is not None)


def torchtitan_split_loss(row: MeasuredRow) -> bool:
    """torchtitan splits the logits and runs the loss on them uncompiled."""
    if (row.integer("tp") or 1) == 1:
        return False
    text = (row.text("framework") or "").lower()
    return "torchtitan fsdp2" in text or torchtitan_eager(row)


def torchtune_steps(row: MeasuredRow) -> str:
    """torchtune's table adds one option a row; each row has all options above it."""
    return (re.search(r"cumulative flags table: (\S+)", described(row)) or ["", ""])[1]


def before_torchtune_step(*names: str) -> Callable[[MeasuredRow], bool]:
    """Rows of torchtune's table whose last option is one of these."""
    return lambda row: torchtune_steps(row) in names


def software(version: str) -> Callable[[MeasuredRow], bool]:
    """Rows of a version of their framework."""
    return lambda row: (row.text("software") or "").startswith(version)


def shards_with_fsdp(row: MeasuredRow) -> bool:
    """Rows that say FSDP of how they shard, or Megatron's FSDP of their framework."""
    framework = (row.text("framework") or "").lower()
    named = re.search(r"megatron[ -](core )?fsdp", framework) is not None
    return named or "fsdp" in (row.text("zero") or "").lower()


def nvl72_recipe_since(version: str) -> Callable[[MeasuredRow], bool]:
    """Rows of Megatron-Bridge's own recipes for mixtures on NVL72, of a release `YY.MM` or later,
    that do not list the recipe's settings themselves (as those with a recipe before 0.6 do).

    Its cards name no release; they were first published with 26.06.
    """

    def applies(row: MeasuredRow) -> bool:
        if not (row.text("moe") and re.match(r"GB[23]00", row.text("gpu") or "")):
            return False
        if re.search(r"recipe=\S+@v0\.[0-5]", described(row)):
            return False
        released = re.search(r"\b(\d\d\.\d\d)", row.text("software") or "")
        return released[1] >= version if released else "perf card" in described(row)

    return applies


def of_early_2021(row: MeasuredRow) -> bool:
    """Runs of Megatron-LM's README and paper of January and April 2021."""
    published = f"{row.text('source_ref') or ''}; {described(row)}".lower()
    return re.search(r"2104\.04473|cases_(jan|april)2021|pre-april-2021", published) is not None
