"""Reader of a model TOML: the catalogue's format, also accepted from a user's path.

hf_name = "…"              # optional, as are exact_parameters and notes
exact_parameters = 1234    # without multi-token-prediction layers
source = "…"               # where the shape comes from; your own file needs none
notes = ["…"]
[shape]                    # fields of ModelSpec, with [shape.moe] and [shape.mla]
[vision]                   # the vision part: fields of VisionSpec; with a [[beside]] module it
                           # describes that module, which only jobs with images use; a top-level
                           # vision_vocab = 262208 is then the size of the vocabulary
[[beside]]                 # a module of the published checkpoint that [shape] does not describe
what = "vision tower"      # with parameters and source
[layers]                   # only if layers differ
first_k_dense = 3          # leading layers without experts
moe_every = 2              # the last of every two layers has experts
attention = ["sliding", "full"]   # repeated over the layers
pattern = "M-M*-"          # of a hybrid, instead of the above; Megatron-Core's symbols
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from hardware.files import read_text, toml_content
from hardware.frozen import Frozen
from planner.job.errors import ModelError, validation_message
from planner.job.models.layout import hybrid_kinds, layer_kinds, moe_layers, repeat_pattern
from planner.job.specs import AttentionKind, ModelSpec, NonNegative, Positive
from planner.job.vision import VisionSpec

# Fields of ModelSpec that differ between families and that files rarely state.
STYLE = (
    "gated", "activation", "norm", "block", "position", "tied_embeddings", "qkv_bias",
    "attention_out_bias", "mlp_bias", "norm_bias", "norm_weight", "qk_norm",
)  # fmt: skip
# Fields of ModelSpec that the file states elsewhere.
_STATED_ELSEWHERE = {
    "name": "the file name",
    "source": "the top-level `source`",
    "layer_kinds": "the [layers] table",
    "vision": "the [vision] table",
}


class LayersTable(Frozen):
    """The [layers] table, which says how layers differ."""

    first_k_dense: NonNegative = 0
    moe_every: Positive = 1
    attention: tuple[AttentionKind, ...] = Field(default=("full",), min_length=1)
    pattern: str = ""


class BesideModule(Frozen):
    """A module of a published checkpoint besides its language model."""

    what: Annotated[str, Field(min_length=1)]
    parameters: Annotated[int, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]

    @property
    def words(self) -> str:
        """`vision tower with its projector (0.42 B parameters)`."""
        return f"{self.what} ({self.parameters / 1e9:.2f} B parameters)"


class ModelFile(Frozen):
    """The whole file, before the shape becomes a ModelSpec."""

    hf_name: str = ""
    exact_parameters: Annotated[int, Field(gt=0)] | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    beside: tuple[BesideModule, ...] = ()
    shape: dict[str, Any]
    vision: VisionSpec | None = None
    vision_vocab: Positive | None = None
    layers: LayersTable = LayersTable()


def read_model_toml(
    path: Path, usual: Callable[[str], Mapping[str, Any]] | None = None
) -> tuple[ModelFile, ModelSpec]:
    """The content of a file, and the ModelSpec that it describes, named after the file.

    `usual`: the usual style of a family, for the fields of `STYLE` that the file leaves out; a note
    of the returned file lists what was assumed. None: the defaults of ModelSpec.
    """
    content = toml_content(read_text(path), str(path))
    try:
        file = ModelFile.model_validate(content)
        if usual is not None:
            file = _with_style(file, usual)
        return file, _spec(file, path)
    except ValidationError as error:
        raise ModelError(validation_message(error, str(path))) from error


def _with_style(file: ModelFile, usual: Callable[[str], Mapping[str, Any]]) -> ModelFile:
    """The file completed by the fields of `STYLE` that it leaves out, with a note that lists
    them."""
    family = str(file.shape.get("family", "custom"))
    known = dict(usual(family))
    defaults = {name: ModelSpec.model_fields[name].default for name in STYLE} | known
    assumed = {name: value for name, value in defaults.items() if name not in file.shape}
    if not assumed:
        return file
    listed = ", ".join(f"{name} = {_toml_value(value)}" for name, value in assumed.items())
    like = f"most catalogue models of family {family}" if known else "the defaults"
    if not known and family != "custom":
        like += f", because no catalogue model is of family {family}"
    note = f"[shape] does not state these, which are taken from {like}: {listed}"
    changed = {"shape": file.shape | assumed, "notes": (*file.notes, note)}
    return file.model_copy(update=changed)


def _toml_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


def _spec(file: ModelFile, path: Path) -> ModelSpec:
    for field, place in _STATED_ELSEWHERE.items():
        if field in file.shape:
            raise ModelError(f"{path}: shape.{field} is given by {place}; remove it from [shape]")
    vision = None if file.beside else file.vision
    stated = {"name": path.stem, "source": file.source, "vision": vision}
    named = {**file.shape, **stated}
    layout = file.layers
    if layout.pattern:
        kinds = hybrid_kinds(layout.pattern, str(path))
        return ModelSpec.model_validate({**named, "layer_kinds": kinds})
    plain = ModelSpec.model_validate(named)
    if plain.moe is None and (layout.first_k_dense or layout.moe_every > 1):
        raise ModelError(f"{path}: [layers] places experts, but there is no [shape.moe] table")
    experts = moe_layers(plain.layers, layout.first_k_dense, layout.moe_every)
    kinds = layer_kinds(
        attention=repeat_pattern(layout.attention, plain.layers),
        moe=experts if plain.moe else [False] * plain.layers,
        has_experts=plain.moe is not None,
    )
    return ModelSpec.model_validate({**plain.model_dump(), "layer_kinds": kinds})
