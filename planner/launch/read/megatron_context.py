"""Reader of Megatron's context parallelism: how its ranks exchange, and over which levels.

Rules: megatron-core 0.19, training/arguments.py (validate_args) and parallel_state.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod
from typing import get_args

from constraints.context_kinds import ContextKind
from planner.job.bounds import LARGEST_DEGREE
from planner.launch.options import MEGATRON
from planner.launch.read.found import Edit, Problem, Setting
from planner.launch.read.megatron_arguments import Arguments
from planner.launch.read.text import digits

_TYPE, _SIZES = MEGATRON["cp_comm_type"].name, MEGATRON["cp_sizes"].name
_KINDS: tuple[ContextKind, ...] = get_args(ContextKind)
_LEVELS = 2


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was found; `unmodelled`: settings that the prediction leaves out, and which."""

    kind: ContextKind = "p2p"
    sizes: tuple[int, ...] = ()
    problems: tuple[Problem, ...] = ()
    unmodelled: tuple[tuple[Setting, str], ...] = ()


def read_exchange(arguments: Arguments, cp: int) -> Exchange:
    """`--cp-comm-type` and `--hierarchical-context-parallel-sizes` of a launch with `cp` ranks."""
    given = arguments.many(_TYPE) or ("p2p",)
    wrong = sorted(set(given) - set(_KINDS))
    if wrong:
        text = f"--{_TYPE} {wrong[0]}: one of {', '.join(_KINDS)}"
        edits = (Edit(f"--{_TYPE}", "p2p"),)
        return Exchange(problems=(arguments.problem("option-value", text, _TYPE, edits=edits),))
    kind = next(kind for kind in _KINDS if kind == given[0])
    sizes, problems = _sizes(arguments, kind, cp)
    setting = arguments.setting(_TYPE)
    unmodelled: tuple[tuple[Setting, str], ...] = ()
    if len(set(given)) > 1 and setting is not None:
        unmodelled = ((setting, f"layers exchange in different ways: costed as {kind}"),)
    return Exchange(kind, sizes if kind == "a2a+p2p" else (), problems, unmodelled)


def _sizes(
    arguments: Arguments, kind: ContextKind, cp: int
) -> tuple[tuple[int, ...], tuple[Problem, ...]]:
    """Ranks of each level, and what is wrong with them."""
    texts = arguments.many(_SIZES)
    if not texts:
        if kind != "a2a+p2p" or cp == 1:
            return (), ()
        text = f"--{_TYPE} a2a+p2p: --{_SIZES} is missing, the ranks of its two levels"
        return _levels_problem(text, arguments, cp)
    sizes = tuple(digits(text) or 0 for text in texts)
    if 0 in sizes:
        text = f"--{_SIZES} {' '.join(texts)}: whole numbers of at least 1"
        return (), (arguments.wrong(text, _SIZES),)
    if prod(sizes) != cp:
        text = f"--{_SIZES} {' '.join(texts)} make {prod(sizes)} ranks, not cp = {cp}"
        return _levels_problem(text, arguments, cp)
    if kind == "a2a+p2p" and len(sizes) != _LEVELS:
        text = f"--{_SIZES} {' '.join(texts)}: Transformer Engine has two levels"
        return _levels_problem(text, arguments, cp)
    return sizes, ()


def _levels_problem(
    text: str, arguments: Arguments, cp: int
) -> tuple[tuple[int, ...], tuple[Problem, ...]]:
    """The problem, and the nearest levels: what else is wrong is looked for with them."""
    ranks = max(cp, 1)
    most = isqrt(min(ranks, LARGEST_DEGREE))
    inner = ranks // max(index for index in range(1, most + 1) if ranks % index == 0)
    edits = (Edit(f"--{_SIZES}", f"{inner} {cp // inner}"),)
    problem = arguments.problem("context-levels", text, _SIZES, _TYPE, edits=edits)
    return (inner, cp // inner), (problem,)
