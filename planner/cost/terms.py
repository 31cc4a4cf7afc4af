"""The terms of a GPU's memory and of a step's time: one table of each.

Records of the core have a column for each of them, plans a field; sums, reports, figures, frames
and the solver's model go through these tables. So a new term is a row here, and its figure: for
memory the bytes of a `MemoryTerm` (`planner.cost.phase_records`), for time the seconds that
`planner.cost.step` fills in, or those of `constant_seconds` below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from planner.cost._jit import jit

if TYPE_CHECKING:
    from planner.cost.tables import FrameworkInputs

# Groups of terms with the same colour in figures, in the order of the stack.
MEMORY_GROUPS = (
    "weights", "optimizer", "gradients", "activations kept", "working set, recomputed",
    "logits and loss", "other tensors", "beside the tensors",
)  # fmt: skip
OTHER_TENSORS, BESIDE_TENSORS = MEMORY_GROUPS[-2:]


class MemoryTerm(NamedTuple):
    """A term of a phase's live tensors.

    `words`: description for people; `stage`: the `StageTerm` that counts it; `group`: one of
    MEMORY_GROUPS; `heading`: the column of a table of stages that counts it, empty for the rest.
    """

    words: str
    stage: str
    group: str = OTHER_TENSORS
    heading: str = ""


class StageTerm(NamedTuple):
    """A term of a stage's peak memory. `name`: of its column, and of its field in saved plans.

    `words`, `group`, `heading`: as in `MemoryTerm`. `snapshot`: the category of torch's memory
    snapshots that counts it, empty if it is outside tensors. `added`: True if the term is newer
    than the format of plans, so that older saved plans may lack its field.
    """

    name: str
    words: str
    group: str = OTHER_TENSORS
    heading: str = ""
    snapshot: str = ""
    added: bool = False

    @property
    def field(self) -> str:
        """Name of this term's field in saved plans; the value there is in bytes."""
        return self.name


MEMORY_TERMS = (
    StageTerm("weights", "weights", "weights", "weights", "weights"),
    StageTerm("gradients", "gradients", "gradients", "grads", "gradients"),
    StageTerm("optimizer", "optimizer state", "optimizer", "optim.", "optimizer"),
    StageTerm(
        "activations", "activations kept for backward", "activations kept", "activ.", "activations"
    ),
    StageTerm("working", "working set of one layer", "working set, recomputed", "", "backward"),
    StageTerm("logits", "logits and loss", "logits and loss", "", "activations"),
    StageTerm("gather_buffers", "gathered parameters (ZeRO-3)", "weights", "", "weights"),
    StageTerm("optimizer_temporary", "optimizer temporaries", "optimizer", "", "optimizer"),
    StageTerm("fragmentation", "allocator rounding and fragmentation", BESIDE_TENSORS),
    StageTerm("communication", "communication buffers", BESIDE_TENSORS),
    StageTerm("context", "CUDA context and libraries", BESIDE_TENSORS),
)


class RestingTerms(NamedTuple):
    """Bytes of live tensors that are the same in every phase, by term; those of `constant_bytes`
    come last."""

    weights: Annotated[float, MemoryTerm("weights", "weights", "weights", "weights")]
    master_weights: Annotated[
        float, MemoryTerm("master weights", "optimizer", "optimizer", "weights")
    ]
    optimizer_state: Annotated[
        float, MemoryTerm("optimizer state", "optimizer", "optimizer", "optim.")
    ]
    gradient_buckets: Annotated[
        float, MemoryTerm("gradient buckets", "weights", "gradients", "grads")
    ]
    buffers: Annotated[float, MemoryTerm("causal-mask buffers", "weights")]
    inputs: Annotated[float, MemoryTerm("token ids and labels", "weights")]
    workspaces: Annotated[float, MemoryTerm("cuBLAS workspaces", "weights")]


class MovingTerms(NamedTuple):
    """Bytes of live tensors that differ between phases, by term, in the order of their lives."""

    gradients: Annotated[float, MemoryTerm("gradients", "gradients", "gradients", "grads")]
    activations: Annotated[
        float, MemoryTerm("activations kept", "activations", "activations kept", "activ.")
    ]
    weight_casts: Annotated[
        float, MemoryTerm("autocast copies of weights", "activations", "weights")
    ]
    recomputed: Annotated[
        float,
        MemoryTerm("activations made again", "working", "working set, recomputed", "activ."),
    ]
    logits: Annotated[float, MemoryTerm("logits and loss at work", "logits", "logits and loss")]
    working: Annotated[
        float, MemoryTerm("working set of a layer", "working", "working set, recomputed")
    ]
    gathered_weights: Annotated[float, MemoryTerm("gathered weights", "gather_buffers", "weights")]
    unsharded_gradients: Annotated[
        float, MemoryTerm("unsharded gradients", "gather_buffers", "gradients", "grads")
    ]
    reduction: Annotated[
        float, MemoryTerm("gradient reduction buffers", "gather_buffers", "gradients", "grads")
    ]
    optimizer_temporaries: Annotated[
        float, MemoryTerm("optimizer temporaries", "optimizer_temporary", "optimizer", "optim.")
    ]


