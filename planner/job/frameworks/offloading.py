"""What a framework can keep of the activations on the host: the table `activation_offload`."""

from __future__ import annotations

from typing import Annotated, Literal

from hardware.frozen import Frozen
from planner.job.frameworks.units import Bytes, NonNegative, unit


class ActivationOffload(Frozen):
    """Activations that leave the GPU between forward and backward.

    `modules`: names of what can be offloaded, in the framework's order
    (`planner.predict.ops.offload` says which tensors each stands for); empty: the framework has no
    such option, or none that is modelled, and `refusal` says which.
    """

    modules: tuple[str, ...] = ()
    """Names of what can be offloaded, in the framework's order (`planner.predict.ops.offload` says
    which tensors each stands for); empty: there is no such option, or none that is modelled."""
    refusal: str = "has no option for it"
    """Why nothing can be offloaded, where `modules` is empty."""
    flags: str = ""
    """How the framework spells it: a template with `{modules}`."""
    fraction_flags: str = ""
    """How it spells that a share of the layers' tensors leaves: a template with `{fraction}`; none:
    all do. `constraints.offload` says which stay."""
    searched: tuple[tuple[str, ...], ...] = ()
    """Sets of modules that a search tries, `*` for all that the model has."""
    least_offload_bytes: Bytes = 0
    """Smaller tensors stay on the GPU."""
    resident_layers: Annotated[NonNegative, unit("layers")] = 2.0
    """Layers whose offloaded tensors are on the GPU all the same: those on their way to the host,
    and those that backward reads or fetches ahead."""
    recompute: Literal["selective", "full"] = "selective"
    """Recompute modes that it works with: what they leave in a layer, or only the checkpoints."""
    precisions: tuple[str, ...] = ("bf16", "fp16")
    """Precisions that it works with."""
    low_precision_modules: tuple[str, ...] = ()
    """Modules that keep 16-bit tensors in any precision: others keep quantised inputs of
    products."""
    evidence: str = ""
    """Where this table's figures come from."""
