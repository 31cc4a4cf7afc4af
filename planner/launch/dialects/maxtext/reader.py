"""Reader of MaxText's YAML files and commands.

Source: MaxText 0.2.5, configs/pyconfig.py, configs/types.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from hardware.files import shipped_toml
from planner.job.errors import CannotTellError, ModelError
from planner.job.specs import ModelSpec
from planner.launch.dialects.maxtext.mesh import Mesh, micro_batch, tiles
from planner.launch.dialects.maxtext.model import blocks, keys_of, model_of
from planner.launch.dialects.maxtext.placed import Placed
from planner.launch.dialects.maxtext.remat import remat_of
from planner.launch.dialects.maxtext.schema import RELEASE, default, is_known, shipped_config
from planner.launch.dialects.maxtext.settings import Settings, config_of, settled
from planner.launch.dialects.maxtext.writer import OPTIONS
from planner.launch.languages.text import Text
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Document, DocumentReader, Source, yaml_document
from planner.launch.read.found import Edit, Found, Hints, Problem, Setting, model_unknown
from planner.launch.read.opened import Opened
from planner.launch.registry import package_of

_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
# Optimizers whose state is AdamW's.
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw"}
# How products are quantised, by the planner's names.
_PRECISIONS = {
    "": "bf16", "te_no_quant": "bf16", "fp8": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8",
    "fp8_nanoo": "fp8", "te_fp8_delayedscaling": "fp8", "te_fp8_currentscaling": "fp8",
    "te_mxfp8": "mxfp8", "te_nvfp4": "nvfp4", "te_nvfp4_no_rht": "nvfp4",
}  # fmt: skip
# Those with scales of the steps before, which MaxText does not accumulate over.
_DELAYED = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")
_ATTENTION = {"cudnn_flash_te": "flash", "flash": "flash", "autoselected": "flash",
              "cudnn_flash_jax": "flash", "dot_product": "eager"}  # fmt: skip


@cache
def _words(table: str) -> Mapping[str, str]:
    found: Mapping[str, str] = shipped_toml(package_of("maxtext"), "effects.toml")[table]
    return found


def read(source: Source) -> Found:
    """A YAML file, with the command that names it, if there is one."""
    return MaxTextReader(source.yaml(), source).found()


def read_command(launch: LaunchCommand, opened: Opened, hints: Hints) -> Found:
    """A command whose configuration is one that MaxText ships, or lies beside it. CannotTellError
    where it is neither."""
    path = config_of(launch)
    below: Mapping[str, Any] | None = {} if path is None else shipped_config(path)
    file = None if path is None else source_beside(path, launch.folder, opened.files)
    if file is None and below is None:
        raise CannotTellError(
            f"{launch.place}: trains with {path}, which is none of {RELEASE}'s; give it too"
        )
    text, document = Text(""), Document(launch.command.file)
    if file is not None:
        text = file.as_text()
        stated = yaml_document(text, file.path, hints.environment)
        if file.path.endswith("base.yml"):
            # Another release's, or a changed one: its values are the defaults.
            below = {name: one.value for name, one in stated.settings.items() if is_known(name)}
        else:
            document = stated
    source = Source(text, document.path, launch, opened.files, hints)
    return MaxTextReader(document, source, below).found()


class MaxTextReader(DocumentReader):
    """What is gathered from the settings."""

    called = "MaxText"
    document: Settings

    def __init__(
        self, document: Document, source: Source, below: Mapping[str, Any] | None = None
    ) -> None:
        settings, problems = settled(document, source, below or {})
        super().__init__(settings, source)
        self.problems += problems
        self.get = settings.get

    def found(self) -> Found:
        """Everything that was read."""
        placed = Placed(self.document, self.hints)
        self.problems += placed.problems
        self.assumed += placed.assumed
        degrees = placed.mesh.degrees(self.get(OPTIONS["optimizer-over-data"].key))
        seq = self.hints.seq or self.whole(OPTIONS["seq"].key, 2048)
        batch = self._batch(placed.mesh, degrees)
        shape = None if self.hints.model else self._model(seq)
        remat = remat_of(self.document)
        self._demands(degrees, shape)
        self.problems += [*remat.problems, *self._machine_problems()]
        keys = {"seq": "seq", "mbs": "per-gpu", "grad_acc": "grad_acc", "recompute": "recompute"}
        return self.gathered(
            is_known,
            {name: OPTIONS[option].key for name, option in keys.items()},
            format="maxtext",
            framework="maxtext",
            variations=self._variations(),
            shape=shape,
            model=self.hints.model,
            **degrees,
            etp=degrees["tp"] if shape is not None and shape.moe is not None else None,
            world=placed.mesh.devices if placed.sure else None,
            one_process_a_node=self.get("hardware") == "gpu",
            seq=seq,
            recompute=self.hints.recompute or remat.mode,
            optimizer=self._optimizer(),
            precision=self._precision(),
            attention=self._attention(),
            schedule="gpipe" if degrees["pp"] > 1 else None,
            cp_comm_type=self._exchange() if degrees["cp"] > 1 else None,
            unmodelled=(*remat.unmodelled, *self._unmodelled(degrees["pp"])),
            **batch,
        )

    # --- batch ----------------------------------------------------------------------------------

    def _batch(self, mesh: Mesh, degrees: Mapping[str, int]) -> dict[str, Any]:
        """mbs and gradient accumulation."""
        per_gpu = float(self.get(OPTIONS["per-gpu"].key))
        pieces = self._pieces(degrees["pp"])
        if degrees["pp"] > 1:
            self._pipeline(pieces, degrees["pp"])
        mbs = self.hints.mbs or micro_batch(per_gpu, mesh.devices, degrees["dp"], pieces)
        if mbs is None:
            each = f"each of {degrees['dp']} data-parallel ranks"
            text = (
                f"per_device_batch_size {per_gpu:g} on {mesh.devices} GPUs is no whole number of "
                f"sequences for {each}" + (f" and {pieces} micro-batches" if pieces > 1 else "")
            )
            self.refuse("batch-size", text, OPTIONS["per-gpu"].key)
        steps = self.hints.grad_acc or self.whole(OPTIONS["grad_acc"].key, 1) * pieces
        acc = None if self.hints.gbs else steps
        return {"mbs": mbs or 1, "gbs": self.hints.gbs, "grad_acc": acc}

    def _pieces(self, pp: int) -> int:
        """Micro-batches that a pipeline cuts a pass into."""
        stated = int(self.get(OPTIONS["microbatches"].key))
        return 1 if pp == 1 else pp if stated == -1 else max(1, stated)

    def _pipeline(self, pieces: int, pp: int) -> None:
        """What a pipeline demands of its micro-batches and layers."""
        name, each_name = OPTIONS["microbatches"].key, OPTIONS["stage-layers"].key
        if pieces % pp:
            text = f"{name} {pieces} is no multiple of {pp} stages, which MaxText demands"
            self.refuse("microbatches", text, name)
        if self.get(OPTIONS["grad_acc"].key) > 1:
            text = "a pipeline that drains between gradient accumulations is not modelled"
            self.unpredictable(text, OPTIONS["grad_acc"].key, name)
        layers, each = self.get("base_num_decoder_layers"), self.get(each_name)
        if self.get("pipeline_parallel_layers") not in (-1, layers):
            text = "layers outside of the pipeline are not modelled"
            self.unpredictable(text, "pipeline_parallel_layers")
        elif layers % (pp * each):
            text = f"{layers} layers are no multiple of {pp} stages of {each}, as MaxText demands"
            self.refuse("layers-per-stage", text, each_name)
        elif layers > pp * each:
            repeats = layers // (pp * each)
            text = (
                f"circular pipelines ({repeats} repeats) are not modelled; "
                f"{each_name}={layers // pp} has none"
            )
            self.unpredictable(text, each_name)

    # --- the model ------------------------------------------------------------------------------

    def _model(self, seq: int) -> ModelSpec | None:
        """The model that the settings describe."""
        block = str(self.get("decoder_block"))
        for name, wrong in (
            ("decoder_block", block not in blocks()),
            ("global_parameter_scale", self.get("global_parameter_scale") != 1),
        ):
            if wrong:
                text = f"MaxText's {name} {self.get(name)} is not read"
                self.problems.append(model_unknown(text, self.document.place(name)))
                return None
        wanted = {"decoder_block": block} | {name: self.get(name) for name in keys_of(block)}
        if str(self.get("model_name")).startswith("llama3.1"):
            wanted["rope_type"] = "llama3.1"
        try:
            return model_of(wanted, seq, self.document.path)
        except ModelError as error:
            self.refuse("model-shape", str(error))
            return None

    # --- how it trains --------------------------------------------------------------------------

    def _demands(self, degrees: Mapping[str, int], shape: ModelSpec | None) -> None:
        """What MaxText refuses, and what is not predicted."""
        self._hardware()
        self._training()
        over_data = OPTIONS["optimizer-over-data"].key
        if self.get(over_data) and degrees["zero"] == 3:
            text = f"{over_data} (ZeRO-1) cannot be combined with FSDP"
            self.refuse("zero-stage", text, over_data)
        if shape is not None:
            self._widths(degrees, shape)

    def _widths(self, degrees: Mapping[str, int], shape: ModelSpec) -> None:
        """XLA shards only what divides."""
        all_ranks = degrees["dp"] * degrees["cp"]
        shards = (degrees["shard"] or all_ranks) if degrees["zero"] == 3 else 1
        for ranks, what in ((shards, "fsdp·context·expert"), (degrees["tp"], "tensor")):
            if shape.hidden % ranks:
                text = f"base_emb_dim {shape.hidden} does not divide over {what} = {ranks}"
                self.refuse("shard-width", text, "base_emb_dim", late=True)

    def _hardware(self) -> None:
        hardware = self.get("hardware")
        if hardware not in ("gpu", "gpu_multiprocess"):
            text = f"hardware is {hardware}: only GPUs are predicted (hardware=gpu)"
            self.unpredictable(text, "hardware")
        exchanges = OPTIONS["cp_comm_type"]
        if self.get(exchanges.key) not in exchanges.written.values():
            self.refuse(
                "option-value", f"{exchanges.key}: GPUs have all_gather and ring", exchanges.key
            )
        engine = self.get("attention") == "cudnn_flash_te"
        if hardware == "gpu" and engine and self.get("packing") and self.get(_SEGMENTS) <= 0:
            text = (
                f"{_SEGMENTS} must be set with cudnn_flash_te and packing ({RELEASE}; releases "
                "before December 2025 did not ask)"
            )
            self.refuse("required-option", text, "attention", edits=(Edit(_SEGMENTS, "32"),))

    def _training(self) -> None:
        """Kinds of training, and types, that no prediction has."""
        for name, what in _words("training").items():
            if self.get(name):
                self.unpredictable(f"{what} is not modelled", name)
        lora = self.document.settings.get("lora.enable_lora")
        if lora is not None and lora.value is True:
            self.unpredictable("training of adapters (LoRA) is not modelled", "lora.enable_lora")
        for name, known in (("dtype", ("bfloat16",)), ("weight_dtype", ("float32", "bfloat16"))):
            if self.get(name) not in known:
                self.unpredictable(f"{name} {self.get(name)} is not modelled", name)

    def _variations(self) -> tuple[str, ...]:
        return ("bf16-parameters",) if self.get("weight_dtype") == "bfloat16" else ()

    def _known(self, name: str, known: Mapping[str, str], usual: str) -> str:
        """Our word for a value; `usual` for one that is not modelled."""
        value = str(self.get(name) or "")
        if value not in known:
            self.unpredictable(f"MaxText's {name} {value} is not modelled", name)
        return known.get(value, usual)

    def _optimizer(self) -> str:
        return self._known("opt_type", _OPTIMIZERS, "adamw")

    def _precision(self) -> str:
        name = self.get("quantization")
        if name in _DELAYED and self.get(OPTIONS["grad_acc"].key) > 1:
            text = f"MaxText refuses {name} with gradient accumulation"
            edits = (Edit("quantization", "te_fp8_currentscaling"),)
            self.refuse("precision", text, "quantization", edits=edits)
        return self._known("quantization", _PRECISIONS, "bf16")

    def _attention(self) -> Any:
        return self._known("attention", _ATTENTION, "flash")

    def _exchange(self) -> Any:
        option = OPTIONS["cp_comm_type"]
        return option.read(self.get(option.key)) or "all_gather"

    def _unmodelled(self, pp: int) -> Iterator[tuple[Setting, str]]:
        """Settings whose effect no prediction has."""
        for name, why in _words("effects").items():
            if self.get(name) != default(name):
                yield self.document.setting(name), why
        name, costed = OPTIONS["vocab-tiles"].key, tiles(self._pieces(pp), pp)
        if self.get(name) > costed:
            yield self.document.setting(name), "logits in pieces: less memory than predicted"
        elif self.get(name) < costed:
            why = "logits of several micro-batches at once: more memory than predicted"
            yield self.document.setting(name), why
        if self.get("num_experts") > 1:
            yield from self._experts()

    def _experts(self) -> Iterator[tuple[Setting, str]]:
        if self.get("capacity_factor") > 0:
            yield self.document.setting("capacity_factor"), "dropped or padded tokens"
        elif not self.get("sparse_matmul"):
            why = "every expert computes every token: slower, more memory than predicted"
            yield self.document.setting("sparse_matmul"), why
        elif self.get("megablox") and not self.get("te_moe_block"):
            why = "a TPU's kernel, interpreted on GPUs: far slower"
            yield self.document.setting("megablox"), why

    def _machine_problems(self) -> Iterator[Problem]:
        """JAX takes only a part of each GPU's memory unless it is told otherwise."""
        if self.launch is None or _FRACTION in self.launch.command.environment:
            return
        text = (
            f"JAX takes 75 % of each GPU's memory unless {_FRACTION} says more, and the "
            "prediction counts on all of it"
        )
        fix = f"export {_FRACTION}=0.92"
        yield Problem("memory-fraction", text, "warning", (self.launch.place,), fix)


_SEGMENTS = "max_segments_per_seq"
