"""A plan: one chosen configuration with its predicted time and memory, in a form that can be
written to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationInfo, create_model, field_serializer, field_validator

from constraints.axes import AXES, EXPERTS, LARGEST_DEGREE, WORLD, ContextKind, product_of
from constraints.rule import Layout
from hardware.frozen import Frozen, Named
from planner.cost.terms import MEMORY_TERMS, TIME_TERMS, StageTerm, TimeTerm
from planner.job.amounts import Resolution
from planner.job.bounds import MOST_MICRO_BATCHES
from planner.job.quantities import percent_sure
from planner.job.samples import Balance, Packing
from planner.predict.displays import displays

PLAN_FILE_VERSION = 7

# Fields of a layout in JSON; the others follow from the degrees.
WRITTEN_LAYOUT = ("block_layers", "recomputed", "placement", "mtp_standalone")


class Degrees(Frozen):
    """Parallel degrees and batch of a plan: a field for each axis of `constraints.axes`."""

    if TYPE_CHECKING:

        def __init__(self, **degrees: int) -> None: ...

        def __getattr__(self, axis: str) -> int: ...

    else:
        __annotations__ = dict.fromkeys(AXES, int)
        vars().update(
            (name, Field(axis.least, ge=axis.least, le=axis.largest)) for name, axis in AXES.items()
        )

    @property
    def gbs(self) -> int:
        """Global batch in sequences."""
        return self.mbs * self.grad_acc * self.dp

    @property
    def gpus(self) -> int:
        """World size: dp·tp·pp·cp."""
        return int(product_of(WORLD, self.__dict__))

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage."""
        return self.gpus // self.pp

    @property
    def expert_ranks(self) -> int:
        """Number of GPUs over which one copy of a stage's experts is distributed."""
        return int(product_of(EXPERTS, self.__dict__))

    def filling(self, gpus: int, gbs: int) -> Degrees | None:
        """Degrees with dp and grad_acc for these GPUs and sequences; None if the numbers do not
        divide."""
        dp, rest = divmod(gpus, self.tp * self.pp * self.cp)
        grad_acc, left = divmod(gbs, self.mbs * max(1, dp))
        if rest or left or not dp * grad_acc:
            return None
        return self.model_copy(update={"dp": dp, "grad_acc": grad_acc})

    def __str__(self) -> str:
        """`tp4 pp4 vpp5 cp2 dp2 z1`; uninteresting degrees of 1 are left out."""
        return " ".join(filter(None, (AXES[name].text(degree) for name, degree in self)))


Kind = TypeVar("Kind", bound=Frozen)


def with_terms(terms: Iterable[StageTerm | TimeTerm]) -> Callable[[type[Kind]], type[Kind]]:
    """Decorator that adds a field to a class for each term of a table: a float without a default,
    or 0 by default for a term that was added later."""
    fields: dict[str, Any] = {
        term.field: (float, Field(0.0 if term.added else ...)) for term in terms
    }

    def made(kind: type[Kind]) -> type[Kind]:
        return create_model(
            kind.__name__, __base__=kind, __doc__=kind.__doc__, __module__=kind.__module__, **fields
        )

    return made


@with_terms(TIME_TERMS)
class TimeTerms(Frozen):
    """Seconds of one step on the slowest stage, by term (`planner.cost.terms`); they add up to the
    step time."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...

    @property
    def total_s(self) -> float:
        """Sum of the terms: the step time."""
        return float(sum(self.model_dump().values()))


class StageContents(Frozen):
    """A pipeline stage and the micro-batches that it has in flight."""

    stage: int
    layers: int
    in_flight: float


@with_terms(MEMORY_TERMS)
class HeldMemory(StageContents):
    """A pipeline stage and the bytes of each term of its peak memory (`planner.cost.terms`)."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...


class StageMemory(HeldMemory):
    """Bytes on one GPU of a pipeline stage at its peak.

    The terms are those of its heaviest phase (`phase`), so some are zero (logits inside a layer's
    backward, activations in the update). `weights` includes everything else that always stays: mask
    buffers, input ids, gradient buckets and library workspaces.
    """

    allocated: float
    peak: float
    phase: Literal["backward", "optimizer", "forward"]
    forward_s: float
    backward_s: float
    # Activations of this GPU in host memory, in addition to the terms above.
    offloaded: float = 0.0


