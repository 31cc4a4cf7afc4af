"""Reader of NeMo AutoModel's YAML.

Keys: NVIDIA-NeMo/Automodel 0.7.0, examples/ and nemo_automodel/recipes/llm/train_ft.py; those of a
run are in options.toml. Defaults: adapters from components/_peft/lora.py (`tuning.py`), sharding
from components/distributed/config.py. Weights, gradients and states have the model's format
(`torch_dtype`), by default that of the checkpoint, which is bf16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from planner.job.models.catalog import load_model, not_in_catalogue
from planner.job.samples import Packing
from planner.launch.dialects.automodel.stages import layers_of, stage_layers, stages_of
from planner.launch.dialects.automodel.tuning import Adapters
from planner.launch.dialects.hf.arguments import known_model
from planner.launch.languages.text import digits
from planner.launch.options import run_options
from planner.launch.read.document import LIMIT_ALONE, DocumentReader, Source
from planner.launch.read.found import Found, Setting, model_unknown
from planner.launch.sentences import holding, said_problems

_RECIPES = "nemo_automodel"
_NEXT_TOKEN = re.compile(r"NextTokenPrediction|SequenceClassification")
_OTHER_CLASSES = re.compile(r"ImageTextToText|MultimodalLM|Diffusion|BiEncoder|CrossEncoder")
RUN = run_options("automodel")["run"]
_MODEL = "model.pretrained_model_name_or_path"
_MODELS = (_MODEL, "model.config.pretrained_model_name_or_path", "model.config.name_or_path")
_PACK = RUN["pack"].key
_LIMITS = (RUN["seq"].key, "dataset.seq_len", "dataset.max_length", "dataset.max_seq_length")
_OPTIMIZERS = {
    "Adam": "adamw", "AdamW": "adamw", "FusedAdam": "adamw", "Muon": "muon", "SGD": "sgd",
    "Adafactor": "adafactor",
}  # fmt: skip
# Its published runs of its own mixture models are predicted best by torchtitan's profile.
_PROFILE, _MIXTURES = "automodel", "torchtitan"


def is_automodel(content: Mapping[str, object]) -> bool:
    """Whether a table is one of AutoModel's recipes."""
    model = content.get("model")
    target = str(model.get("_target_", "")) if isinstance(model, dict) else ""
    named = str(content.get("recipe", ""))
    own = target.startswith((_RECIPES, "nemo.collections")) or "Recipe" in named
    return "step_scheduler" in content and own


def read(source: Source) -> Found:
    """A recipe's file, with overrides from the command."""
    document = source.yaml()
    given = {} if source.launch is None else source.launch.given
    for key, setting in given.items():
        # A variable that is not set yet leaves the file's value unchanged.
        if "." in key and setting.value not in (None, ""):
            number = digits(str(setting.value))
            value = setting.value if number is None else number
            document.override(replace(setting, key=key, value=value), key)
    return AutomodelReader(document, source).found()


