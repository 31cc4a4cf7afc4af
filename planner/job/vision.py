"""The vision part of a model: a tower of layers that reads image patches, and a projector that
passes the tower's output to the language model.

A tower's layers are transformer layers whose tokens are patches. They attend to all patches of
their image, or to those of their window. `planner.job.towers` gives the shape from which the op
table's rows are made; `ImageLoad` says how many patches there are per token of the language model.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hardware.frozen import Frozen, Named
from planner.job.bounds import MOST_LAYERS, WIDEST

_Positive = Annotated[int, Field(gt=0, strict=True, le=WIDEST)]
_NonNegative = Annotated[int, Field(ge=0, strict=True, le=WIDEST)]
_Share = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
# Colour channels of a pixel.
_CHANNELS = 3


class TowerSpec(Named):
    """Shape of a vision tower. Widths in elements, `patch` in pixels per side.

    `kind`: name of the implementation in frameworks' family rules, where it has the prefix
    `vision_`. `frames`: video frames per patch. `positions`: rows of a learned table; 0 for none.
    `rotary`: rotary positions. `class_tokens`: learned tokens before an image's patches.
    `full_layers`: layers that attend to the whole image while all others use a window of `window`
    patches; None if all do. `norm_before`, `norm_after`: norms around the layers.
    `norm_after_read`: whether the projector reads the output of the latter. `layer_scale`: a
    learned factor per channel on each block's output (InternVL). `gated_layers`: number of last
    layers with one learned factor instead. `tiles`: tiles of an image that form one row of patches,
    with learned positions for each of `aspects` grids (Llama 3.2). `outputs`: layers, from 0 on,
    whose outputs the projector reads besides the last one's. `unread`: last layers that run
    although their output is unused (LLaVA reads the second-last layer).
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
        """Learned values for tile positions: before and after the first layers, one per channel of
        each tile of each grid with a factor; and one for each patch of these."""
        if not self.tiles:
            return 0
        tables = (self.aspects + 1) * self.tiles * self.hidden
        return tables * (2 + self.positions) + 3

    @property
    def embeds_linearly(self) -> bool:
        """Whether patches are embedded by a linear layer, which takes adapters and quantised
        formats, instead of a convolution (Llama 4)."""
        return self.kind == "llama4"

    @property
    def patch_values(self) -> int:
        """Input values of a patch, which its embedding multiplies."""
        return _CHANNELS * self.frames * self.patch**2


class ProjectorSpec(Named):
    """The layers between the tower and the language model.

    `merged`: patches that become one token, concatenated or, if `pooled`, averaged. `widths`:
    widths of its linear layers, starting with the input; the first `plain` layers have no
    activation after them. `learned`: vectors of the language model's width that end rows of
    patches. `row_ends`: vectors of the input width for the same purpose. `norm_width`: width of the
    norm before the layers; 0 for none. `taps`: layers of the tower, from 0 on, each read by a
    further projector that adds to the first layers of the language model (Qwen3-VL's deepstack) and
    whose norm has width `tap_norm_width`.
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
    """A model's vision part. `rule`: how its family counts the tokens of an image. `frozen`: the
    tower is not trained. `input_rows`: embedding rows for image markers, which the output head
    lacks. `place`: among the layers, or with the embeddings on the first pipeline stage, split over
    tensor-parallel ranks or copied to all of them."""

    rule: str
    tower: TowerSpec
    projector: ProjectorSpec
    frozen: bool = False
    input_rows: _NonNegative = 0
    place: Literal["layers", "split", "copied"] = "layers"


class ImageLoad(Frozen):
    """The images of a batch.

    `patches`: patches that the tower reads, per token of a row of the language model. `span`:
    patches that one patch attends to in a layer without windows (those of its image or tile).
    `read`: share of the patches that the projector reads. `tokens`: share of the language model's
    tokens that come from images. `across`: image tokens that each token of a sample cross-attends
    to; `seen`: the number of them per token of the row. `usual`: the image that is assumed by
    default. `shrunk`: the requested images, if the family's processor makes them smaller.
    """

    patches: _Share = 0.0
    span: _Positive = 1
    read: _Share = 1.0
    across: _NonNegative = 0
    seen: _Share = 0.0
    tokens: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    usual: str = ""
    shrunk: str = ""


NO_IMAGES = ImageLoad()
