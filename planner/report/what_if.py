"""The tornado table of `planner explain --what-if`."""

from __future__ import annotations

from planner.job.quantities import gib, seconds, share, signed_share
from planner.predict.plan import Plan
from planner.predict.plan_text import degrees_text, error_text, offload_text
from planner.report.tables import Block, Facts, Notes, TableData, headings
from planner.search.what_if_result import BindingConstraint, WhatIf, WhatIfRow

_BAR_CELLS = 8


def what_if_blocks(found: WhatIf, plan: Plan) -> tuple[Block, ...]:
    """Binding constraints, then the changes by effect."""
    return (
        Facts(
            tuple(
                (constraint.name, _constraint(constraint, found))
                for constraint in found.constraints
            ),
            "Constraints (binding: the step shortens when it is lifted)",
        ),
        tornado_table(found, plan),
        Notes(_notes(found)),
    )


def _constraint(constraint: BindingConstraint, found: WhatIf) -> str:
    """`binding: stage 1 holds 64.6 of 69.5 GiB; 8 GiB more: -1.43 s a step`."""
    row = next(row for row in found.rows if row.name == constraint.row)
    verdict = "binding" if constraint.binding else "not shown to bind"
    if constraint.held_bytes is None:
        return f"{verdict}; without it: {_worth(row)}"
    free = found.limit_bytes - constraint.held_bytes
    left = f"{gib(free)} GiB free" if free >= 0 else f"{gib(-free)} GiB too much"
    sizes = f"{gib(constraint.held_bytes)} of {gib(found.limit_bytes)} GiB"
    held = f"stage {constraint.stage} holds {sizes}, {left}"
    return f"{verdict}: {held}; 8 GiB more: {_worth(row)}"


def _worth(row: WhatIfRow) -> str:
    """`-1.20 s a step`, or that nothing can be told."""
    if row.effect_s is None:
        return row.note
    if not row.resolved:
        return f"less than the search resolves ({share(row.resolution, 0)})"
    sign = "-" if row.effect_s < 0 else "+"
    return f"{sign}{seconds(abs(row.effect_s))} a step"


def tornado_table(found: WhatIf, plan: Plan) -> TableData:
    """One row a change, the largest effect first."""
    now = "this one" if found.best_is_this else degrees_text(found.best_degrees)
    largest = max((abs(row.effect or 0.0) for row in found.rows if row.resolved), default=0.0)
    return TableData(
        title="What if: the best plan after one change, solved again",
        columns=headings("~change | step time | effect | < | this\nplan | ~best plan then"),
        rows=(
            ("now", _time(found.best_s, plan), "", "", "", now),
            *(_row(row, largest) for row in found.rows),
        ),
    )


def _time(step_time_s: float, plan: Plan) -> str:
    scale = step_time_s / plan.step_time_s
    interval = plan.step_time
    scaled = interval.model_copy(
        update={"low": interval.low * scale, "high": interval.high * scale}
    )
    return f"{seconds(step_time_s)} {error_text(step_time_s, scaled)}"


def _row(row: WhatIfRow, largest: float) -> tuple[str, ...]:
    kept = "" if row.kept_effect is None else signed_share(row.kept_effect)
    if row.step_time_s is None or row.step_time is None or row.effect is None:
        return (row.change, "", "", "", kept, row.note)
    return (
        row.change,
        f"{seconds(row.step_time_s)} {error_text(row.step_time_s, row.step_time)}",
        signed_share(row.effect) if row.resolved else f"<{share(row.resolution)}",
        _bar(row.effect, largest) if row.resolved else "",
        kept,
        _plan_text(row),
    )


def _plan_text(row: WhatIfRow) -> str:
    if row.same_plan or row.degrees is None:
        return "the same"
    fraction = row.activation_offload_fraction
    offload = offload_text(row.optimizer_offload, row.activation_offload, fraction)
    parts = (degrees_text(row.degrees), row.recompute, offload)
    return ", ".join(part for part in parts if part)


def _bar(effect: float, largest: float) -> str:
    """Length by size of the effect; hollow where the step gets longer."""
    cells = max(1, round(_BAR_CELLS * abs(effect) / largest))
    return ("█" if effect < 0 else "░") * cells


def _limit(found: WhatIf) -> str:
    size = f"{gib(found.limit_bytes)} GiB"
    if found.chosen_for_memory:
        return f"{size}, as this one, which was chosen for its memory"
    return f"{size}, which fits with {share(found.fit_probability, 0)} probability"


def _notes(found: WhatIf) -> tuple[str, ...]:
    notes = [
        f"Plans of at most {_limit(found)}. Effects are against the best plan now; 'this "
        "plan': its degrees and layers as they are, on the changed hardware.",
        "<: smaller than the search resolves. ±: 80 % interval of the step time; how sure the "
        "effects themselves are was not measured.",
    ]
    if not found.best_is_this:
        notes.insert(
            0,
            f"The best plan now takes {seconds(found.best_s)}, this one "
            f"{seconds(found.step_time_s)}.",
        )
    if any("░" in _bar(row.effect, 1.0) for row in found.rows if row.effect and row.resolved):
        notes.append("░: slower: leave it out.")
    return tuple(notes)
