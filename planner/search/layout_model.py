"""The CP-SAT model of one shape: which layers on which stage, and how many recompute.

Minimises the step time T·d = (m·d - n)·max + n·sum + d·(exposed traffic + optimizer), the form of
`planner.cost.pipeline.pipeline_time_s`, under the layout rules. Symbols: m = grad_acc, n/d = the
schedule's bubble share (1F1B: 1/vpp), rounded down; max, sum: forward plus backward of a
micro-batch on the slowest stage (GPipe: the longest forward plus the longest backward) and on all
stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Literal

from constraints.layout import (
    LAYOUT_RULES,
    LayoutContext,
    LayoutVariables,
    block_recomputed,
    make_variables,
    stage_memory,
)
from constraints.rule import Layout
from planner.cost import linear, schedule
from planner.cost.tables import Array
from planner.search.terms import TIME_RESOLUTION, ApartTerms, ShapeTerms

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar

    from constraints.layout_variables import Expression

Rounding = Callable[[float], int]

# Work allowed for one solve, in CP-SAT's deterministic seconds.
DETERMINISTIC_TIME_S = 0.2
# A layout this near to its bound counts as optimal: the cost model is far less exact.
GAP_LIMIT = 1e-3
# A bubble share that is no simple fraction is rounded down to a multiple of one over this: with
# large coefficients the solver's linear relaxation gets slow.
SHARE_STEPS = 256
# CP-SAT adds up in 64 bits; a model with larger sums is not given to it.
LARGEST_INTEGER = 2**60
# A bound in seconds, brought to whole units, is loosened by what rounding terms down can cost.
ROUNDING = 1e-3


@dataclass(frozen=True)
class SolverOptions:
    """How CP-SAT runs; equal options give equal layouts unless `wall_s` (seconds) cuts a solve.

    One thread a solve: interleaved search with more repeats itself too, but takes several times
    the work for the same optimum. More workers solve more shapes at a time (planner.search.ahead).
    """

    seed: int = 0
    deterministic_time_s: float = DETERMINISTIC_TIME_S
    wall_s: float | None = None


@dataclass(frozen=True)
class LayoutSolution:
    """`bound_s`: no layout of the shape within the memory limit has a shorter step.

    `gap`: (objective - bound) / objective, in the solver's own rounded numbers. `unknown`:
    neither a layout nor a proof was found within the effort allowed. `effort_s`: work done, in
    CP-SAT's deterministic seconds. `step_s`: the objective of the layout, which rounds down.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    layout: Layout | None
    bound_s: float
    gap: float
    effort_s: float = 0.0
    step_s: float = inf


