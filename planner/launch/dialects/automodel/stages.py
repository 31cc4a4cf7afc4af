"""How AutoModel splits layers over pipeline stages.

NVIDIA-NeMo/Automodel 0.7.0, components/distributed/pipelining/functional.py:
`calculate_virtual_stages` counts the stages, `generate_hf_model_fqn_per_model_part` gives the first
ones an extra layer if needed.
"""

from __future__ import annotations

from collections.abc import Sequence


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each virtual stage, in order."""
    least, more = divmod(layers, stages)
    return tuple(least + (stage < more) for stage in range(stages))


def layers_a_stage(layers: int, stages: int) -> int:
    """The value of `layers_per_stage` that gives this number of stages: the most layers that one
    stage has."""
    return -(-layers // stages)


def stages_of(
    layers: int, per_stage: int | None, pp: int, *, interleaved: bool, rounded: str = ""
) -> int | None:
    """The number of virtual stages that a file asks for; None if it is 0 or not a multiple of `pp`.

    `per_stage`: layers per stage; None means one stage per rank, or two if the schedule is
    `interleaved`. `rounded`: `up` or `down` rounds the number to a multiple of `pp`; empty does not
    round.
    """
    if per_stage is None:
        return pp * (2 if interleaved else 1)
    stages = -(-layers // per_stage)
    if stages % pp and rounded:
        stages += pp - stages % pp if rounded == "up" else -(stages % pp)
    return stages if stages and stages % pp == 0 else None


def module_names(blocks: Sequence[int]) -> list[list[str]]:
    """The names of the modules in each pipeline stage of a transformers model. `blocks`: the number
    of layers in each stage."""
    parts: list[list[str]] = []
    first = 0
    for count in blocks:
        parts.append([f"model.layers.{layer}" for layer in range(first, first + count)])
        first += count
    parts[0].insert(0, "model.embed_tokens")
    parts[-1] += ["model.norm", "lm_head"]
    # Every stage applies rotary positions.
    return [[*part, "model.rotary_emb"] for part in parts]


def layers_of(parts: object) -> tuple[int, ...] | None:
    """The number of layers in each part of `module_fqns_per_model_part`; None if the value is not
    such a list."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return None
    return tuple(sum(".layers." in f".{name}" for name in part) for part in parts)