class AutomodelReader(DocumentReader):
    """The launch described by an AutoModel file."""

    called = "AutoModel"

    def __init__(self, document: Any, source: Source) -> None:
        super().__init__(document, source)
        self.folders = (source.folder, Path(source.path).parent)

    def _say(self, table: str, **facts: Any) -> None:
        """Note the problems of a table of `rules.toml`."""
        names = {"get": self.document.get, **facts}
        self.problems += said_problems("automodel", table, names, self.document)

    def _run(self, name: str, default: Any = None) -> Any:
        """The value of the key that `RUN` lists under an option's name; `default` if the file does
        not state it."""
        return self.document.get(RUN[name].key, default)

    def _text(self, key: str, default: str = "") -> str:
        return str(self.document.get(key, default))

    def found(self) -> Found:
        """The launch, with everything that was read from the file, its command and the caller's
        hints."""
        self._recipe()
        model = self.hints.model or self._model()
        adapters = Adapters(self)
        train = adapters.train(model)
        degrees = self._degrees(model, train)
        layout = self._layout(degrees["pp"], model)
        batch = self._batches(degrees)
        mixes = degrees["ep"] > 1
        return self.gathered(
            lambda _key: True,
            {"mbs": RUN["mbs"].key, "gbs": RUN["gbs"].key, "seq": _PACK}
            | {name: RUN[name].key for name in ("tp", "pp", "cp")},
            format="automodel",
            framework=_MIXTURES if mixes else _PROFILE,
            model=model,
            variations=self._variations(degrees, adapters, train),
            etp=1 if mixes else None,
            world=self._world(),
            seq=self.hints.seq or self._length(),
            packing=self._packing(),
            recompute=self._recompute(),
            optimizer=self._optimizer(),
            optimizer_kernel=self._kernel(),
            optimizer_offload=float(RUN["offload"].key in self.document.settings),
            attention="eager" if self._text("model.attn_implementation") == "eager" else "flash",
            precision="bf16",
            train=train,
            objective=self._objective(),
            **degrees, **layout, **batch,
        )  # fmt: skip

    def _recipe(self) -> None:
        """Add problems if the recipe or the model's class is for another task than next-token
        prediction."""
        named = str(self.document.get("recipe", "") or self.document.get("recipe._target_", ""))
        kind, target = named.rpartition(".")[2], self._text("model._target_")
        plain, other = _NEXT_TOKEN.search(kind), _OTHER_CLASSES.search(target)
        self._say("recipe", kind=kind, target=target, plain=plain, other_class=other)

    def _model(self) -> str | None:
        """The model: a config.json in a folder beside the file or the command, or a catalogue
        name."""
        named = next((str(value) for name in _MODELS if (value := self.document.get(name))), "")
        for folder in self.folders if named else ():
            if (folder / named / "config.json").is_file():
                return str(folder / named / "config.json")
        known = known_model(named) if named else None
        if known is None:
            text = not_in_catalogue(named) if named else "the file does not name the model"
            fix = "--model CONFIG.json or a known name"
            self.problems.append(model_unknown(text, self.document.place(*_MODELS), fix))
        return known

    # --- how it is split --------------------------------------------------------------------------

    def _size(self, name: str) -> int:
        """A degree of parallelism, such as tp, from the table `distributed` or `parallelism`. 1 if
        both leave it out or say `none` or null."""
        for table in ("distributed", "parallelism"):
            key = f"{table}.{RUN[name].key.partition('.')[2]}"
            if self.document.get(key) not in (None, "none"):
                return self.whole(key, 1)
        return 1

    def _degrees(self, model: str | None, train: str) -> dict[str, int]:
        """Degrees, ZeRO stage and the size of a sharding group."""
        found = {name: self._size(name) for name in ("tp", "pp", "cp", "ep")}
        mixture = model is not None and load_model(model).spec.moe is not None
        if found["ep"] > 1 and train != "full":
            self._say("experts_adapted")
            found["ep"] = 1
        elif mixture and found["tp"] > 1:
            self._say("mixture_split")
            found["tp"] = 1
        replicas, world = self._size("replicate"), self.hints.gpus or self._world()
        ranks = None if world is None else world // max(1, found["tp"] * found["pp"])
        found["shard"] = ranks // replicas if ranks and replicas > 1 else 0
        # A single rank does not shard.
        return found | {"zero": 0 if ranks == 1 else self._zero(found["pp"])}

    def _zero(self, pp: int) -> int:
        """The ZeRO stage: 0 for DDP; 3 if weights are sharded again after forward; 2 if they stay
        gathered. If the file does not say, 3 without a pipeline and 2 with one."""
        strategy = self._text("distributed.strategy", "fsdp2")
        target = self._text("distributed._target_")
        if strategy == "ddp" or target.endswith("DDPManager"):
            return 0
        if re.search("megatron[_-]fsdp|mfsdp", strategy) or "MegatronFSDP" in target:
            self._say("megatron_fsdp")
        reshards = self._run("zero")
        if reshards is None and self._size("ep") > 1:
            reshards = self.document.get("distributed.moe.reshard_after_forward", False)
        return 3 if (pp == 1 if reshards is None else reshards is not False) else 2

    def _layout(self, pp: int, model: str | None) -> dict[str, Any]:
        """Virtual stages, layers per block and schedule of a pipeline."""
        if pp == 1:
            return {}
        name = str(self._run("schedule", "1f1b"))
        known = RUN["schedule"].read(re.sub(r"[_-]", "", name.lower()))
        if known is None:
            self._say("schedule", name=name)
        interleaved = known == "interleaved"
        if (parts := layers_of(self._run("parts"))) is not None:
            return {"vpp": max(1, len(parts) // pp), "block_layers": parts}
        layers = None if model is None else load_model(model).spec.layers
        if layers is None:
            return {"vpp": 2 if interleaved else 1}
        per_stage = self.whole(RUN["layers"].key, 0, 0) or None
        rounded = str(self._run("round", "") or "")
        stages = stages_of(layers, per_stage, pp, interleaved=interleaved, rounded=rounded)
        if stages is None:
            self._say("stages", layers=layers, per_stage=per_stage, pp=pp)
            return {}
        return {"vpp": stages // pp, "block_layers": stage_layers(layers, stages)}

    def _batches(self, degrees: Mapping[str, int]) -> dict[str, Any]:
        """Micro-batch, global batch and number of micro-batches per update, by field of `Found`;
        None for those that are not stated. A pipeline runs once per local batch, so a step with
        several local batches gets a note that it is slower than predicted."""
        local = self.whole(RUN["mbs"].key, 1)
        gbs = self.whole(RUN["gbs"].key, 1) if RUN["gbs"].key in self.document.settings else None
        mbs = self.whole(RUN["microbatch"].key, 1) if degrees["pp"] > 1 else local
        world = self.hints.gpus or self._world()
        if degrees["pp"] > 1 and world and gbs:
            ranks = max(1, world // (degrees["tp"] * degrees["pp"] * degrees["cp"]))
            if (runs := gbs // (local * ranks)) > 1:
                setting = self.document.settings[RUN["gbs"].key]
                why = f"each step fills and drains the pipeline {runs} times: slower than predicted"
                self.unmodelled += ((setting, why),)
        return {
            "mbs": self.hints.mbs or mbs,
            "gbs": None if self.hints.grad_acc else self.hints.gbs or gbs,
            "grad_acc": self.hints.grad_acc,
        }

    def _world(self) -> int | None:
        """The number of processes: that of the launcher if it is known, else `--nproc-per-node`.
        None if neither is stated."""
        given = {} if self.launch is None else self.launch.given
        setting = given.get("nproc-per-node") or given.get("nproc_per_node")
        return self.world or (None if setting is None else digits(str(setting.value)))

    # --- how it trains ----------------------------------------------------------------------------

    def _variations(
        self, degrees: Mapping[str, int], adapters: Adapters, train: str
    ) -> tuple[str, ...]:
        """Differences from the profile, by the tables of `rules.toml`."""
        names: dict[str, Any] = {
            "get": self.document.get,
            "run": self._run,
            "in_fp32": self._in_fp32(),
            **degrees,
        }
        if degrees["ep"] > 1:
            self.assumed.append("expert parallelism: costed as torchtitan's mixtures")
            names["optimizer"] = self._text("optimizer._target_")
            rows = [*holding("automodel", "mixture_variations", names, "rules.toml")]
        else:
            names |= {
                "adapters": adapters, "train": train, "recompute": self._recompute(),
                "loss": str(self._run("parallel-loss", "")),
                "whole_layers": partial(self._whole_layers, degrees),
            }  # fmt: skip
            rows = [*holding("automodel", "variations", names, "rules.toml")]
            if names["in_fp32"] and train != "full":
                self._say("frozen_in_fp32")
            self._accumulates(degrees)
        # A policy that keeps some activations.
        key = RUN["recompute"].key
        if self._text(key).lower() == "selective":
            why = "some activations are kept: more memory, and faster, than predicted"
            self.unmodelled += ((self.document.settings[key], why),)
        return tuple(row["name"] for row in rows)

    def _in_fp32(self) -> bool:
        """Whether the weights are stored in fp32."""
        held = self._text("model.torch_dtype", self._text("model.dtype"))
        return re.search("float32|fp32", held) is not None

    def _accumulates(self, degrees: Mapping[str, int]) -> None:
        """Note that gradients stay unsharded between micro-batches, AutoModel's default. No note if
        the file switches this off, in a pipeline, for DDP, or if the local batch is as large as the
        global batch."""
        key = RUN["synchronised"].key
        once = degrees["zero"] == 0 or degrees["pp"] > 1 or self._run("mbs") == self._run("gbs")
        if once or self.document.get(key, True) is False:
            return
        setting = self.document.settings.get(key, Setting(key, True, self.document.path))
        why = "gradients stay whole between micro-batches: more memory, less traffic than predicted"
        self.unmodelled += ((setting, why),)

    def _recompute(self) -> str:
        if self.hints.recompute:
            return self.hints.recompute
        name = "activation_checkpointing"
        keys = (f"distributed.{name}", f"distributed_config.{name}", name)
        words = [str(self.document.get(key)).lower() for key in keys]
        on = ("true", "full", "selective", "on", "yes", "enabled")
        return "full" if any(word in on for word in words) else "none"

    def _whole_layers(self, degrees: Mapping[str, int]) -> bool:
        """Whether whole layers are checkpointed: for transformers' models that are sharded or on
        one GPU (components/distributed/parallelizer.py and ddp.py)."""
        compiled = self.document.get("distributed.enable_compile", False) is True
        own = self.document.get("model.force_hf", False) is True
        return own and not compiled and (degrees["zero"] > 0 or (self._world() or 1) == 1)

    def _optimizer(self) -> str:
        name = self._text("optimizer._target_", "torch.optim.AdamW")
        known = _OPTIMIZERS.get(name.rpartition(".")[2])
        if known is None:
            self._say("optimizer", name=name)
        return known or "adamw"

    def _kernel(self) -> str | None:
        """How torch's Adam or AdamW updates: `fused` if the file asks for it, else `foreach`. None
        for other optimizers."""
        if "torch.optim.Adam" not in self._text("optimizer._target_"):
            return None
        return "fused" if self.document.get("optimizer.fused", False) is True else "foreach"

    # --- rows -------------------------------------------------------------------------------------

    def _pack(self) -> int:
        """The length of a pack in tokens; 0 if samples are not packed."""
        pack = self.document.get(_PACK)
        return pack if isinstance(pack, int) and pack > 0 else 0

    def _packing(self) -> Packing:
        if self._pack():
            return "pack-varlen"
        return "limit" if self.document.get("dataset.padding") == "max_length" else "longest"

    def _length(self) -> int | None:
        """The sequence length in tokens: that of a pack, else the stated limit for samples. None if
        neither is stated. Adds the assumptions that this makes."""
        if pack := self._pack():
            if not self.hints.lengths:
                every = f"samples are packed, so every sequence is full: {pack:,} tokens"
                self.assumed.append(every)
            return pack
        stated = next((key for key in _LIMITS if self.document.get(key)), None)
        setting = Setting("seq_length", None, self.document.path)
        if stated is None:
            self.assumed.append("sequences as long as the model was pretrained with (give --seq)")
        else:
            setting = self.document.settings[stated]
        if self._packing() == "longest":
            why = f"{setting.key} is their limit; shorter samples: less memory than predicted"
            self.unmodelled += ((replace(setting, key=LIMIT_ALONE), why),)
        return None if stated is None else self.whole(stated, 1)

    def _objective(self) -> str:
        """Next-token prediction or distillation; classification is refused."""
        kind = self._text("recipe")
        if teacher := self.document.get("teacher_model.pretrained_model_name_or_path"):
            if (known := known_model(str(teacher))) is not None:
                return f"distill:teacher={known}"
            self._say("teacher", name=teacher)
        elif "SequenceClassification" in kind:
            self._say("classes", kind=kind)
        return "lm"