class PhaseTerms(NamedTuple):
    """All live tensors of a phase, in bytes by term."""

    resting: RestingTerms
    moving: MovingTerms


def _terms(kind: type[Any]) -> dict[str, MemoryTerm]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items()}


RESTING_TERMS, MOVING_TERMS = _terms(RestingTerms), _terms(MovingTerms)
# Terms of live tensors by name, as reports call them.
LIVE_TERMS = {name.replace("_", " "): term for name, term in (RESTING_TERMS | MOVING_TERMS).items()}
# Memory outside live tensors by name, without communicators and blocks of the update.
OUTSIDE_TERMS = {
    "fragmentation": MemoryTerm("rounding, fragmentation", "fragmentation", BESIDE_TENSORS),
    "context": MemoryTerm("CUDA context, libraries", "context", BESIDE_TENSORS),
}
_PLACES = {term.name: place for place, term in enumerate(MEMORY_TERMS)}
RESTING_PLACES = tuple(_PLACES[term.stage] for term in RESTING_TERMS.values())
MOVING_PLACES = tuple(_PLACES[term.stage] for term in MOVING_TERMS.values())
OPTIMIZER_PLACE = _PLACES["optimizer"]
LIVE_PLACES = tuple(sorted({*RESTING_PLACES, *MOVING_PLACES}))


@jit
def constant_bytes(framework: FrameworkInputs) -> tuple[float, ...]:
    """The last of `RestingTerms`: bytes that are the same for every stage of every
    configuration."""
    return (framework.workspace_bytes,)


class TimeTerm(NamedTuple):
    """A term of a step's seconds. `name`: of its column, and with `_s` of its field in plans.

    `of`: the passes of the slowest stage, the step as a whole, or `constant` if it is the same for
    every configuration. `traced`: the line of a traced step that counts it. `resource`, `use`: the
    resource that the step waits for, and the work that it does. `traffic`: the kind of parallelism
    whose exposed exchanges these are. `added`: plans written before it existed lack it.
    """

    name: str
    words: str
    of: Literal["passes", "step", "constant"]
    traced: str
    resource: str = ""
    use: str = ""
    traffic: str = ""
    added: bool = False

    @property
    def field(self) -> str:
        """Name of this term's field in saved plans; the value there is in seconds."""
        return f"{self.name}_s"


# The constant terms come last.
TIME_TERMS = (
    TimeTerm("compute", "compute", "passes", "compute", "GPU"),
    TimeTerm("recompute", "recompute", "passes", "compute", "HBM capacity", "recompute"),
    TimeTerm("tp", "exposed TP traffic", "passes", "tp", traffic="TP"),
    TimeTerm("cp", "exposed CP traffic", "passes", "cp", traffic="CP"),
    TimeTerm("ep", "exposed EP traffic", "passes", "ep", traffic="EP"),
    TimeTerm("fsdp", "exposed parameter gathers", "passes", "dp", traffic="ZeRO"),
    TimeTerm("pp", "exposed pipeline traffic", "step", "pp", traffic="PP"),
    TimeTerm("bubble", "pipeline bubble and waiting", "step", "idle", "pipeline bubble"),
    TimeTerm("dp", "exposed gradient traffic", "step", "dp", traffic="DP"),
    TimeTerm("optimizer", "optimizer step", "step", "optimizer", "HBM", "optimizer"),
    TimeTerm(
        "straggler", "waiting for the slowest node", "step", "idle", "slowest node", added=True
    ),
    TimeTerm(
        "unequal", "unequal samples", "step", "idle", "longest samples", added=True
    ),
    TimeTerm(
        "offload", "copies to and from the host, not hidden", "passes", "idle", "host link",
        "offload", added=True,
    ),
    TimeTerm("host", "host: data loading, logging", "constant", "idle", "host"),
)  # fmt: skip
TRAFFIC_TERMS = tuple(term for term in TIME_TERMS if term.traffic)
# Descriptions for people, by field of a plan.
TIME_WORDS = {term.field: term.words for term in TIME_TERMS}
MEMORY_WORDS = {term.field: term.words for term in MEMORY_TERMS}


@jit
def constant_seconds(framework: FrameworkInputs) -> tuple[float, ...]:
    """Seconds of the constant terms in their order; the first includes the time that a step waits
    for its samples."""
    return (framework.host_step_s,)
