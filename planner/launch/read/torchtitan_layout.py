"""How torchtitan splits layers over pipeline stages, and the schedules it can name."""

from __future__ import annotations

from planner.launch.read.found import Problem

# torch.distributed.pipelining.schedules.get_schedule_class (torch 2.10), case ignored -> the
# planner's name; None: without a prediction. The second says how many stages a rank holds.
SCHEDULES: dict[str, tuple[str | None, int]] = {
    "1F1B": ("1f1b", 1),
    "GPipe": ("gpipe", 1),
    "Interleaved1F1B": ("interleaved", 2),
    "InterleavedZeroBubble": ("zb-h1", 2),
    "ZBVZeroBubble": ("zb-v", 2),
    "DualPipeV": ("dualpipev", 2),
    "LoopedBFS": (None, 2),
    "PipelineScheduleSingle": (None, 1),
    "PipelineScheduleMulti": (None, 2),
}


def schedule_of(text: str) -> tuple[str, str | None, int] | None:
    """(name as torch spells it, the planner's, least stages a rank); None if unknown."""
    for name, (item, stages) in SCHEDULES.items():
        if name.lower() == text.lower():
            return name, item, stages
    return None


def stage_count(
    layers: int, pp: int, per_stage: int | None, single: bool, less_layers: tuple[int, int]
) -> tuple[int, Problem | None]:
    """Stages a rank, and what torchtitan refuses.

    `less_layers`: layers that the embedding and the head count for. Source: torchtitan 0.2.2 and
    0.3, distributed/pipeline_parallel.py, pipeline_llm.
    """
    if per_stage is None:
        return (1 if single else 2), None
    stages = -(-(layers + sum(less_layers)) // max(1, per_stage))
    chunks, rest = divmod(stages, pp)
    counted = (
        f"{layers} layers and {sum(less_layers)} for the ends, {per_stage} a stage: {stages} stages"
    )
    if rest:
        return max(1, chunks), Problem(
            "layers-per-stage", f"{counted}, not a multiple of pipeline_parallel_degree {pp}"
        )
    if single and chunks != 1:
        return chunks, Problem(
            "layers-per-stage",
            f"{counted}, {chunks} a rank: this schedule takes one",
            fix=f"pipeline_parallel_layers_per_stage = {-(-(layers + sum(less_layers)) // pp)}",
        )
    if not single and chunks < 2:
        return chunks, Problem(
            "layers-per-stage", f"{counted}, {chunks} a rank: this schedule takes two or more"
        )
    return chunks, None


def stage_layers(layers: int, stages: int, less_layers: tuple[int, int]) -> tuple[int, ...] | None:
    """Layers of each stage in order; None where torchtitan refuses.

    The embedding counts as `ends[0]` layers of the first stage, norm and head as `ends[1]` of the
    last; what does not divide goes to the first stages. Source: torchtitan 0.2.2 and 0.3,
    generate_llm_fqn_per_model_part.
    """
    if stages == 1:
        return (layers,)
    each, extra = divmod(layers + sum(less_layers), stages)
    if each == 0 or max(less_layers) > each:
        return None
    counts = [each + (at < extra) for at in range(stages)]
    counts[0] -= less_layers[0]
    counts[-1] -= less_layers[1]
    return tuple(counts)


def named_parts(parts: object) -> tuple[int, ...] | None:
    """Layers of each part of `module_fqns_per_model_part`; None if it is no such list."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return None
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
