"""Classes of parameters as numbers for the compiled core."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.codes import Sharers
from planner.cost.tables import CLASSES, NO_CLASSES, ClassInputs
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.optimizers import ELEMENT_BYTES
from planner.job.parameter_classes import ParameterClass, parameter_classes
from planner.predict.ops.rows import Piece


def class_names(all_pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Classes of the parameters of some pieces, in the registry's order: their numbers in the
    core are their places."""
    used = {op.parameter_class for piece in all_pieces for op in piece.ops if op.parameters}
    names = tuple(name for name in parameter_classes() if name in used)
    if len(names) > CLASSES or len(names) < len(used):
        known = ", ".join(parameter_classes())
        raise ValueError(f"classes {sorted(used)}: the core takes {CLASSES} of {known}")
    return names


def class_inputs(all_pieces: Sequence[Piece], profile: FrameworkProfile) -> tuple[ClassInputs, ...]:
    """The classes of some pieces under a profile, and unused ones up to the fewest of a record."""
    found = tuple(_inputs(parameter_classes()[name], profile) for name in class_names(all_pieces))
    return (*found, *NO_CLASSES[len(found) :])


def _inputs(one: ParameterClass, profile: FrameworkProfile) -> ClassInputs:
    """One class, by the profile's trained weights."""
    held = one.bytes_per_parameter
    weights = 1.0 if held is None else held / profile.state.weight_bytes
    gradients = states = float(one.trained)
    if one.gradient is not None:
        gradients = ELEMENT_BYTES[one.gradient] / profile.state.gradient_bytes
    if one.states is not None:
        states = ELEMENT_BYTES[one.states] / ELEMENT_BYTES["fp32"]
    return ClassInputs(
        sharers=float(Sharers[one.sharers.replace("-", "_").upper()]),
        weights=weights,
        gathered=weights if one.gathered == "before-use" else 0.0,
        gradients=gradients,
        reduced=gradients if one.reduced else 0.0,
        states=states,
    )
