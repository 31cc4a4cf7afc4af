"""Why no layout of a shape is legal: a minimal set of rules, by assumption literals."""

from __future__ import annotations

from constraints.layout import LAYOUT_RULES, LayoutContext, make_variables
from planner.search import solver_module
from planner.search.layout_model import SolverOptions, make_solver


def layout_conflict(ctx: LayoutContext) -> tuple[str, ...]:
    """Names of rules that together exclude every layout, none of which could be left out.

    The memory rule appears once a stage (`stage-memory[0]`). Empty if a layout exists. CP-SAT's
    sufficient set of assumptions comes first, then a deletion filter makes it minimal.
    """
    core = _sufficient(ctx, None)
    for name in core:
        without = tuple(other for other in core if other != name)
        if len(without) < len(core) and _sufficient(ctx, without):
            core = without
    return core


def _sufficient(ctx: LayoutContext, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Assumed rules that suffice for infeasibility, among `names` (None: all); () if feasible."""
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
