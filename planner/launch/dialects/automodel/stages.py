"""How AutoModel splits layers over a pipeline's stages.

NVIDIA-NeMo/Automodel 0.7.0, components/distributed/pipelining/functional.py:
`calculate_virtual_stages` counts them, `generate_hf_model_fqn_per_model_part` gives the first ones
a layer more where they do not divide evenly.
"""

from __future__ import annotations


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage in order, virtual stages each by itself."""
    least, more = divmod(layers, stages)
    return tuple(least + (stage < more) for stage in range(stages))


def layers_a_stage(layers: int, stages: int) -> int:
    """`layers_per_stage` of so many stages: the most that one has."""
    return -(-layers // stages)


def stages_of(layers: int, per_stage: int | None, pp: int, *, interleaved: bool) -> int | None:
    """How many stages a file asks for; None where they do not come out as a multiple of `pp`."""
    if per_stage is None:
        return pp * (2 if interleaved else 1)
    stages = -(-layers // per_stage)
    return stages if stages % pp == 0 else None
