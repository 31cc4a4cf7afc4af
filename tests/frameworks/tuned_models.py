"""Models of transformers whose weights are partly trained: peft's adapters over weights of 16 bits
or of bitsandbytes' formats, and models with frozen modules.

They are built as `tests/frameworks/hf_counts.py` builds those that are trained as a whole. A
quantised linear holds a plain parameter of the packed shape, since `Params4bit` takes no fake
tensor, and the state that bitsandbytes makes on quantising a tensor of that shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy as _deepcopy
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch._guards import active_fake_mode
from transformers import BitsAndBytesConfig
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.quantizers_utils import get_module_from_name

from tests.frameworks.hf_counts import Run

# Names of the planner's target modules in transformers' model types, where not the usual ones.
_USUAL = {name: (f"{name}_proj",) for name in ("q", "k", "v", "o", "gate", "up", "down")}
_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gpt_neox": dict.fromkeys(("q", "k", "v"), ("query_key_value",))
    | {"o": ("attention.dense",), "up": ("dense_h_to_4h",), "down": ("dense_4h_to_h",)},
    "phi": _USUAL | {"o": ("self_attn.dense",), "up": ("fc1",), "down": ("fc2",)},
    "phi3": _USUAL
    | dict.fromkeys(("q", "k", "v"), ("qkv_proj",))
    | dict.fromkeys(("gate", "up"), ("gate_up_proj",)),
}  # fmt: skip
WORDS = {"attention": ("q", "k", "v", "o"), "mlp": ("gate", "up", "down")}
# Names of what `--freeze` calls embeddings.
_EMBEDDINGS = ("embed_tokens", "embed_in", "wte")
# Weights that share a scale, as transformers leaves it to bitsandbytes.
_BLOCK = 64
FORMATS = {"nf4": False, "nf4-double": True}


@dataclass(frozen=True)
class Tuning:
    """How weights are trained. `adapter`: the type of adapters, empty where peft decides; `whole`:
    modules (`embeddings`, `head`) that are trained as they are beside adapters;
    `prepared`: whether the model went through `prepare_model_for_kbit_training`; `frozen`: what
    `--freeze` names, of a model without adapters."""

    method: str = "full"
    rank: int = 16
    targets: tuple[str, ...] = ("all-linear",)
    dropout: float = 0.0
    adapter: str = ""
    base: str = ""
    whole: tuple[str, ...] = ()
    prepared: bool = False
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True)
class TunedRun(Run):
    """One forward pass of a model that is trained in part; `hooked`: what its embedding makes needs
    a gradient, as the Trainer has it for adapters with checkpointing."""

    tuning: Tuning = Tuning()
    hooked: bool = False

    def build(self) -> Any:
        """The model with its weights on the current device."""
        model = super().build()
        tuning = self.tuning
        if tuning.base:
            quantise(model, tuning.base)
        if tuning.prepared:
            checkpoints = {"use_reentrant": False}
            prepare_model_for_kbit_training(
                model, self.checkpointing == "full", gradient_checkpointing_kwargs=checkpoints
            )
        freeze(model, tuning.frozen)
        if self.hooked:
            model.enable_input_require_grads()
        return model if tuning.method == "full" else adapted(model, tuning)

    def watched(self, pack: Callable[[Any], Any]) -> AbstractContextManager[None]:
        """With what bitsandbytes' 8-bit product keeps."""
        product = bitsandbytes.autograd._functions.MatMul8bitLt
        return patch.object(product, "forward", staticmethod(_keeping(product.forward, pack)))


def _keeping(forward: Callable[..., Any], pack: Callable[[Any], Any]) -> Callable[..., Any]:
    """The forward of bitsandbytes' 8-bit product, whose context keeps tensors as an attribute."""

    def wrapped(ctx: Any, *given: Any) -> Any:
        result = forward(ctx, *given)
        ctx.packs = [pack(tensor) for tensor in ctx.tensors if tensor is not None]
        return result

    return wrapped


