"""What a framework can keep of the activations on the host: the table `activation_offload`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.frameworks.tensors import Bytes, Frozen


class ActivationOffload(Frozen):
    """Activations that leave the GPU between forward and backward.

    `modules`: names of what can be offloaded, in the framework's order (`planner.ops.offload` says
    which tensors each stands for); empty: the framework has no such option, or none that is
    modelled, and `refusal` says which.
    """

    modules: tuple[str, ...] = ()
    refusal: str = "has no option for it"
    # How the framework spells it: a template with `{modules}`.
    flags: str = ""
    # How it spells that a share of the layers' tensors leaves: a template with `{fraction}`; none:
    # all do. `constraints.offload` says which stay.
    fraction_flags: str = ""
    # Sets of modules that a search tries, `*` for all that the model has.
    searched: tuple[tuple[str, ...], ...] = ()
    # Smaller tensors stay on the GPU.
    least_bytes: Bytes = 0
    # Layers whose offloaded tensors are on the GPU all the same: those on their way to the host,
    # and those that backward reads or fetches ahead.
    resident_layers: Annotated[float, Field(ge=0.0)] = 2.0
    # Recompute modes that it works with: what they leave in a layer, or only the checkpoints.
    recompute: Literal["selective", "full"] = "selective"
    precisions: tuple[str, ...] = ("bf16", "fp16")
    # Modules that keep 16-bit tensors in any precision: others keep quantised inputs of products.
    low_precision_modules: tuple[str, ...] = ()
    evidence: str = ""
