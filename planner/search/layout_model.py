"""The CP-SAT model of one shape: which layers are on which stage, and how many recompute.

It minimises the step time T·d = (m·d - n)·max + n·sum + d·(exposed traffic + optimizer), the form
of `planner.cost.pipeline.pipeline_time_s`, under the layout rules. Symbols: m = grad_acc; n/d = the
schedule's bubble share (1F1B: 1/vpp), rounded down; max, sum: forward plus backward time of a
micro-batch on the slowest stage (GPipe: the longest forward plus the longest backward) and on all
stages. A solve starts from the usual split, or from the one that attains a bound. If no layout is
legal, a minimal set of rules says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Literal

from constraints.layout import LAYOUT_RULES, stage_memory
from constraints.layout_context import LayoutContext, block_taken
from constraints.layout_variables import LayoutVariables, make_variables
from constraints.rule import Layout
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search import solver_module
from planner.search.layout_objective import LARGEST_INTEGER, Objective
from planner.search.terms import ShapeTerms

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, CpSolverSolutionCallback, IntVar

# Work allowed for one solve, in CP-SAT's deterministic seconds.
DETERMINISTIC_TIME_S = 0.2
# A layout this close to its bound counts as solved. It is half of the promised gap, because the
# bound of some schedules (ZB-V) is itself below their cost.
GAP_LIMIT = 0.5 * OPTIMAL_WITHIN


@dataclass(frozen=True)
class SolverOptions:
    """How CP-SAT runs. Equal options give equal layouts unless `wall_s` (seconds) cuts a solve
    short.

    One thread per solve: interleaved search with more threads is repeatable too, but needs several
    times the work for the same optimum.
    """

    seed: int = 0
    deterministic_time_s: float = DETERMINISTIC_TIME_S
    wall_s: float | None = None


@dataclass(frozen=True)
class LayoutSolution:
    """`bound_s`: no layout of the shape within the memory limit has a shorter step.

    `gap`: (objective - bound) / objective, in the solver's rounded numbers. `unknown`: neither a
    layout nor a proof was found within the effort allowed. `effort_s`: work in CP-SAT's
    deterministic seconds. `step_s`: the layout's objective, which rounds down.
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
) -> LayoutSolution:
    """The fastest layout of a shape that satisfies every layout rule.

    `within_s`: range of step times of interest. Its lower end is an already proven bound. If no
    layout beats its upper end, the answer is `infeasible` with that end as the bound. `start`:
    layers of each stage to try first; () for the usual split.
    """
    cp_model = solver_module.cp_model()
    options = options or SolverOptions()
    model = cp_model.CpModel()
    variables = make_variables(model, ctx)
    for rule in LAYOUT_RULES:
        rule.add(model, variables, ctx)
    objective = Objective(model, variables, ctx, terms)
    if objective.largest() > LARGEST_INTEGER:
        return LayoutSolution("unknown", None, within_s[0], 1.0)
    steps = objective.expression()
    model.minimize(steps)
    objective.restrict(steps, within_s)
    _break_symmetry(model, variables, ctx)
    hint(model, variables, ctx, start)
    solver = make_solver(options)
    status = solver.solve(model, _stop_within(objective.units(within_s[0]) / (1.0 - GAP_LIMIT)))
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


def _stop_within(units: float) -> CpSolverSolutionCallback:
    """Ends a solve once a layout costs at most `units`. That is close enough to the initial bound,
    which CP-SAT would otherwise prove again in rounded numbers."""
    cp_model = solver_module.cp_model()

    class Stop(cp_model.CpSolverSolutionCallback):  # type: ignore[misc,name-defined]
        def on_solution_callback(self) -> None:
            if self.objective_value <= units:
                self.stop_search()

    return Stop()