def solve_layout(
    terms: ShapeTerms,
    ctx: LayoutContext,
    options: SolverOptions | None = None,
    within_s: tuple[float, float] = (0.0, inf),
    start: tuple[int, ...] = (),
    apart: bool | None = None,
) -> LayoutSolution:
    """The fastest layout of a shape that obeys every layout rule.

    `within_s`: step times between which an answer is wanted. The lower end is a bound already
    proven; without a layout faster than the upper end the answer is `infeasible`, with that end
    as its bound. `start`: layers of each stage to try first; (): those of the usual split.
    `apart`: only layouts that have multi-token prediction apart (True), or have not (False).
    """
    from ortools.sat.python import cp_model

    options = options or SolverOptions()
    model = cp_model.CpModel()
    variables = make_variables(model, ctx)
    if apart is not None and variables.apart is not None:
        model.add(variables.apart == apart)
    for rule in LAYOUT_RULES:
        rule.add(model, variables, ctx)
    objective = _Objective(model, variables, ctx, terms)
    if objective.largest() > LARGEST_INTEGER:
        return LayoutSolution("unknown", None, within_s[0], 1.0)
    steps = objective.expression()
    model.minimize(steps)
    objective.restrict(steps, within_s)
    _break_symmetry(model, variables, ctx)
    _hint(model, variables, ctx, start, apart)
    solver = make_solver(options)
    status = solver.solve(model)
    effort_s = solver.response_proto.deterministic_time
    if status == cp_model.INFEASIBLE:
        return LayoutSolution("infeasible", None, within_s[1], 0.0, effort_s)
    bound_s = objective.seconds(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return LayoutSolution("unknown", None, bound_s, 1.0, effort_s)
    value = max(solver.objective_value, 1.0)
    return LayoutSolution(
        "optimal" if status == cp_model.OPTIMAL else "feasible",
        read_layout(solver, variables, ctx),
        bound_s,
        max(0.0, (value - solver.best_objective_bound) / value),
        effort_s,
        objective.seconds(value),
    )


def _break_symmetry(model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
    """With one kind of layer a stage's chunks are interchangeable: let the larger come first."""
    if ctx.kind_count > 1 or ctx.layouts != "any" or ctx.placement != "straight":
        return
    # Only the first block may be empty: it is no twin of the next chunk then.
    first = ctx.pp + 1 if ctx.lone_ends else ctx.pp
    for block in range(first, ctx.blocks):
        model.add(variables.layers[block - ctx.pp] >= variables.layers[block])


def _hint(
    model: CpModel,
    variables: LayoutVariables,
    ctx: LayoutContext,
    start: tuple[int, ...],
    apart: bool | None,
) -> None:
    """Start from the usual split or that of `start`, as few layers recomputed as fit there."""
    blocks = _chunks(start, ctx, bool(apart)) if start else ctx.usual_split
    for own, wanted in zip(variables.layers, blocks, strict=True):
        model.add_hint(own, wanted)
    if variables.apart is not None:
        model.add_hint(variables.apart, bool(apart))
    again = _fewest_recomputed(blocks, ctx, bool(apart))
    for own, wanted in zip(variables.recomputed, again, strict=True):
        model.add_hint(own, wanted)
    if ctx.offload is not None and variables.offload is not None:
        least = _least_fraction(blocks, again, ctx, ctx.offload.fractions)
        for chosen, fraction in zip(variables.offload.chosen, ctx.offload.fractions, strict=True):
            model.add_hint(chosen, fraction == least)


def _least_fraction(
    blocks: tuple[int, ...], again: tuple[int, ...], ctx: LayoutContext, tried: tuple[float, ...]
) -> float:
    """The smallest fraction of activations that must leave for a layout to fit."""
    layout = _with_counts(blocks, again, ctx)
    ordered = sorted(tried)
    fits = (
        own for own in ordered if stage_memory.check(replace(layout, offload_fraction=own), ctx)
    )
    return next(fits, ordered[-1])


def _chunks(
    stage_layers: tuple[int, ...], ctx: LayoutContext, apart: bool = False
) -> tuple[int, ...]:
    """Layers of each block: a stage's chunks as equal as they can be, those with the head or with
    multi-token prediction the smallest; the head's has none where that is apart."""
    blocks = [0] * ctx.blocks
    last = ctx.blocks - 1
    light = (last, last - 1) if apart else (last,)
    for stage, layers in enumerate(stage_layers):
        own = ctx.stage_blocks(stage)
        left = layers
        if own[-1] in light and len(own) > 1:
            # The other chunks hold `fewer` more than this one.
            fewer = max(1, ctx.fewer_layers(own[-1], apart))
            even = -(((len(own) - 1) * fewer - layers) // len(own))
            alone = apart and own[-1] == last
            blocks[own[-1]] = 0 if alone else max(ctx.least_layers(own[-1], apart), even)
            left, own = layers - blocks[own[-1]], own[:-1]
        for index, block in enumerate(own):
            blocks[block] = (left + len(own) - 1 - index) // len(own)
    return tuple(blocks)


def _fewest_recomputed(
    blocks: tuple[int, ...], ctx: LayoutContext, apart: bool = False
) -> tuple[int, ...]:
    """Recomputed layers of each block: in partial modes the smallest common number that fits."""
    if ctx.recomputation in ("none", "all"):
        return blocks if ctx.recomputation == "all" else (0,) * len(blocks)
    for most in range(1, max(blocks)):
        taken = tuple(min(most, own) for own in blocks)
        layout = replace(_with_counts(blocks, taken, ctx), mtp_apart=apart)
        if block_recomputed(layout, ctx) is not None and stage_memory.check(layout, ctx):
            return taken
    return blocks


def _with_counts(blocks: tuple[int, ...], taken: tuple[int, ...], ctx: LayoutContext) -> Layout:
    plain = Layout(ctx.pp, ctx.vpp, blocks, (0,) * ctx.pp, ctx.placement)
    none = ((0,) * ctx.pp,) * ctx.others
    return replace(plain, recomputed=plain.per_stage(taken), others=none)


def make_solver(options: SolverOptions) -> CpSolver:
    """A solver that repeats itself: fixed seed, work counted instead of wall time."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.random_seed = options.seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = options.deterministic_time_s
    if options.wall_s is not None:
        solver.parameters.max_time_in_seconds = max(0.0, options.wall_s)
    solver.parameters.relative_gap_limit = GAP_LIMIT
    solver.parameters.cp_model_probing_level = 0
    # Ctrl-C belongs to the whole search, not to the solve that happens to run.
    solver.parameters.catch_sigint_signal = False
    return solver


def read_layout(solver: CpSolver, variables: LayoutVariables, ctx: LayoutContext) -> Layout:
    """The layout that the solver chose."""

    def per_stage(own: Sequence[IntVar]) -> tuple[int, ...]:
        counts = [solver.value(count) for count in own]
        return tuple(
            sum(counts[block] for block in ctx.stage_blocks(stage)) for stage in range(ctx.pp)
        )

    return Layout(
        pp=ctx.pp,
        vpp=ctx.vpp,
        block_layers=tuple(solver.value(own) for own in variables.layers),
        recomputed=per_stage(variables.recomputed),
        placement=ctx.placement,
        others=tuple(per_stage(own) for own in variables.others),
        mtp_apart=variables.apart is not None and bool(solver.boolean_value(variables.apart)),
        offload_fraction=_fraction(solver, variables, ctx),
    )


def _fraction(solver: CpSolver, variables: LayoutVariables, ctx: LayoutContext) -> float:
    """The fraction of activations that leave the GPU."""
    if ctx.offload is None or variables.offload is None:
        return 1.0
    chosen = [bool(solver.value(own)) for own in variables.offload.chosen]
    return ctx.offload.fractions[chosen.index(True)]


def share_fraction(share: float, vpp: int) -> tuple[int, int]:
    """The bubble share as a fraction, exact for 1/vpp, else rounded down to SHARE_STEPS."""
    if share * vpp == 1.0:
        return 1, vpp
    # Where it is a fraction, drains are cut by vpp too: a multiple keeps them whole.
    scale = SHARE_STEPS * vpp
    return floor(share * scale), scale


def _largest_s(apart: ApartTerms, columns: list[int]) -> float:
    """No pinned seconds of layouts with multi-token prediction apart add up to more."""
    return float(abs(apart.stage[:, columns]).sum()) + abs(apart.more_fixed_s)


class _Objective:
    """Step time of a layout in whole time units, never above what the kernel says."""

    def __init__(
        self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext, terms: ShapeTerms
    ) -> None:
        self.model = model
        self.terms = terms
        passes = terms.layer[:, linear.TERM_FORWARD] + terms.layer[:, linear.TERM_BACKWARD]
        self.unit_s = max(float(passes.max()), 1e-9) * TIME_RESOLUTION
        self.share, self.scale = share_fraction(terms.bubble_share, terms.vpp)
        stages = range(ctx.pp)
        self.layers = [variables.stage(variables.kind_layers, s, ctx) for s in stages]
        self.again = [variables.stage(variables.kind_recomputed, s, ctx) for s in stages]
        self.apart = variables.apart if terms.apart is not None else None
        self.others = [
            [variables.stage(own, s, ctx) for s in stages] for own in variables.kind_others
        ]
        self.staying: list[list[Expression]] = []
        if variables.offload is not None:
            leaving = [variables.stage(variables.offload.kind_some, s, ctx) for s in stages]
            self.staying = [
                [own - gone for own, gone in zip(*pair, strict=True)]
                for pair in zip(self.layers, leaving, strict=True)
            ]
        columns = list(linear.TIME_TERMS)
        longest_s = float(
            abs(terms.layer[:, columns]).sum() * ctx.layers
            + sum(float(abs(own.seconds).sum()) for own in terms.others) * ctx.layers
            + abs(terms.stage[:, columns]).sum()
            + abs(terms.scalars[list(linear.TIME_BASES)]).sum()
            + (0.0 if terms.apart is None else _largest_s(terms.apart, columns))
        )
        self.horizon = ceil(longest_s / self.unit_s) + 1

    def largest(self) -> int:
        """No sum in the model is larger."""
        weight = (self.terms.grad_acc + self.terms.pp + 2) * self.scale
        return 2 * weight * self.horizon

    def seconds(self, value: float) -> float:
        """Step time of an objective value, constants included."""
        fixed_s = float(self.terms.scalars[linear.SCALAR_FIXED_S])
        return value * self.unit_s / self.scale + fixed_s

    def restrict(self, steps: Expression, within_s: tuple[float, float]) -> None:
        """Keep the objective between two step times, rounded outwards."""
        scale = self.scale / self.unit_s
        fixed_s = float(self.terms.scalars[linear.SCALAR_FIXED_S])
        low, high = ((seconds - fixed_s) * scale for seconds in within_s)
        self.model.add(steps >= floor(low * (1.0 - ROUNDING)))
        if high < inf:
            self.model.add(steps <= ceil(high))

    def expression(self) -> Expression:
        """T·d in units, without the constant terms."""
        terms = self.terms
        both = (linear.TERM_FORWARD, linear.TERM_BACKWARD)
        if terms.framework.schedule == schedule.SCHEDULE_ALL_FORWARD_FIRST:
            passes = [self._seconds(both[:1]), self._seconds(both[1:])]
        else:
            passes = [self._seconds(both)]
        slowest = sum(self._largest(own) for own in passes)
        times = [own for each in passes for own in each]
        weight = terms.grad_acc * self.scale - self.share
        tail = self._traffic() + self.scale * (self._optimizer() + self._exchange())
        return weight * slowest + self.share * sum(times) + tail

    def _exchange(self) -> Expression:
        """What multi-token prediction apart adds to the exchanges between stages."""
        if self.terms.apart is None or self.apart is None:
            return 0
        return self._units(self.terms.apart.more_fixed_s, floor) * self.apart

    def _pinned(self, stage: int, columns: Sequence[int], rounding: Rounding) -> Expression:
        """Seconds of what is pinned to a stage, wherever multi-token prediction stands."""
        sums = [float(own[stage, list(columns)].sum()) for own in self._pinned_terms()]
        return self._either([self._units(seconds, rounding) for seconds in sums])

    def _pinned_terms(self) -> list[Array]:
        """[stage, TERM_*] with multi-token prediction beside the head, and perhaps apart."""
        terms = self.terms
        if terms.apart is None or self.apart is None:
            return [terms.stage]
        return [terms.stage, terms.apart.stage]

    def _either(self, units: Sequence[int]) -> Expression:
        """The first of one or two numbers, the second if multi-token prediction is apart."""
        if self.apart is None:
            return units[0]
        return units[0] + (units[1] - units[0]) * self.apart

    def _seconds(self, columns: Sequence[int]) -> list[Expression]:
        """Seconds of each stage in some columns; recomputation belongs to the backward pass."""
        stages = range(self.terms.pp)
        sums = [self._sum(stage, columns, floor) for stage in stages]
        if linear.TERM_BACKWARD not in columns:
            return sums
        return [
            own + self._recompute(stage, floor) for stage, own in zip(stages, sums, strict=True)
        ]

    def _largest(self, candidates: Sequence[Expression]) -> IntVar:
        """A variable at least as large as each; minimised, the largest of them."""
        largest = self._variable()
        for own in candidates:
            self.model.add(largest >= own)
        return largest

    def _variable(self, factor: int = 1) -> IntVar:
        return self.model.new_int_var(0, self.horizon * factor, "")

    def _units(self, seconds: float, rounding: Rounding) -> int:
        return rounding(seconds / self.unit_s)

    def _weighted(
        self, counts: Sequence[Expression], seconds: Array, rounding: Rounding
    ) -> Expression:
        return sum(
            count * self._units(float(own), rounding)
            for count, own in zip(counts, seconds, strict=True)
        )

    def _sum(self, stage: int, columns: Sequence[int], rounding: Rounding) -> Expression:
        """Seconds of a stage in some columns: layers and what is pinned there."""
        terms = self.terms
        per_layer = terms.layer_of(stage)[:, list(columns)].sum(axis=1)
        total = self._pinned(stage, columns, rounding) + self._weighted(
            self.layers[stage], per_layer, rounding
        )
        if terms.staying is None:
            return total
        stay = terms.staying.layer[:, list(columns)].sum(axis=1)
        for count, leaves_s, stays_s in zip(self.staying[stage], per_layer, stay, strict=True):
            leaves, stays = (self._units(float(own), rounding) for own in (leaves_s, stays_s))
            total = total + count * (stays - leaves)
        return total

    def _recompute(self, stage: int, rounding: Rounding) -> Expression:
        column = self.terms.layer_of(stage)[:, linear.TERM_RECOMPUTE]
        total = self._weighted(self.again[stage], column, rounding)
        for counts, mode in zip(self.others, self.terms.others, strict=True):
            total = total + self._weighted(counts[stage], mode.seconds, rounding)
        return total

    def _optimizer(self) -> Expression:
        """The slowest stage's optimizer step."""
        stages = range(self.terms.pp)
        return self._largest([self._sum(own, (linear.TERM_OPTIMIZER,), floor) for own in stages])

    def _traffic(self) -> Expression:
        """d times the exposed gradient reduction and weight gathering at the end of the step.

        A stage's traffic waits for nobody during the drain of the earlier stages' backward.
        """
        terms, framework = self.terms, self.terms.framework
        bases = [linear.SCALAR_REDUCE_BASE, linear.SCALAR_ALL_GATHER_BASE]
        columns = [linear.TERM_REDUCE, linear.TERM_ALL_GATHER]
        if not terms.scalars[bases].any() and not terms.layer[:, columns].any():
            return 0
        exposed = self._variable(self.scale)
        drain: Expression = 0
        for stage in range(terms.pp):
            backward = self._sum(stage, (linear.TERM_BACKWARD,), ceil) + self._recompute(
                stage, ceil
            )
            forward = self._sum(stage, (linear.TERM_FORWARD,), ceil)
            room = backward - self._sum(stage, (linear.TERM_TAKEN_BACKWARD,), floor)
            reduce = self._exposed(
                stage, columns[0], bases[0], framework.hide_gradient_reduction, room
            )
            room = forward - self._sum(stage, (linear.TERM_TAKEN_FORWARD,), floor)
            gather = self._exposed(
                stage, columns[1], bases[1], framework.hide_parameter_gather, room
            )
            shared = self._sum(stage, (linear.TERM_SHARED,), floor)
            self.model.add(exposed >= self.scale * (reduce + gather + shared) - drain)
            drain = drain + self.scale // terms.vpp * backward
        return exposed

    def _exposed(
        self, stage: int, column: int, base: int, hidden_share: float, room: Expression
    ) -> Expression:
        """max(share that cannot hide, what finds no room): seconds - min(h·seconds, room)."""
        terms = self.terms
        base_s = float(terms.scalars[base])
        pinned_s = [base_s + float(own[stage, column]) for own in self._pinned_terms()]
        per_layer = terms.layer_of(stage)[:, column]
        if not any(pinned_s) and not per_layer.any():
            return 0
        exposed = self._variable()
        for share, hideout in ((1.0 - hidden_share, None), (1.0, room)):
            constants = [self._units(seconds * share, floor) for seconds in pinned_s]
            seconds = self._either(constants) + self._weighted(
                self.layers[stage], per_layer * share, floor
            )
            self.model.add(exposed >= (seconds if hideout is None else seconds - hideout))
        return exposed
