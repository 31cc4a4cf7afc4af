"""Counts what transformers' own classes hold: parameters, tensors saved for backward, FLOP.

Models are built on fake tensors of a GPU that need not be there: shapes, types and storages are
those of a run, and nothing is computed. Fused attention is torch's flash operator, whatever the
mask: queries, keys and values, output, log-sum-exp and the state of the random numbers.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

# Types that call torch's fused attention themselves.
_EAGER_ONLY = ("falcon",)
TYPES = {
    "bf16": torch.bfloat16, "bf16-amp": torch.bfloat16, "amp": torch.float32, "fp32": torch.float32
}  # fmt: skip
_AUTOCASTS = ("amp", "bf16-amp")
_NO_DROPOUT = dict.fromkeys(
    ("attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout", "attention_dropout",
     "residual_dropout", "embedding_dropout"), 0.0
)  # fmt: skip
_EXPERTS = "grouped_mm"
_FLASH = "counted_fused"
_CUDA, _META = 1, 14


def _flash(
    module: Any, query: Any, key: Any, value: Any, mask: Any = None, *_: Any, scaling: Any = None,
    **__: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Torch's flash operator, which takes fewer key and value heads than queries; values of less
    width are padded as transformers does (integrations/flash_attention.py)."""
    if mask is not None and type(module).__name__.startswith("Mllama"):
        return _masked(query, key, value, mask)
    width = value.shape[-1]
    if width != query.shape[-1]:
        value = torch.nn.functional.pad(value, [0, query.shape[-1] - width])
    output = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, True, scale=scaling
    )[0]
    return output[..., :width].transpose(1, 2).contiguous(), None


def _masked(query: Any, key: Any, value: Any, mask: Any) -> tuple[Any, None]:
    """Torch's memory-efficient operator, which takes the masks of an image's tiles that Llama 3.2
    always has, and as many key and value heads as queries (integrations/sdpa_attention.py); a mask
    whose rows are no whole vectors is padded first (aten, attention.cpp, preprocess_mask)."""
    if torch.is_autocast_enabled("cuda"):
        query, key, value, mask = (one.to(torch.bfloat16) for one in (query, key, value, mask))
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (one.repeat_interleave(shared, dim=1) for one in (key, value))
    missing = -mask.shape[-1] % 8
    if missing:
        mask = torch.nn.functional.pad(mask, [0, missing])[..., :-missing]
    bias = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    operator = torch.ops.aten._scaled_dot_product_efficient_attention
    return operator(query, key, value, bias, True)[0].transpose(1, 2).contiguous(), None


def _sdpa(query: Any, key: Any, value: Any, **_: Any) -> Any:
    """Scaled-dot-product attention that always takes its flash operator."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)[0]


class _Kernel(torch.autograd.Function):
    """A kernel that is not there: it keeps its operands and what `made` describes, and has shapes,
    but no values."""

    @staticmethod
    def forward(ctx: Any, shape: Any, made: Any, *operands: Any) -> Any:
        first = operands[0]
        kept = [first.new_empty(size, dtype=dtype) for size, dtype in made]
        ctx.save_for_backward(*operands, *kept)
        ctx.operands = len(operands)
        return first.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        operands = ctx.saved_tensors[: ctx.operands]
        return None, None, *(None if one is None else torch.empty_like(one) for one in operands)


def _grouped_product(inputs: Any, weights: Any, offs: Any) -> Any:
    """In fp32 torch computes grouped products one by one: they keep what those in bf16 do."""
    if inputs.dtype is torch.bfloat16:
        return torch._grouped_mm(inputs, weights, offs=offs)
    return _Kernel.apply((inputs.shape[0], weights.shape[-1]), (), inputs, weights, offs)


def _mamba2(projected: Any, *operands: Any, ngroups: int, **more: Any) -> Any:
    """mamba_ssm 2.2, ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn: from the input
    projection to the output's, which keeps the scan's output and the norm's statistics."""
    batch, seq, _width = projected.shape
    autocast = torch.is_autocast_enabled("cuda")
    weight = more["outproj_weight"].to(torch.bfloat16 if autocast else projected.dtype)
    made = [((batch, seq, weight.shape[1]), projected.dtype)]
    if more["rmsnorm_weight"] is not None:
        made.append(((ngroups * batch * seq,), torch.float32))
    kept = (*operands, more["D"], more["rmsnorm_weight"], weight, more["outproj_bias"])
    return _Kernel.apply((batch, seq, weight.shape[0]), made, projected, *kept)


