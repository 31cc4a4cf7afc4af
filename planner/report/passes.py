"""The passes of a step: their model and purpose, their time, and their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.job.quantities import gib
from planner.predict.plan import StepPass
from planner.report.said import described, table_of
from planner.report.tables import Block, Notes

# Number of terms of a pass's memory that a table names.
_NAMED = 3


def passes_blocks(passes: Sequence[StepPass], plan: int = 0) -> Iterator[Block]:
    """The table of passes and a note; empty if a step is a single pass. `plan`: number of the plan,
    0 if there is only one."""
    if not passes:
        return
    whole = sum(one.seconds for one in passes)
    yield table_of(
        "passes.table", passes, of=plan, label=pass_label, largest=largest_terms,
        share=lambda one: one.seconds / whole,
    )  # fmt: skip
    yield Notes((described("passes.note"),))


def pass_label(one: StepPass) -> str:
    """`reference: forward`, `teacher (llama-3-70b): forward`."""
    named = f" ({one.model})" if one.name == "teacher" else ""
    return f"{one.name}{named}: {one.work}"


def largest_terms(one: StepPass) -> str:
    """`weights of the model 15.0, activations 3.1, logits 2.4`."""
    terms = sorted(one.held.items(), key=lambda term: -term[1])[:_NAMED]
    return ", ".join(f"{name} {gib(size)}" for name, size in terms)