def _break_symmetry(model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
    """With one kind of layer a stage's chunks are interchangeable: put the larger ones first."""
    if ctx.kind_count > 1 or ctx.layouts != "any" or ctx.placement != "straight":
        return
    # Only the first block may be empty, and then it is not interchangeable with the next chunk.
    first = ctx.pp + 1 if ctx.standalone_vocab else ctx.pp
    for block in range(first, ctx.blocks):
        model.add(variables.layers[block - ctx.pp] >= variables.layers[block])


def make_solver(options: SolverOptions) -> CpSolver:
    """A repeatable solver: fixed seed, and limits on work instead of wall time."""
    solver: CpSolver = solver_module.cp_model().CpSolver()
    solver.parameters.random_seed = options.seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = options.deterministic_time_s
    if options.wall_s is not None:
        solver.parameters.max_time_in_seconds = max(0.0, options.wall_s)
    solver.parameters.relative_gap_limit = GAP_LIMIT
    solver.parameters.cp_model_probing_level = 1
    # Layouts are a few small integers: cuts of the relaxation cost more than they save, up to a
    # quarter of a search.
    solver.parameters.cut_level = 0
    # Ctrl-C ends the whole search, not just the current solve.
    solver.parameters.catch_sigint_signal = False
    return solver


def read_layout(solver: CpSolver, variables: LayoutVariables, ctx: LayoutContext) -> Layout:
    """The layout that the solver chose."""

    def per_stage(int_vars: Sequence[IntVar]) -> tuple[int, ...]:
        counts = [solver.value(count) for count in int_vars]
        return tuple(
            sum(counts[block] for block in ctx.stage_blocks(stage)) for stage in range(ctx.pp)
        )

    again = per_stage(variables.recomputed) if variables.recomputed else ()
    return Layout(
        pp=ctx.pp,
        vpp=ctx.vpp,
        block_layers=tuple(solver.value(layer) for layer in variables.layers),
        recomputed={ctx.modes[0]: again} if any(again) else {},
        placement=ctx.placement,
    )


def layout_conflict(ctx: LayoutContext) -> tuple[str, ...]:
    """Names of a minimal set of rules that together exclude every layout.

    The memory rule appears once per stage (`stage-memory[0]`). Empty if a layout exists. CP-SAT's
    sufficient set of assumptions comes first; a deletion filter then makes it minimal.
    """
    core = _sufficient(ctx, None)
    for name in core:
        without = tuple(other for other in core if other != name)
        if len(without) < len(core) and _sufficient(ctx, without):
            core = without
    return core


def _sufficient(ctx: LayoutContext, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Assumed rules among `names` (None: all) that suffice for infeasibility; () if feasible."""
    cp_model = solver_module.cp_model()
    model = cp_model.CpModel()
    variables = make_variables(model, ctx, explain=True)
    for rule in LAYOUT_RULES:
        rule.add(model, variables, ctx)
    literals = variables.assumed or {}
    chosen = tuple(literals) if names is None else names
    model.add_assumptions([literals[name] for name in chosen])
    solver = make_solver(SolverOptions())
    if solver.solve(model) != cp_model.INFEASIBLE:
        return ()
    by_index = {literal.index: name for name, literal in literals.items()}
    indices = solver.sufficient_assumptions_for_infeasibility()
    return tuple(by_index[index] for index in indices)


def hint(
    model: CpModel,
    variables: LayoutVariables,
    ctx: LayoutContext,
    start: tuple[int, ...],
) -> None:
    """Let the solver start from `first_blocks`."""
    blocks, again = first_blocks(ctx, start)
    for layer, wanted in zip(variables.layers, blocks, strict=True):
        model.add_hint(layer, wanted)
    for layer, wanted in zip(variables.recomputed, again, strict=False):
        model.add_hint(layer, wanted)


def first_layout(ctx: LayoutContext, start: tuple[int, ...]) -> Layout | None:
    """The layout of `first_blocks`, if it satisfies every rule."""
    layout = _with_counts(*first_blocks(ctx, start), ctx)
    return layout if all(rule.check(layout, ctx) for rule in LAYOUT_RULES) else None


def first_blocks(
    ctx: LayoutContext, start: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(layers of each block, recomputing layers of each block): the usual split or that of `start`,
    with as few recomputing layers as fit.

    `start`: layers of each stage; () for the usual ones.
    """
    blocks = chunks(start, ctx) if start else ctx.usual_split
    return blocks, _fewest_recomputed(blocks, ctx)


def chunks(stage_layers: tuple[int, ...], ctx: LayoutContext) -> tuple[int, ...]:
    """Layers of each block: a stage's chunks as equal as possible, and the one with the head the
    smallest."""
    blocks = [0] * ctx.blocks
    last = ctx.blocks - 1
    for stage, layers in enumerate(stage_layers):
        stage_blocks = ctx.stage_blocks(stage)
        left = layers
        if stage_blocks[-1] == last and len(stage_blocks) > 1:
            # The other chunks hold `fewer` more layers than this one.
            fewer = max(1, ctx.fewer_layers(last))
            even = -(((len(stage_blocks) - 1) * fewer - layers) // len(stage_blocks))
            blocks[last] = max(ctx.least_layers(last), even)
            left, stage_blocks = layers - blocks[last], stage_blocks[:-1]
        for index, block in enumerate(stage_blocks):
            blocks[block] = (left + len(stage_blocks) - 1 - index) // len(stage_blocks)
    return tuple(blocks)


def _fewest_recomputed(blocks: tuple[int, ...], ctx: LayoutContext) -> tuple[int, ...]:
    """Recomputing layers of each block; in partial modes the smallest common number that fits."""
    if ctx.recomputation in ("none", "all"):
        return blocks if ctx.recomputation == "all" else (0,) * len(blocks)
    for most in range(1, max(blocks)):
        taken = tuple(min(most, block) for block in blocks)
        layout = _with_counts(blocks, taken, ctx)
        if block_taken(layout, ctx) is not None and stage_memory.check(layout, ctx):
            return taken
    return blocks


def _with_counts(blocks: tuple[int, ...], taken: tuple[int, ...], ctx: LayoutContext) -> Layout:
    plain = Layout(ctx.pp, ctx.vpp, blocks, {}, ctx.placement)
    return replace(plain, recomputed={mode: plain.per_stage(taken) for mode in ctx.modes[:1]})