def _mamba1(
    projected: Any, conv: Any, conv_bias: Any, x_proj: Any, step_proj: Any, out_proj: Any,
    out_bias: Any, decays: Any, _b: Any, _c: Any, skip: Any, delta_bias: Any, **_: Any,
) -> Any:  # fmt: skip
    """mamba_ssm 2.2, ops/selective_scan_interface.py, MambaInnerFn: steps, B and C as projected, B
    and C by themselves, the scan's output, and its states every 2048 tokens."""
    projected = projected.contiguous()
    batch, twice, seq = projected.shape
    inner, element = twice // 2, projected.dtype
    state = decays.shape[1]
    weights = [weight.to(element) for weight in (x_proj, step_proj, out_proj)]
    made = [
        ((batch * seq, x_proj.shape[0]), element),
        ((batch, 1, state, seq), element),
        ((batch, 1, state, seq), element),
        ((batch, inner, -(-seq // 2048), 2 * state), torch.float32),
        ((batch, inner, seq), element),
    ]
    kept = (conv, conv_bias, *weights, decays, skip, delta_bias, out_bias)
    return _Kernel.apply((batch, seq, out_proj.shape[0]), made, projected, *kept)


def _convolution(inputs: Any, weight: Any, bias: Any = None, **_: Any) -> Any:
    """causal_conv1d 1.5, CausalConv1dFn: its input, by tokens then channels, as its output."""
    batch, width, seq = inputs.shape
    return _Kernel.apply((batch, seq, width), (), inputs, weight, bias).transpose(1, 2)


def _scan(inputs: Any, steps: Any, decays: Any, b: Any, c: Any, **more: Any) -> Any:
    """mamba_ssm 2.2, SelectiveScanFn: its operands in rows of tokens, states, output."""
    rows = [one.contiguous() for one in (inputs, steps, b, c, more["z"])]
    (batch, inner, seq), state = inputs.shape, decays.shape[1]
    made = [
        ((batch, inner, -(-seq // 2048), 2 * state), torch.float32),
        (inputs.shape, inputs.dtype),
    ]
    return _Kernel.apply(inputs.shape, made, *rows, decays, more["D"], more["delta_bias"])


def _delta_rule(query: Any, key: Any, value: Any, *, beta: Any, **_: Any) -> Any:
    """flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py: normed queries and keys with their
    statistics, values, cumulated decays, steps, and the scores of a chunk of 64."""
    batch, seq, heads, _width = value.shape
    made = [(tensor.shape, tensor.dtype) for tensor in (query, key)]
    made += [(query.shape[:3], torch.float32), (key.shape[:3], torch.float32)]
    made += [((batch, seq, heads), torch.float32), ((batch, seq, heads, 64), key.dtype)]
    return _Kernel.apply(value.shape, made, value.contiguous(), beta), None


# What the modelling files call: kernels of packages that need a GPU to be built.
_KERNELS = {
    "mamba2_split_conv1d_scan_combined": _mamba2,
    "mamba_inner_fn": _mamba1,
    "mamba_selective_scan": _scan,
    "causal_conv1d_fn": _convolution,
    "torch_chunk_gated_delta_rule": _delta_rule,
}
_HYBRIDS = (
    "mamba", "mamba2", "jamba", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h",
    "qwen3_next", "qwen3_5", "qwen3_5_moe",
)  # fmt: skip


def _with_kernels() -> None:
    for family in _HYBRIDS:
        module = import_module(f"transformers.models.{family}.modeling_{family}")
        for name, kernel in _KERNELS.items():
            if hasattr(module, name):
                setattr(module, name, kernel)


AttentionInterface.register(_FLASH, _flash)
AttentionMaskInterface.register(_FLASH, lambda *_, **__: None)


def pretend_gpu() -> None:
    """Autograd asks the device of a GPU tensor for its guard: that of meta tensors does nothing.
    Transformers asks whether grouped products run on the GPU: from compute capability 8.0 on."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (_META + 1)).in_dll(
        library, "_ZN3c104impl26device_guard_impl_registryE"
    )
    guards[_CUDA] = guards[_CUDA] or guards[_META]
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.nn.functional.scaled_dot_product_attention = _sdpa
    torch.nn.functional.grouped_mm = _grouped_product
    _with_kernels()


@dataclass(frozen=True)
class SavedTensor:
    """A storage that the graph holds, as the tensor that first saved it; `is_cast`: a 16-bit
    copy of a weight."""

    module: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    is_cast: bool


def attention_of(kernel: str) -> str:
    """transformers' name of a kernel family of attention."""
    return _FLASH if kernel == "flash" else "eager"


@dataclass(frozen=True)
class Run:
    """One forward pass of a model, `layers` deep. `mode`: the type of its weights, and whether
    autocast is on: over fp32 weights (`amp`) or over those of 16 bits (`bf16-amp`)."""

    config: dict[str, Any]
    seq: int
    mbs: int = 1
    mode: str = "bf16"
    attention: str = "flash"
    checkpointing: str = "none"

    def plain(self) -> Any:
        """The model as transformers builds it."""
        values = {**_NO_DROPOUT, **self.config}
        of_class = values.pop("of_class", {})
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        config.__class__ = type(type(config).__name__, (type(config),), of_class)
        attention = attention_of(self.attention)
        if config.model_type in _EAGER_ONLY and self.attention == "flash":
            attention = "sdpa"
        return AutoModelForCausalLM.from_config(
            config, dtype=TYPES[self.mode], attn_implementation=attention
        )

    def build(self) -> Any:
        """The model with its weights on the current device, ready to train."""
        model = self.plain()
        model.config._experts_implementation = _EXPERTS
        model.config.use_cache = False
        model.train()
        if self.checkpointing == "full":
            model.activation_checkpointing_enable({"use_reentrant": False})
        return model

    def watched(self, pack: Callable[[Any], Any]) -> AbstractContextManager[None]:
        """Lets `pack` see tensors that operations keep without autograd's knowing."""
        del pack
        return nullcontext()

    def loss(self, model: Any) -> Any:
        """The loss of a micro-batch, on the current device."""
        ids = torch.zeros((self.mbs, self.seq), dtype=torch.long)
        return model(input_ids=ids, labels=ids).loss


@dataclass
class _Copies(TorchDispatchMode):
    """Notes the storages of copies of weights in another type."""

    weights: set[int]
    found: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and _storage(args[0]) in self.weights:
            self.found[_storage(result)] = result
        return result


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def _autocast(enabled: bool) -> Iterator[None]:
    """CUDA's autocast, which torch's own context refuses without a GPU."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", enabled)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


@contextmanager
def _module_names(model: Any) -> Iterator[list[str]]:
    """The stack of modules that are running."""
    names = {module: name for name, module in model.named_modules()}
    stack: list[str] = [""]
    with ExitStack() as hooks:
        for module in names:
            enter = module.register_forward_pre_hook(lambda item, _: stack.append(names[item]))
            leave = module.register_forward_hook(
                lambda *_: (stack.pop(), None)[1], always_call=True
            )
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        yield stack


class _Pack:
    """What the graph holds of a tensor: gone when the last operation that saved it is."""

    def __init__(self, module: str, tensor: Any) -> None:
        self.module, self.tensor = module, tensor


@dataclass
class _Graph:
    """Storages that a graph holds, each with those who saved it, in their order."""

    weights: set[int]
    stack: list[str]
    held: dict[int, list[weakref.ref[_Pack]]] = field(default_factory=dict)

    def pack(self, tensor: Any) -> _Pack:
        """Hand autograd something whose life can be watched."""
        pack = _Pack(self.stack[-1], tensor)
        storage = _storage(tensor)
        if storage not in self.weights:
            if not any(one() for one in self.held.get(storage, ())):
                # A storage of another tensor, now gone, may have had this address.
                self.held.pop(storage, None)
            self.held.setdefault(storage, []).append(weakref.ref(pack))
        return pack

    def alive(self) -> Iterator[_Pack]:
        """Of each storage that is still held the one who saved it first."""
        for packs in self.held.values():
            first = next((pack for one in packs if (pack := one()) is not None), None)
            if first is not None:
                yield first


def saved_tensors(run: Run, *, real: bool = False) -> list[SavedTensor]:
    """Every storage that the graph of one forward pass and its loss holds, weights left out: of
    fake tensors of a GPU or of `real` ones of the CPU."""
    pretend_gpu()
    with nullcontext() if real else FakeTensorMode(), torch.device("cpu" if real else "cuda"):
        model = run.build()
        # Kept, for bitsandbytes gives biases new storages, and old addresses would be taken again.
        storages = [one.untyped_storage() for one in (*model.parameters(), *model.buffers())]
        weights = {int(storage._cdata) for storage in storages}
        copies = _Copies(weights)
        with _module_names(model) as stack, copies, _autocast(run.mode in _AUTOCASTS):
            graph = _Graph(weights, stack)
            hooks = torch.autograd.graph.saved_tensors_hooks(graph.pack, lambda pack: pack.tensor)
            with hooks, run.watched(graph.pack):
                loss = run.loss(model)
        found = [_saved(pack.module, pack.tensor, copies) for pack in graph.alive()]
        del loss
        return found


def _saved(module: str, tensor: Any, copies: _Copies) -> SavedTensor:
    return SavedTensor(
        module,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        int(tensor.untyped_storage().nbytes()),
        _storage(tensor) in copies.found and tensor.dtype is torch.bfloat16,
    )


def parameters(config: dict[str, Any]) -> dict[str, int]:
    """Distinct parameters by name."""
    with torch.device("meta"):
        model = Run(config, seq=1).build()
    return {name: named_parameter.numel() for name, named_parameter in model.named_parameters()}


@dataclass(frozen=True)
class Flop:
    """FLOP of a pass as torch's counter takes them, and those of fused attention."""

    forward: int
    backward: int
    attention_forward: int
    attention_backward: int

    def __sub__(self, other: Flop) -> Flop:
        return Flop(*(mine - its for mine, its in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """All figures in order."""
        return self.forward, self.backward, self.attention_forward, self.attention_backward


def flop(run: Run) -> Flop:
    """FLOP of forward and backward. On fake tensors of a CPU: only backward on a GPU needs one."""
    pretend_gpu()
    with FakeTensorMode(), torch.device("cpu"):
        model = run.build()
        with FlopCounterMode(display=False) as forward:
            loss = run.loss(model)
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    counters = (forward, backward)
    return Flop(
        *(counter.get_total_flops() for counter in counters), *map(_fused_attention, counters)
    )


def _fused_attention(counter: Any) -> int:
    counts = counter.get_flop_counts()["Global"]
    return sum(count for name, count in counts.items() if "attention" in str(name))
