"""Reader of torchtitan 0.2 TOML files, and of the settings that 0.3's functions share with them.

Source of the keys' meanings: torchtitan 0.2.2, torchtitan/config/job_config.py, train.py,
parallel_dims.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from constraints.axes import ContextKind
from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.launch.dialects.torchtitan import ASYNC_TP_0_3, TORCHTITAN, sources
from planner.launch.dialects.torchtitan.plan import HALF_STATES
from planner.launch.dialects.torchtitan.table import FLAVORS
from planner.launch.languages.text import digits
from planner.launch.read.document import Document, DocumentReader, Source, toml_document
from planner.launch.read.found import Edit, Found, Problem, Setting, model_unknown, nearest
from planner.launch.read.names import left_out, meanings
from planner.launch.sentences import said_problems

# (model.name, model.flavor) -> catalogue name: the sizes that the writer knows (the first of those
# that share one), and sizes that differ from the catalogue's in a detail.
MODELS: Mapping[tuple[str, ...], str] = {
    (size.module, size.name.lower()): name for name, size in reversed(FLAVORS.items())
} | {tuple(size.split()): name for size, name in meanings("torchtitan", "models").items()}
# Models of torchtitan and its forks that are not pure text models.
_OTHER_MODELS = re.compile(r"flux|vlm|vision|siglip|diffusion|audio|wan\d|_vl\b|-vl\b")
_P, _T, _A = "parallelism", "training", "activation_checkpoint"
_DEFAULTS = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "mbs": 8, "gbs": -1, "seq": 2048}
_DEGREES = {name: TORCHTITAN[name].key for name in _DEFAULTS}
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw"}


def read_torchtitan(source: Source) -> Found:
    """The launch that a TOML file describes, with a command's world size if there is one."""
    document = toml_document(source.text, source.path, source.hints.environment)
    override(document, source.given)
    reader = TorchtitanReader(document, source)
    reader.problems += list(sources.unknown_keys(document))
    return reader.found("torchtitan-0.2")


