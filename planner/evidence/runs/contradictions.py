"""Find cells of a measured row that cannot all be true, and unknown words.

A row that contradicts itself is refused, and the reason names the cells, because it is impossible
to tell which of them is the misprint. A fact in words that its column does not know counts as not
stated, and the prediction says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from planner.evidence.runs.model import UnpredictableRowError, experts_text
from planner.evidence.runs.rows import MeasuredRow, recompute_named, words_of, yes_or_no

# Spellings of yes and no in the columns of `known`.
_SPELLINGS: dict[bool | None, tuple[str, ...]] = {True: ("y",), False: ("n", "none"), None: ()}
_WIDE = r"\b(tf32|fp32|float32)\b"


def in_known_words(row: MeasuredRow) -> tuple[MeasuredRow, tuple[str, ...]]:
    """The row with every spelling of yes and no as `y` and `n`, and without facts in words that
    their column does not know (`words.toml`, `known`); and a list of these facts, in words.
    UnpredictableRowError for an unknown kind of step or model."""
    changed: dict[str, str] = {}
    unknown: list[str] = []
    for column, pattern in _known().items():
        text = row.text(column)
        if text is None or pattern.fullmatch(text.lower()):
            continue
        spellings = _SPELLINGS[yes_or_no(re.split(r"[\s,(;]", text)[0])]
        changed[column] = next((word for word in spellings if pattern.fullmatch(word)), "")
        if not changed[column] and column in words_of("refusing")["columns"]:
            raise UnpredictableRowError(f"{column} {text!r} is not modelled")
        if not changed[column]:
            unknown.append(f"{column} not stated ({text!r} is not one of its words)")
    return (replace(row, cells=row.cells | changed) if changed else row), tuple(unknown)


@cache
def _known() -> dict[str, re.Pattern[str]]:
    return {column: re.compile(pattern) for column, pattern in words_of("known").items()}


def demand_consistent(row: MeasuredRow) -> None:
    """Raise UnpredictableRowError with the first cells of the row that contradict each other."""
    for check in _CHECKS:
        for contradiction in check(row):
            raise UnpredictableRowError(contradiction)


def _parallelism(row: MeasuredRow) -> Iterator[str]:
    """Contradictions between degrees and GPUs. If the source doubts the row, the product of the
    degrees is not checked."""
    tp, pp, cp, dp = (row.integer(name) or 1 for name in ("tp", "pp", "cp", "dp"))
    gpus, product = row.integer("num_gpus") or 1, tp * pp * cp * dp
    if row.text("dp") and row.text("num_gpus") and product != gpus and not row.text("doubt"):
        yield f"dp·tp·pp·cp = {dp}·{tp}·{pp}·{cp} = {product}, but num_gpus is {gpus}"
    if row.text("pp") and pp == 1 and (row.integer("vpp") or 1) > 1:
        yield f"vpp is {row.integer('vpp')} without pipeline stages; give pp, or vpp 1"
    head = row.integer("head_stage")
    if head is not None and head >= pp:
        yield f"head_stage {head} is not one of the stages 0 to {pp - 1}"


def _batch(row: MeasuredRow) -> Iterator[str]:
    mbs, gbs, gpus = (row.integer(name) for name in ("mbs", "gbs", "num_gpus"))
    runs = row.integer("pipeline_runs")
    if runs is not None and runs < 1:
        yield f"pipeline_runs is {runs}, but must be 1 or more"
    if mbs is None or gbs is None or gpus is None:
        return
    tp, pp, cp = (row.integer(name) or 1 for name in ("tp", "pp", "cp"))
    if dp := gpus // (tp * pp * cp):
        if dp <= gbs < mbs * dp:
            yield f"gbs is {gbs}, less than one micro-batch of mbs {mbs} for each of dp {dp}"
        elif runs and pp > 1 and gbs < runs * mbs * dp:
            yield f"gbs {gbs} is less than pipeline_runs {runs} of mbs·dp {mbs * dp}"


def _experts(row: MeasuredRow) -> Iterator[str]:
    """Contradictions of expert parallelism, which must divide the GPUs of a stage."""
    ep, etp = row.integer("ep") or 1, row.integer("etp") or 1
    gpus, pp = row.integer("num_gpus"), row.integer("pp") or 1
    if experts_text(row) is None or not gpus or gpus % pp:
        return
    if (ranks := gpus // pp) % (ep * etp):
        yield f"ep·etp = {ep}·{etp} = {ep * etp} does not divide the {ranks} GPUs of a stage"


def _precision(row: MeasuredRow) -> Iterator[str]:
    states = row.text("state_precision") or ""
    if row.says("precision", _WIDE) and re.match(r"(bf|fp)16\b", states):
        yield (
            f"precision {row.text('precision')} with state_precision {states}: 32-bit products "
            f"need 32-bit weights; write precision {states.split()[0]}, or state_precision fp32"
        )


def _recomputation(row: MeasuredRow) -> Iterator[str]:
    share, text = row.number("recompute_share"), row.text("recompute")
    if share is None:
        return
    if not 0.0 <= share <= 1.0:
        yield f"recompute_share is {share:g}, but must be 0 to 1"
    if share and text and recompute_named(text).startswith("none"):
        yield f"recompute_share is {share:g} with recompute {text}"


def _compiling(row: MeasuredRow) -> Iterator[str]:
    words = set((row.text("variant") or "").lower().split())
    said, opposite = row.text("compile"), {"y": "eager", "n": "compile"}
    if said in opposite and opposite[said] in words:
        yield f"compile is {said}, and variant says {opposite[said]}"


_CHECKS: tuple[Callable[[MeasuredRow], Iterator[str]], ...] = (
    _parallelism, _batch, _experts, _precision, _recomputation, _compiling,
)  # fmt: skip
