"""How the ranks of a context-parallel group exchange keys, values and heads for attention.

A kind of exchange is identified by its number of *inner* ranks, those that exchange heads by
all-to-all, because the cost of a layer depends on it: 1 for a ring, cp for an all-to-all, a number
in between for an all-to-all inside groups and a ring between them, and GATHERS (0) if keys and
values are all-gathered.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from constraints.axes import ContextKind
from constraints.context import RuleContext
from constraints.numbers import Columns, IntArray, Mask, ModelNumbers, divides
from constraints.rule import shape_rule

# Values for gathered keys and values, and for an impossible kind.
GATHERS = 0
IMPOSSIBLE = -1


def kinds_for(model: ModelNumbers, kinds: tuple[ContextKind, ...]) -> tuple[ContextKind, ...]:
    """The kinds of exchange that Transformer Engine supports for a model's attention.

    Sliding windows exclude a ring. Attention sinks need an all-to-all over all ranks. Latent
    attention (keys wider than values) needs a ring, over all ranks or over groups.
    """
    one_set = set(kinds)
    if model.sliding_window:
        one_set &= {"all_gather", "a2a"}
    if model.attention_sinks:
        one_set &= {"a2a"}
    if model.has_mla:
        one_set &= {"p2p", "a2a+p2p"}
    return tuple(kind for kind in kinds if kind in one_set)


def inner_ranks(
    kind: ContextKind, columns: Columns, model: ModelNumbers, domain: int, inner: int = 0
) -> IntArray:
    """Inner ranks of each shape (columns tp, cp) for a kind of exchange; IMPOSSIBLE if it cannot
    run.

    An all-to-all over n ranks leaves heads/(tp·n) query heads per rank, and likewise for key/value
    heads; both must be integers. `inner`: the number requested for `a2a+p2p`; 0 takes the most that
    the heads allow inside one scale-up domain together with their tp ranks.
    """
    tp, cp = columns["tp"], columns["cp"]
    if kind == "p2p":
        return np.ones_like(cp)
    if kind == "all_gather":
        return np.where(cp > 1, GATHERS, 1)
    if kind == "a2a":
        return np.where((cp == 1) | _splits_heads(tp * cp, model), cp, IMPOSSIBLE)
    found = np.where(cp == 1, 1, IMPOSSIBLE)
    # An all-to-all cannot use more ranks than there are heads.
    for ranks in range(2, min(int(cp.max(initial=1)), model.heads + 1)):
        fits = (cp % ranks == 0) & (ranks < cp) & _splits_heads(tp * ranks, model)
        fits &= (tp * ranks <= domain) if not inner else np.full(cp.shape, ranks == inner)
        found = np.where(fits, ranks, found)
    return found


def exchange_kind(cp: int, inner: int) -> tuple[ContextKind | Literal[""], tuple[int, ...]]:
    """The kind of exchange, and the ranks of its two levels if it has two, from its inner ranks;
    empty if cp is 1."""
    if cp == 1:
        return "", ()
    if inner == GATHERS:
        return "all_gather", ()
    if inner == 1:
        return "p2p", ()
    return ("a2a", ()) if inner == cp else ("a2a+p2p", (inner, cp // inner))


def _splits_heads(ranks: IntArray, model: ModelNumbers) -> Mask:
    heads = divides(ranks, model.heads)
    return heads if model.has_mla else heads & divides(ranks, model.kv_heads)


def _wording(ctx: RuleContext) -> str:
    if not ctx.context_kinds:
        return (
            f"{ctx.framework_name} has no such exchange for this model's attention (windows: "
            "all_gather, a2a; sinks: a2a; latent: p2p, a2a+p2p): cp must be 1"
        )
    size = f" over {ctx.context_inner} ranks" if ctx.context_inner else ""
    heads = f"{ctx.model.heads} heads"
    if not ctx.model.has_mla:
        heads += f" and {ctx.model.kv_heads} key/value heads"
    kinds = " or ".join(ctx.context_kinds)
    levels = "; a2a+p2p needs two levels of at least two ranks each" * ("a2a+p2p" in kinds)
    return f"{kinds}{size}: tp times the ranks of an all-to-all must divide {heads}{levels}"


@shape_rule(wording=_wording)
def context_exchange(columns: Columns, ctx: RuleContext) -> Mask:
    mask: Mask = columns["cp"] == 1
    for kind in ctx.context_kinds:
        domain = ctx.cluster.scale_up_domain
        inner = inner_ranks(kind, columns, ctx.model, domain, ctx.context_inner)
        mask = mask | (inner != IMPOSSIBLE)
    return mask
