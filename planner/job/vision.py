"""The vision part of a model: a tower of layers that reads patches of images, and a projector that
hands the language model what the tower makes of them.

A tower's layers are layers of a transformer whose tokens are patches, which attend to all patches
of their image, or to those of their window. `planner.job.towers` gives the shape that the op
table's rows are made from; `ImageLoad` says how many patches there are for each token of the
language model.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hardware.frozen import Frozen, Named
from planner.job.bounds import MOST_LAYERS, WIDEST

_Positive = Annotated[int, Field(gt=0, strict=True, le=WIDEST)]
_NonNegative = Annotated[int, Field(ge=0, strict=True, le=WIDEST)]
_Share = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
# Colours of a pixel.
_CHANNELS = 3


class TowerSpec(Named):
    """Shape of a vision tower. Widths in elements, `patch` in pixels a side.

    `kind`: whose implementation it has, as frameworks' rules for families know it, `vision_` before
    it; `frames`: frames of a video that one patch spans; `positions`: rows of a learned table, 0
    without one; `rotary`: rotary positions; `class_tokens`: learned tokens before an image's
    patches; `full_layers`: layers that attend to the whole image, where all others have a window of
    `window` patches (None: all do); `norm_before`, `norm_after`: norms around the layers;
    `norm_after_read`: whether the projector reads what the latter makes; `layer_scale`: a learned
    factor a channel on what each block adds (InternVL); `gated_layers`: last layers where that is a
    learned number; `tiles`: tiles of an image that are one row of patches, with learned positions
    for each of `aspects` shapes (Llama 3.2); `outputs`: layers, from 0 on, whose outputs the
    projector reads beside the last one's; `unread`: last layers that run and that nobody reads
    (LLaVA takes what the last but one makes).
    """

    kind: str = "vit"
    layers: Annotated[int, Field(gt=0, strict=True, le=MOST_LAYERS)]
    hidden: _Positive
    heads: _Positive
    ffn: _Positive
    patch: _Positive
    head_dim: _Positive | None = None
    frames: _Positive = 1
    patch_bias: bool = True
    positions: _NonNegative = 0
    rotary: bool = False
    class_tokens: _NonNegative = 0
    gated: bool = False
    activation: str = "gelu"
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    norm_before: bool = False
    norm_after: bool = False
    norm_after_read: bool = True
    layer_scale: bool = False
    gated_layers: _NonNegative = 0
    tiles: _NonNegative = 0
    aspects: _NonNegative = 0
    outputs: tuple[_NonNegative, ...] = ()
    unread: _NonNegative = 0
    qk_norm: Literal["none", "head", "full"] = "none"
    full_layers: tuple[_NonNegative, ...] | None = None
    window: _NonNegative = 0

    @model_validator(mode="after")
    def _consistent(self) -> TowerSpec:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"tower: hidden={self.hidden} is not a multiple of heads={self.heads}")
        if (self.full_layers is None) != (self.window == 0):
            raise ValueError("tower: full_layers and window go together; give both or neither")
        return self

    def is_full(self, layer: int) -> bool:
        """Whether the patches of a layer attend to their whole image."""
        return self.full_layers is None or layer in self.full_layers

    @property
    def of_tiles(self) -> int:
        """Learned values of the places of tiles: before and behind the first layers one a channel
        of each tile of each shape, and its factor; one for each patch of these too."""
        if not self.tiles:
            return 0
        tables = (self.aspects + 1) * self.tiles * self.hidden
        return tables * (2 + self.positions) + 3

    @property
    def embeds_linearly(self) -> bool:
        """Whether a linear layer embeds patches, which adapters and quantised formats take, not a
        convolution (Llama 4)."""
        return self.kind == "llama4"

    @property
    def patch_values(self) -> int:
        """Values of a patch, which its embedding multiplies."""
        return _CHANNELS * self.frames * self.patch**2


class ProjectorSpec(Named):
    """What stands between tower and language model.

    `merged`: patches that become one token, side by side or, where `pooled`, as their mean;
    `widths`: of its linear layers, the input first, of which the first `plain` ones have no
    activation behind them; `learned`: vectors of the language model's
    width that end rows of patches, `row_ends` of the width that its first layer reads;
    `norm_width`: of the norm before them, 0 without one; `taps`: layers of the tower, from 0 on,
    each of which a further projector reads that adds to the first layers of the language model
    (Qwen3-VL's deepstack), and whose norm is `tap_norm_width` wide.
    """

    merged: _Positive = 1
    pooled: bool = False
    learned: _NonNegative = 0
    row_ends: _NonNegative = 0
    widths: Annotated[tuple[_Positive, ...], Field(min_length=2)]
    plain: _NonNegative = 0
    bias: bool = True
    activation: str = "gelu"
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    norm_width: _NonNegative = 0
    taps: tuple[_NonNegative, ...] = ()
    tap_norm_width: _NonNegative = 0


class VisionSpec(Named):
    """A model's vision part; `rule`: how its family counts the tokens of an image; `frozen`:
    nothing trains the tower; `input_rows`: rows of the language model's embeddings for marks of
    images, which its head has not; `place`: among the layers, or with the embeddings on the first
    pipeline stage, split over tensor parallelism or copied to all of its ranks."""

    rule: str
    tower: TowerSpec
    projector: ProjectorSpec
    frozen: bool = False
    input_rows: _NonNegative = 0
    place: Literal["layers", "split", "copied"] = "layers"


class ImageLoad(Frozen):
    """The images of a batch. `patches`: that the tower reads, for each token of a row of the
    language model; `span`: patches that one patch attends to in a layer without windows, those of
    its image or tile; `read`: share of the patches that the projector reads; `tokens`: share of the
    language model's tokens that are images'; `across`: tokens of its images that each token of a
    sample attends to across, of which there are `seen` for each token of the row; `usual`: the
    image that is taken where nobody says what the samples have; `shrunk`: those that were asked
    for, where the family's processor makes them smaller."""

    patches: _Share = 0.0
    span: _Positive = 1
    read: _Share = 1.0
    across: _NonNegative = 0
    seen: _Share = 0.0
    tokens: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    usual: str = ""
    shrunk: str = ""


NO_IMAGES = ImageLoad()