def _move(module: Any, function: Any, recurse: bool = True) -> Any:
    """`torch.nn.Module._apply` with a new parameter for each old one: fake tensors can neither be
    swapped while something refers to them nor change their type in place."""
    for child in module.children() if recurse else ():
        _move(child, function)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            moved = function(parameter.detach())
            module._parameters[name] = torch.nn.Parameter(moved, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else function(buffer)
    return module


def _copied(item: Any, memo: Any = None) -> Any:
    """A deep copy, whose fake tensors are of the mode of those that they were copied from."""
    modes = {id(mode): mode for mode in (active_fake_mode(),) if mode is not None}
    return _deepcopy(item, (memo or {}) | modes)


def adapted(model: Any, tuning: Tuning) -> Any:
    """The model with peft's adapters."""
    config = LoraConfig(
        r=tuning.rank,
        lora_alpha=2 * tuning.rank,
        target_modules=_targets(model, tuning.targets),
        lora_dropout=tuning.dropout,
        use_dora=tuning.method == "dora",
        modules_to_save=_whole(model, tuning.whole) or None,
        task_type="CAUSAL_LM",
    )
    with patch.object(torch.nn.Module, "_apply", _move), patch("copy.deepcopy", _copied):
        model = get_peft_model(model, config, autocast_adapter_dtype=tuning.adapter != "bf16")
    model.train()
    return model


def _targets(model: Any, targets: tuple[str, ...]) -> Any:
    """peft's `target_modules`."""
    if targets == ("all-linear",):
        return "all-linear"
    names = _NAMES.get(model.config.model_type, _USUAL)
    plain = [name for target in targets for name in WORDS.get(target, (target,))]
    return sorted({module for name in plain for module in names.get(name, ())})


def _whole(model: Any, modules: tuple[str, ...]) -> list[str]:
    """peft's `modules_to_save`."""
    found = {"embeddings": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    names = {module: name.rpartition(".")[2] for name, module in model.named_modules()}
    return [names[found[module]] for module in modules]


def freeze(model: Any, frozen: tuple[str, ...]) -> None:
    """Take modules out of training: `embeddings`, `head`, `experts`, `layers:N`, the first N."""
    for name, parameter in model.named_parameters():
        if any(_is_of(name, module) for module in frozen):
            parameter.requires_grad_(False)


def _is_of(name: str, module: str) -> bool:
    if module.startswith("layers:"):
        inside = name.partition("layers.")[2].partition(".")[0]
        return inside.isdigit() and int(inside) < int(module.removeprefix("layers:"))
    words = {"embeddings": _EMBEDDINGS, "head": ("lm_head", "embed_out"), "experts": ("experts",)}
    return any(f".{word}." in f".{name}." for word in words[module])


def quantise(model: Any, base: str) -> None:
    """Put bitsandbytes' linears in place of those that transformers chooses."""
    four = base in FORMATS
    config = BitsAndBytesConfig(
        load_in_4bit=four,
        load_in_8bit=not four,
        # Columns of outliers are few, but how many only values tell.
        llm_int8_threshold=0.0,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=FORMATS.get(base, False),
    )
    before = {name: module.bias for name, module in model.named_modules() if _is_linear(module)}
    modules = bitsandbytes.nn.modules
    with patch.object(modules, "Params4bit", _plain), patch.object(modules, "Int8Params", _plain):
        replace_with_bnb_linear(model, _left_alone(model), config)
    for name, bias in before.items():
        module, _ = get_module_from_name(model, f"{name}.weight")
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            _pack(module, FORMATS[base])
            module.bias = bias
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            _round(module)
            module.bias = bias
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = four, not four
    model.quantization_method = "bitsandbytes"


def _plain(data: Any, requires_grad: bool = False, **_: Any) -> Any:
    return torch.nn.Parameter(data, requires_grad)


def _is_linear(module: Any) -> bool:
    return type(module) is torch.nn.Linear or type(module).__name__ == "Conv1D"


def _left_alone(model: Any) -> list[str]:
    """What transformers does not convert: output head and tied weights."""
    from transformers.quantizers.base import get_keys_to_not_convert

    return list(get_keys_to_not_convert(model))


def _pack(module: Any, nested: bool) -> None:
    out_width, in_width = module.out_features, module.in_features
    functional = bitsandbytes.functional
    whole = torch.empty(out_width, in_width, dtype=torch.bfloat16)
    # bitsandbytes makes this map of real numbers once and keeps it.
    codes = {"dynamic": torch.empty(256, dtype=torch.float32)}
    with patch.dict(functional.name2qmap, codes):
        packed, state = functional.quantize_4bit(
            whole, blocksize=_BLOCK, compress_statistics=nested, quant_type="nf4"
        )
    weight = torch.nn.Parameter(packed, requires_grad=False)
    weight.quant_state, weight.quant_type = state, "nf4"
    weight.compress_statistics = nested
    module.weight, module.quant_state = weight, state
    module.compute_type_is_set = True


def _round(module: Any) -> None:
    shape = (module.out_features, module.in_features)
    weight = torch.nn.Parameter(torch.empty(shape, dtype=torch.int8), requires_grad=False)
    weight.CB, weight.SCB = weight.data, torch.empty(module.out_features, dtype=torch.float32)
    weight.has_fp16_weights = False
    module.weight = weight
    module.state.CB, module.state.SCB = weight.CB, weight.SCB


def state_tensors(module: Any) -> Iterator[Any]:
    """What a quantised linear holds beside its packed weight; peft's layer around it shows the same
    weight, and holds none."""
    if isinstance(module, bitsandbytes.nn.Linear8bitLt):
        yield module.state.SCB
    if not isinstance(module, bitsandbytes.nn.Linear4bit):
        return
    state = module.weight.quant_state
    while state is not None:
        yield from (state.absmax, state.code)
        if state.offset is not None:
            yield state.offset
        state = state.state2