class SampleFigures(Frozen):
    """Figures of a step with samples of different lengths.

    `lengths`: where the lengths come from; `mean_tokens`: tokens of a mean sample after truncation;
    `cut`: share of samples that are truncated; `samples`: number in a step. `computed_tokens_per_s`
    includes padding, a plan's `tokens_per_s` does not. `mfu_counted` excludes padding too and
    counts attention only within each sample (full square, as in `mfu`).
    """

    lengths: str
    packing: Packing
    balance: Balance
    mean_tokens: float
    cut: float
    samples: float
    samples_per_s: float
    computed_tokens_per_s: float
    mfu_counted: float


class Interval(Frozen):
    """An interval in which a measured figure lies with a probability of 80 %. `family`: the
    measured runs from which it was derived; `beyond`: conditions that they do not cover, which
    widen the interval."""

    low: float
    high: float
    family: str
    # Empty in plans written before the field existed.
    beyond: tuple[str, ...] = ()

    @property
    def basis(self) -> str:
        """The measured runs behind the interval, then the conditions that widen it, if there are
        any."""
        wider = "; wider because nothing like it was measured: "
        return self.family + (wider + ", ".join(self.beyond) if self.beyond else "")


class StepPass(Frozen):
    """One pass of a step.

    `name`: role of its model in the step (`model`: the trained one, `policy`: the same model read
    without gradients, `reference`, `teacher`); `model`: name of the model; `rows`: rows of a sample
    that pass through it; `time`: seconds of a step by term; `held`: bytes of live tensors at its
    peak, on a GPU of the stage that decides whether the plan fits; `gives`: its results that later
    passes use.
    """

    name: str
    work: Literal["forward", "forward and backward", "update"]
    model: str
    rows: int
    gives: str
    time: TimeTerms
    held: dict[str, float]

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.time.total_s

    @property
    def live_bytes(self) -> float:
        """Bytes of live tensors at its peak."""
        return sum(self.held.values())


class PlanBatch(Frozen):
    """One batch of a batch ramp, except the last: the plan runs with this global batch (`gbs`) and
    gradient accumulation until training has seen `until_tokens` tokens. The interval of
    `step_time_s` has the same relative width as the plan's."""

    gbs: int = Field(ge=1, le=LARGEST_DEGREE * MOST_MICRO_BATCHES)
    grad_acc: int = Field(ge=1, le=MOST_MICRO_BATCHES)
    until_tokens: int = Field(ge=1)
    step_time_s: float = Field(ge=0, allow_inf_nan=False)


class FullMemory(Frozen):
    """The probability that the allocator's reserved memory does not fit, and the consequence.

    `step_time_s`: seconds of a step that continues in that case, None if no measured run shows it;
    `note`: measurements near the limit.
    """

    probability: float
    step_time_s: float | None = None
    note: str = ""


def expected_step_time_s(step_time_s: float, full_s: float | None, chance: float) -> float:
    """Seconds of a step at the expected throughput (1 - p)/t + p/full, by which plans of equal risk
    are ranked. p: `chance` that memory is full; t: `step_time_s`; full: `full_s`, the step time in
    that case. If `full_s` is None the result is `step_time_s`. A run that fails when memory is full
    counts like one that slows down."""
    if full_s is None:
        return step_time_s
    return 1.0 / ((1.0 - chance) / step_time_s + chance / full_s)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Largest distance of an "optimal" plan's step time from the best possible.
OPTIMAL_WITHIN = Resolution().time


