"""Contents of a pipeline stage that depend only on its parameters."""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import (
    both_shares,
    class_share,
    divided,
    no_share,
    trained_table,
)
from planner.cost.phases import reduces_at_once
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.update import copies_table, largest_update_bytes, stage_extra_state


@jit
def table_copy(stage: int, counts: Array, costs: Rows, job: JobInputs) -> float:
    """Parameters in the copy of the vocabulary table on a stage (`copies_table`)."""
    return float(costs[job.kinds].table) if copies_table(stage, counts, job) else 0.0


@jit
def fill_classes(
    stage: int, counts: Array, costs: Rows, grid: Row, job: JobInputs, framework: FrameworkInputs,
    out: Row,
) -> None:  # fmt: skip
    """Fill sums over the classes of a stage's parameters, including its copy of the vocabulary
    table."""
    total, table_class = no_share(), int(costs[job.kinds].table_class)
    copy = table_copy(stage, counts, costs, job)
    for number in range(len(framework.classes)):
        parameters = copy if number == table_class else 0.0
        for piece in range(job.pieces):
            parameters += counts[piece, stage] * costs[piece].parameters[number]
        out.parameters[number] = parameters
        total = both_shares(
            total, class_share(parameters, framework.classes[number], grid, framework)
        )
    out.weights, out.updated, out.states = total.weights, total.updated, total.states
    out.gathered, out.trained = total.gathered, total.trained
    out.trained_share = total.trained_share
    fill_ends(stage, copy, counts, costs, grid, job, framework, out)


@jit
def fill_ends(
    stage: int, copy: float, counts: Array, costs: Rows, grid: Row, job: JobInputs,
    framework: FrameworkInputs, out: Row,
) -> None:  # fmt: skip
    """Fill the parameters of embedding, head and multi-token prediction, which have `copy` of the
    vocabulary table, and the gradients that exist once backward is past them."""
    first, last = job.kinds, job.kinds + 1
    mtp = min(last + 1, job.pieces - 1)
    has_first, has_last = counts[first, stage], counts[last, stage]
    modules = counts[mtp, stage] if mtp > last else 0.0
    # The head makes the gradient of a tied copy; of any other, multi-token prediction does.
    tied = copy if job.tied_embeddings > 0.0 and has_last > 0.0 else 0.0
    divides, table_class = reduces_at_once(grid, framework), int(costs[first].table_class)
    vocab_gathered = mtp_gathered = embedding_trained = head_trained = 0.0
    by_head = by_mtp = by_layers = 0.0
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        embedding = has_first * costs[first].parameters[number]
        head = has_last * costs[last].parameters[number]
        predicted = modules * costs[mtp].parameters[number]
        if number == table_class:
            head, predicted = head + tied, predicted + copy - tied
        vocab_gathered += one_class.gathered * (embedding + head)
        mtp_gathered += one_class.gathered * predicted
        embedding_trained += one_class.gradients * embedding
        head_trained += one_class.gradients * head
        made = one_class.gradients * head
        by_head += divided(made, divides, one_class.sharers, grid)
        made = one_class.gradients * (head + predicted)
        by_mtp += divided(made, divides, one_class.sharers, grid)
        made = one_class.gradients * (out.parameters[number] - embedding)
        by_layers += divided(made, divides, one_class.sharers, grid)
    # The head makes a gradient for a table that it shares with the embedding.
    shared = has_first * has_last * trained_table(costs, job, framework)
    head_made = head_trained + (shared if job.tied_embeddings > 0.0 else 0.0)
    beside = 0.0 if divides else head_made - head_trained
    out.vocab_gathered, out.mtp_gathered = vocab_gathered, mtp_gathered
    out.embedding_trained = embedding_trained
    out.head_trained, out.head_made = head_trained, head_made
    out.made_by_head, out.made_by_mtp = by_head + beside, by_mtp + beside
    out.made_by_layers = by_layers + beside


@jit
def fill_parameters(
    stage: int, counts: Array, costs: Rows, grid: Row, job: JobInputs, framework: FrameworkInputs,
    out: Row,
) -> None:  # fmt: skip
    """Fill the contents of a stage that depend only on its parameters."""
    fill_classes(stage, counts, costs, grid, job, framework, out)
    out.layers = out.layer_casts = out.update_bytes = 0.0
    for kind in range(job.kinds):
        out.layers += counts[kind, stage]
        out.layer_casts += counts[kind, stage] * costs[kind].casts
    for piece in range(job.pieces):
        largest = largest_update_bytes(costs[piece], grid, framework)
        out.update_bytes = max(out.update_bytes, largest)
    out.extra_state = stage_extra_state(stage, counts, costs, grid, job)
    first, last = job.kinds, job.kinds + 1
    mtp, loss = min(last + 1, job.pieces - 1), min(last + 2, job.pieces - 1)
    has_first, has_last = counts[first, stage], counts[last, stage]
    modules = counts[mtp, stage] if mtp > last else 0.0
    losses = counts[loss, stage] if mtp > last else 0.0
    out.head = has_last
    out.head_casts = has_last * costs[last].casts
    out.mtp_modules, out.mtp_losses = modules, losses
    out.mtp_casts = modules * costs[mtp].casts + losses * costs[loss].casts
    out.mtp_table = min(modules, 1.0) * trained_table(costs, job, framework)
    out.mtp_table_waits = has_first * out.mtp_table