class TorchtitanReader(DocumentReader):
    """Reads a launch from a document of dotted torchtitan keys."""

    called = "torchtitan"

    def found(self, form: Any) -> Found:
        """The launch that was read."""
        degrees = {
            name: self.whole(_DEGREES[name], default, min(default, 1))
            for name, default in _DEFAULTS.items()
        }
        replicate, shard = self._replicas(degrees, self.hints.gpus or self.world)
        model, shape = self._model()
        batch = self._batch(degrees, replicate * shard)
        layout = self._layout(degrees, self._layers(model, shape))
        zero = self._zero(degrees, shard)
        hybrid = shard * degrees["cp"] if replicate > 1 and zero else 0
        known = sources.is_known if form == "torchtitan-0.2" else sources.is_known_in_0_3
        keys = {name: TORCHTITAN[name].key for name in ("schedule", "recompute")}
        return self.gathered(
            known,
            _DEGREES | keys,
            format=form,
            framework="torchtitan",
            variations=self._variations(degrees),
            model=model,
            shape=shape,
            **{name: degrees[name] for name in ("tp", "pp", "cp", "ep")},
            etp=self._expert_tensor(degrees),
            dp=replicate * shard,
            shard=hybrid,
            zero=zero,
            world=self.world,
            seq=self.hints.seq or degrees["seq"],
            recompute=self.hints.recompute or self._recompute(),
            optimizer=self._optimizer(),
            optimizer_kernel=self._kernel(),
            optimizer_offload=float(bool(self.document.get(f"{_T}.enable_cpu_offload", False))),
            precision=self._precision(),
            cp_comm_type=self._exchange() if degrees["cp"] > 1 else None,
            unmodelled=tuple(
                (self.document.settings[key], why)
                for key, why in left_out("torchtitan", "own").items()
                if self.document.get(key) and key in self.document.settings
            ),
            **batch,
            **layout,
        )

    def _said(self, table: str, **facts: object) -> None:
        """Add the problems that a table of `rules.toml` finds."""
        self.problems += said_problems("torchtitan", table, facts, self.document)

    def _exchange(self) -> ContextKind:
        """The method by which context parallelism exchanges keys and values."""
        method = self.document.get(f"{_P}.context_parallel_rotate_method", "allgather")
        return "p2p" if method == "alltoall" else "all_gather"

    # --- degrees --------------------------------------------------------------------------------

    def _replicas(self, degrees: dict[str, int], gpus: int | None) -> tuple[int, int]:
        """(dp_replicate, dp_shard). A dp_shard of -1, the default, is computed from the number of
        GPUs; 1 if that number is unknown."""
        replicate = self.whole(TORCHTITAN["replicate"].key, 1)
        shard = self.whole(TORCHTITAN["shard"].key, -1, -1)
        if shard < 0:
            others = replicate * degrees["cp"] * degrees["tp"] * degrees["pp"]
            shard = max(1, (gpus or others) // others)
        return replicate, max(1, shard)

    def _expert_tensor(self, degrees: dict[str, int]) -> int | None:
        given = self.whole(TORCHTITAN["etp"].key, 1)
        if degrees["ep"] == 1:
            return None
        self._said("degrees", etp=given, ep=degrees["ep"], tp=degrees["tp"])
        return given

    def _batch(self, degrees: dict[str, int], dp: int) -> dict[str, Any]:
        """mbs and gbs. With a pipeline, the local batch is cut into micro-batches."""
        local = self.hints.mbs or degrees["mbs"]
        gbs = self.hints.gbs or (degrees["gbs"] if degrees["gbs"] > 0 else local * dp)
        self._check_batch(gbs, local, dp)
        if degrees["pp"] == 1:
            return {"mbs": local, "gbs": gbs}
        mbs = self.whole(TORCHTITAN["microbatch"].key, 1)
        if local % mbs:
            self._said("micro_batch", mbs=mbs, local=local)
            mbs = 1
        schedule = sources.schedule_of(str(self.document.get(TORCHTITAN["schedule"].key, "1F1B")))
        if gbs > local * dp:
            gpipe = schedule is not None and schedule[1] == "gpipe"
            self._said("accumulation", gpipe=gpipe, gbs=gbs, dp=dp)
        return {"mbs": mbs, "gbs": gbs}

    def _check_batch(self, gbs: int, local: int, dp: int) -> None:
        stated = (self.document.settings.get(key) for key in _DEGREES.values())
        hidden = any(setting is not None and setting.unknown for setting in stated)
        if gbs % (local * dp) and not hidden:
            below = gbs // (local * dp) * local * dp
            near = " or ".join(str(item) for item in (below, below + local * dp) if item)
            self._said("batch", gbs=gbs, local=local, dp=dp, near=near)

    # --- the model and its layers ---------------------------------------------------------------

    def _model(self) -> tuple[str | None, ModelSpec | None]:
        """The model's name in the catalogue, or its shape from the checkout around the file."""
        name = str(self.document.get("model.name", "llama3"))
        flavor = str(self.document.get("model.flavor", "debugmodel"))
        if self.hints.model:
            return self.hints.model, None
        named = self.document.has("model.name") or self.document.has("model.flavor")
        folder = Path(self.document.path).parent
        shape = sources.registered_model(name, flavor, folder) if named else None
        known = MODELS.get((name.lower(), flavor.lower()))
        if known is not None and (shape is None or sources.is_size_of(shape, known)):
            return known, None
        if shape is not None:
            self.assumed.append(f"{name} {flavor} as in {shape.source}")
            return None, shape
        if _OTHER_MODELS.search(name.lower()):
            self._said("model", name=name, flavor=flavor)
            return None, None
        self.problems.append(
            model_unknown(
                f"model {name} {flavor}".rstrip() + " is not in the catalogue"
                if named
                else "the file does not name the model",
                self.document.place("model.name", "model.flavor"),
                "--model NAME, config.json or .toml",
            )
        )
        return None, None

    def _layers(self, model: str | None, shape: ModelSpec | None) -> int | None:
        spec = load_model(model).spec if model else shape
        return None if spec is None else spec.layers

    def _layout(self, degrees: dict[str, int], layers: int | None) -> dict[str, Any]:
        """vpp, layers of each block and the schedule."""
        key = TORCHTITAN["schedule"].key
        text = str(self.document.get(key, "1F1B"))
        known = sources.schedule_of(text)
        if known is None:
            self.problems.append(_unknown_schedule(text, key, self.document))
            known = ("1F1B", "1f1b", 1)
        if degrees["pp"] == 1:
            return {}
        name, schedule, least = known
        if schedule is None:
            why = f"schedule {name} is not modelled"
            self.unpredictable(why, key)
        usual = schedule in ("1f1b", "interleaved", None)
        layout: dict[str, Any] = {"schedule": None if usual else schedule, "vpp": least}
        return layout | self._blocks(degrees["pp"], least == 1, layers)

    def _blocks(self, pp: int, single: bool, layers: int | None) -> dict[str, Any]:
        one_text = f"{_P}.pipeline_parallel_"
        less_layers = (
            self.whole(f"{one_text}first_stage_less_layers", 1, 0),
            self.whole(f"{one_text}last_stage_less_layers", 1, 0),
        )
        parts = sources.named_parts(self.document.get(f"{_P}.module_fqns_per_model_part"))
        if parts is not None:
            return {"vpp": max(1, len(parts) // pp), "block_layers": parts}
        if layers is None:
            return {}
        key = f"{one_text}layers_per_stage"
        per_stage = self.whole(key, 0, 0) or None
        chunks, problem = sources.stage_count(layers, pp, per_stage, single, less_layers)
        if problem is not None:
            self.problems.append(problem)
            return {"vpp": chunks}
        blocks = sources.stage_layers(layers, pp * chunks, less_layers)
        if blocks is None:
            self._said("stages", layers=layers, stages=pp * chunks)
        return {"vpp": chunks, "block_layers": blocks}

    # --- how it trains --------------------------------------------------------------------------

    def _zero(self, degrees: dict[str, int], shard: int) -> int:
        """FSDP as a ZeRO stage: 3, or 2 if weights stay gathered until backward; 0 if nothing is
        sharded."""
        key = f"{_P}.fsdp_reshard_after_forward"
        policy = self.choice(key, "default", ("default", "always", "never"), "never")
        if shard * degrees["cp"] == 1:
            return 0
        return 3 if policy == "always" or (policy == "default" and degrees["pp"] == 1) else 2

    def _recompute(self) -> str:
        modes = ("none", "selective", "full", "memory_budget")
        mode = str(self.choice(TORCHTITAN["recompute"].key, "selective", modes, "none"))
        option = str(self.document.get(f"{_A}.selective_ac_option", "2"))
        if mode == "selective":
            if every := digits(option):
                return f"full/{every}" if every > 1 else "full"
            if option != "op":
                key = f"{_A}.selective_ac_option"
                text = f"{key} {option!r}: op, or a number (every n-th layer)"
                self.problems.append(self.document.wrong(text, key))
            return "selective"
        if mode == "memory_budget":
            return f"budget={self.share(f'{_A}.memory_budget', 0.5):g}"
        return mode

    def _optimizer(self) -> str:
        name = str(self.document.get("optimizer.name", "AdamW"))
        if self.document.get(TORCHTITAN["kernel"].key) == HALF_STATES:
            return "adamw-bf16"
        if name.lower() not in _OPTIMIZERS:
            self._said("optimizer", name=name)
        return _OPTIMIZERS.get(name.lower(), "adamw")

    def _in_bf16(self, name: str) -> bool:
        """Whether the type that `training.NAME` states is bf16; if nothing is stated it is fp32."""
        return str(self.document.get(f"{_T}.{name}", "float32")) == "bfloat16"

    def _kernel(self) -> str | None:
        kernel = TORCHTITAN["kernel"]
        value = self.document.get(kernel.key, "fused")
        return "fused" if value == HALF_STATES else kernel.read(value)

    def _precision(self) -> str:
        """The precision: mxfp8 or fp8 if a converter replaces linear layers, otherwise bf16."""
        self._types()
        converters = self._words("model.converters", ())
        if any("mx" in converter for converter in converters):
            return "mxfp8"
        if any("float8" in converter for converter in converters):
            return "fp8"
        if str(self.document.get(f"{_T}.mixed_precision_param", "bfloat16")) == "float32":
            self._said("fp32")
        return "bf16"

    def _words(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """The words of a list, which a command line states as one text. Any other value gives an
        empty list and a problem."""
        listed = self.document.get(key, list(default))
        if isinstance(listed, str):
            listed = re.split(r"[,\s]+", listed)
        if not isinstance(listed, list):
            self.problems.append(self.document.wrong(f"{key}: {listed!r} is not a list", key))
            return ()
        return tuple(str(item) for item in listed)

    def _types(self) -> None:
        """Add problems for types in `training`: fp16, which is not modelled, and types that
        torchtitan refuses only at the start of a run."""
        for name in ("dtype", "mixed_precision_param", "mixed_precision_reduce"):
            key = f"{_T}.{name}"
            value = str(self.document.get(key, "float32"))
            if value == "float16":
                self.unpredictable(f"{key} = float16 is not modelled", key)
            elif value not in ("float32", "bfloat16"):
                text = f"{key} = {value!r}: float32 or bfloat16 (refused only at the start)"
                close = nearest(value, ("bfloat16", "float32"), 0.4)
                fix = f'"{close}"' if close else ""
                self.problems.append(self.document.wrong(text, key, fix, late=True))

    def _steps_in_backward(self, degrees: dict[str, int]) -> bool:
        """Whether the optimizer updates each parameter as soon as its gradient is ready, during
        backward (`early_step_in_backward`). Adds a problem if there is a pipeline or expert
        parallelism, with which torchtitan refuses it."""
        if not self.document.get("optimizer.early_step_in_backward", False):
            return False
        self._said("in_backward", **degrees)
        return True

    def _variations(self, degrees: dict[str, int]) -> tuple[str, ...]:
        names = []
        compiled = bool(self.document.get(TORCHTITAN["eager-blocks"].key, False))
        components = self._words("compile.components", ("model", "loss"))
        if not (compiled and "model" in components):
            names.append("eager-blocks")
        if not (compiled and "loss" in components):
            names.append("uncompiled-loss")
        places = (TORCHTITAN["async-tp"], ASYNC_TP_0_3)
        stated = [self.document.get(place.key, False) for place in places]
        if degrees["tp"] > 1 and any(stated):
            names.append("async-tp")
        if self.document.get(f"{_P}.expert_parallel_comm_backend", "standard") == "deepep":
            names.append("fused-dispatch")
        if self.document.get(f"{_P}.enable_sequence_parallel", True) is False and degrees["tp"] > 1:
            names.append("no-sequence-parallel")
        if self._steps_in_backward(degrees):
            names.append("optimizer-in-backward")
        if self._in_bf16("dtype"):
            names.append("bf16-parameters")
        if self._in_bf16("mixed_precision_reduce"):
            names.append("bf16-reduction")
        return tuple(names)


def _unknown_schedule(given: str, key: str, document: Document) -> Problem:
    """The problem that torch lacks a schedule, which torchtitan's parsers accept."""
    lower = {name.lower(): name for name in sources.SCHEDULES}
    close = nearest(given.lower(), lower, 0.3)
    named = ", ".join(name for name, (item, _) in sources.SCHEDULES.items() if item)
    text = (
        f"pipeline_parallel_schedule {given!r}: torch has {named} (found out when the pipeline is "
        "built)"
    )
    edits = (Edit(key, lower[close]),) if close else ()
    return document.problem("unknown-schedule", text, key, edits=edits, late=True)


def override(document: Document, given: Mapping[str, Setting]) -> None:
    """Apply settings of the command line, such as `--training.local_batch_size 4`, over the
    file's."""
    for key, setting in given.items():
        if not re.match(r"[a-z_]+\.\w", key) or key.startswith("job."):
            continue
        table, _, name = key.rpartition(".")
        if name.startswith("no_") and setting.value is True and not sources.is_known(key):
            # tyro switches off in this way: `--profiling.no-enable-profiling`.
            document.override(replace(setting, value=False), f"{table}.{name[3:]}")
        else:
            document.override(replace(setting, value=_typed(str(setting.value))), key)


def _typed(text: str) -> object:
    """A command line's text as the value that a TOML file would have."""
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