class Plan(Named):
    """One configuration and its cost. Times in seconds, memory in bytes.

    `gbs_tokens`, `tokens_per_s`: tokens of samples; `mfu`: model FLOP of the computed tokens
    (`samples`), with the full attention square, over dense 16-bit peak; `mfu_causal` counts the
    lower triangle; `mfu_precision` is relative to the peak of the training precision. `schedule`:
    name of the pipeline schedule (`planner.job.schedules`). `status`: `optimal` if it is proven
    under the cost model that no plan of its job is faster by more than OPTIMAL_WITHIN without
    needing more memory; else `feasible` with `gap`, or `evaluated` for a configuration that was
    given.
    """

    degrees: Degrees
    layout: Layout
    recompute: str
    recompute_flags: str = ""
    schedule: str = "1f1b"
    gbs: int
    gbs_tokens: int
    seq: int
    step_time_s: Positive
    step_time: Interval
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    mfu_causal: float
    mfu_precision: float
    hfu: float
    peak_bytes: Positive
    peak_interval: Interval
    allocated_bytes: float
    usable_bytes: Positive
    limit_bytes: float
    heaviest_stage: int
    fits: bool
    fit_probability: float
    time: TimeTerms
    stages: tuple[StageMemory, ...]
    status: Literal["optimal", "feasible", "evaluated"]
    gap: float = 0.0
    assumptions: tuple[str, ...] = ()
    # GPU type of each stage, if they differ.
    stage_gpus: tuple[str, ...] = ()
    optimizer: str = "adamw"
    optimizer_kernel: str = ""
    optimizer_offload: float = 0.0
    optimizer_flags: str = ""
    # Modules whose activations are kept on the host.
    activation_offload: tuple[str, ...] = ()
    # Fraction of the groups of these modules' activations that leaves the GPU.
    activation_offload_fraction: float = 1.0
    activation_offload_flags: str = ""
    # Techniques of the framework that the plan uses, and their flags.
    techniques: tuple[str, ...] = ()
    technique_flags: str = ""
    # How context parallelism exchanges, and the ranks of the two levels of `a2a+p2p`; empty if cp
    # is 1, and in plans from before the choice existed (p2p).
    cp_comm_type: ContextKind | Literal[""] = ""
    cp_sizes: tuple[int, ...] = ()
    # None if memory is certain to suffice, and in plans from before the field existed.
    full_memory: FullMemory | None = None
    # The smaller batches that a ramp starts with; empty for one batch throughout.
    ramp: tuple[PlanBatch, ...] = ()
    # None if rows are cut from one text.
    samples: SampleFigures | None = None
    # The training objective, and the passes of a step in order; empty for next-token prediction.
    objective: str = ""
    passes: tuple[StepPass, ...] = ()

    @field_validator("layout", mode="before")
    @classmethod
    def _read_layout(cls, layout: Any, info: ValidationInfo) -> Any:
        """A layout from its JSON form; the number of stages comes from the degrees."""
        degrees = info.data.get("degrees")
        if not isinstance(layout, dict) or degrees is None:
            return layout
        blocks = layout.get("block_layers")
        vpp = len(blocks) // degrees.pp if isinstance(blocks, list | tuple) else degrees.vpp
        return {"pp": degrees.pp, "vpp": vpp, **layout}

    @field_serializer("layout")
    def _written_layout(self, layout: Layout) -> dict[str, Any]:
        """The layout's fields that do not follow from the degrees."""
        return {name: getattr(layout, name) for name in WRITTEN_LAYOUT}

    @property
    def rows(self) -> int:
        """Rows of tokens that the trained model computes for one sample: 2 for a pair of answers, 1
        otherwise."""
        return max((one.rows for one in self.passes if one.work != "forward"), default=1)

    @property
    def modes(self) -> tuple[str, ...]:
        """Recompute modes in use, the shape's first."""
        return tuple(dict.fromkeys((self.recompute, *self.layout.recomputed)))

    @property
    def ramp_text(self) -> str:
        """The ramp in the form that `planner.job.batch_ramp` parses, in sequences; empty for
        none."""
        steps = [f"{batch.gbs}:{batch.until_tokens}" for batch in self.ramp]
        return ",".join((*steps, str(self.gbs))) if steps else ""

    def steps_of(self, tokens: float) -> Iterator[tuple[int, float, float]]:
        """(batch in tokens, seconds per step, number of steps) of a training on this many tokens,
        for each batch of the ramp; an incomplete last step counts as a fraction."""
        done = 0.0
        for batch in self.ramp:
            until = min(float(batch.until_tokens), tokens)
            size = batch.gbs * self.gbs_tokens // self.gbs
            yield size, batch.step_time_s, (until - done) / size
            done = until
        yield self.gbs_tokens, self.step_time_s, (tokens - done) / self.gbs_tokens

    def training_s(self, tokens: float) -> float:
        """Seconds of a training on this many tokens, without interruptions."""
        return sum(seconds * steps for _, seconds, steps in self.steps_of(tokens))

    def __repr__(self) -> str:
        """One line: degrees, batch, recompute mode, time, speed, memory, probability of fitting."""
        degrees = self.degrees
        return (
            f"Plan({degrees}, {degrees.mbs}×{degrees.grad_acc}, {self.recompute}: "
            f"{self.step_time_s:.3g} s, {self.tokens_per_s_per_gpu:,.0f} tokens/s a GPU, "
            f"{self.peak_bytes / 2**30:.1f} of {self.limit_bytes / 2**30:.1f} GiB, "
            f"fits with {percent_sure(self.fit_probability)})"
        )

    __str__ = __repr__

    def plot(self, figure: Literal["all", "memory", "time", "schedule"] = "all") -> Any:
        """An Altair chart for notebooks: `memory` of each pipeline stage at its peak, GiB; `time`
        of a step by term, s; the `schedule` of the pipeline; or `all` of them. UsageError without
        the extra `plot`."""
        return displays().plot_plan(self, figure)

    def _repr_html_(self) -> str:
        """The plan's figures as a table, for notebooks."""
        return displays().plan_html(self)
