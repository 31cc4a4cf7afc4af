"""Rotary positions, and how they are extended beyond the pretraining length."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hardware.frozen import Named
from planner.job.bounds import WIDEST

_Positive = Annotated[int, Field(gt=0, strict=True, le=WIDEST)]
_PositiveNumber = Annotated[float, Field(gt=0.0, strict=True, allow_inf_nan=False)]


class RopeScaling(Named):
    """How rotary frequencies are stretched beyond the pretraining length, by Hugging Face's kinds.

    `linear`: all are divided by `factor`. `llama3`: frequencies with wavelengths above
    `original_positions` / `low_frequency` are divided, and those with wavelengths below
    `original_positions` / `high_frequency` are kept (Llama 3.1). `yarn`: interpolates between
    `beta_slow` and `beta_fast` rotations over `original_positions`, rounded if `truncate` (arXiv
    2309.00071); scores are scaled by `attention_factor` or by both `mscale`s (DeepSeek-V2, arXiv
    2405.04434). `longrope`: one factor for each frequency. `dynamic`: depends on the current
    length.
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope"]
    factor: _PositiveNumber = 1.0
    original_positions: _Positive | None = None
    low_frequency: _PositiveNumber = 1.0
    high_frequency: _PositiveNumber = 4.0
    beta_fast: _PositiveNumber = 32.0
    beta_slow: _PositiveNumber = 1.0
    truncate: bool = True
    mscale: Annotated[float, Field(ge=0.0)] | None = None
    mscale_all_dim: Annotated[float, Field(ge=0.0)] | None = None
    attention_factor: _PositiveNumber | None = None
    long_factor: tuple[float, ...] = ()
    short_factor: tuple[float, ...] = ()


class RopeSpec(Named):
    """Rotary positions. `local_theta`: base of layers with windows, which are then not stretched
    (Gemma 3); None if it is the same for all layers."""

    theta: _PositiveNumber = 10000.0
    local_theta: _PositiveNumber | None = None
    scaling: RopeScaling | None = None
