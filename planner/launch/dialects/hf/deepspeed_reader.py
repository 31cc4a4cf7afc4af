"""Reader of DeepSpeed JSON files, with the arguments of the Trainer script that uses one.

Keys: DeepSpeed 0.19, runtime/config.py, runtime/constants.py and runtime/zero/config.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from planner.launch.dialects.hf import DEEPSPEED
from planner.launch.dialects.hf.arguments import is_switched, value_of
from planner.launch.dialects.hf.scripted_reader import ScriptedReader
from planner.launch.read.document import Document, unknown_key
from planner.launch.read.found import Edit, Found, Problem, nearest
from planner.launch.read.names import is_known, known_names, left_out, meanings
from planner.launch.registry import dialect_toml

_Z = "zero_optimization"
_TRUE = ("1", "on", "t", "true", "y", "yes")
_FALSE = ("0", "off", "f", "false", "n", "no")
_DEVICES = ("none", "cpu", "nvme")
# Kinds of values, and how a message describes them.
_WANTED = {
    "bool": "true or false", "int": "a whole number of at least 0", "device": ", ".join(_DEVICES),
}  # fmt: skip
# A value that the Trainer fills in; DeepSpeed alone uses its default.
_AUTO = "auto"
SWITCHES = ("bf16.enabled", "fp16.enabled")
# Tables that have no pydantic class and fail if they are not tables.
_TABLES = ("optimizer", "scheduler", "activation_checkpointing")


def as_flag(value: object) -> bool | None:
    """A value as pydantic parses a bool; None if it is invalid."""
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    text = str(value).lower() if isinstance(value, str) else ""
    return True if text in _TRUE else False if text in _FALSE else None


def as_whole(value: object) -> int | None:
    """A value as pydantic parses an int; None if it is invalid."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else None


def type_problems(document: Document) -> Iterator[Problem]:
    """Values of the wrong type, and unknown keys in the offload tables."""
    types = meanings("hf", "deepspeed-types")
    for name in _TABLES:
        yield from _no_table(document, name)
    for kind, wanted in _WANTED.items():
        names = [f"{_Z}.{name}" for name in types[kind].split()]
        for key in (*names, *(SWITCHES if kind == "bool" else ())):
            setting = document.settings.get(key)
            if setting is None or setting.unknown or setting.value in (None, _AUTO):
                continue
            if not _fits(kind, setting.value):
                yield document.wrong(f"{key}: {setting.value!r} is not {wanted}", key)
    for table in types["table"].split():
        yield from _no_table(document, f"{_Z}.{table}")
        yield from _refused(document, f"{_Z}.{table}", known_names("hf", f"deepspeed-{table}"))


def _refused(document: Document, table: str, known: Collection[str]) -> Iterator[Problem]:
    """A problem for each key of a table that is not in `known`; DeepSpeed refuses such keys."""
    says = "DeepSpeed has no such key and refuses it"
    for name in document.names(table):
        if name not in known:
            yield unknown_key(document, f"{table}.{name}", says, nearest(name, known))


def _fits(kind: str, value: object) -> bool:
    if kind == "bool":
        return as_flag(value) is not None
    if kind == "int":
        number = as_whole(value)
        return number is not None and number >= 0
    return value in _DEVICES


def _no_table(document: Document, key: str, also: object = _AUTO) -> Iterator[Problem]:
    """A problem if a setting should be a table and is not. `also`: another value that is
    allowed."""
    setting = document.settings.get(key)
    if setting is None or setting.value in (None, {}):
        return
    if type(setting.value) is not type(also) or setting.value != also:
        yield document.wrong(f"{key}: {setting.value!r} is no table of settings", key)


TOP_KEYS = known_names("hf", "deepspeed")
ZERO_KEYS = known_names("hf", "deepspeed-zero")
_MBS, _ACC, _GBS = (DEEPSPEED[name].key for name in ("mbs", "grad_acc", "gbs"))
# Formats of gradients, which are modelled as equal to the compute format.
_SAME_TYPE = ("data_types.grad_accum_dtype", "communication_data_type")
# Words of a command that may state the format of the weights.
_HALF = re.compile(r"bf16|fp16|bfloat16|float16|half|mixed|dtype|precision")
_PRECISION_NAMES = {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16", "half")}
_OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "lion": "lion", "sgd": "sgd", "muon": "muon",
}  # fmt: skip
_OFF = (None, False, "none", "auto")
# Techniques of the profile, by the device that each offload table names.
_HOMES = {
    "offload_param": {"cpu": "parameter-offload", "nvme": "parameter-nvme"},
    "offload_optimizer": {"nvme": "optimizer-nvme"},
}
# Sizes of groups that share a second copy of the weights, for which the profile has variations.
_COPIES = (2, 4, 8, 16, 32, 64, 72)
_OPTIMIZER_NAMES: Mapping[str, str] = dialect_toml("hf", "rules.toml")["optimizers"]
_DEPRECATED = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}


class DeepspeedReader(ScriptedReader):
    """The launch described by a DeepSpeed file, completed by the command or the caller."""

    called, plain_floats, open_value = "DeepSpeed", True, "auto"

    def found(self) -> Found:
        """The launch, with everything that was read from the file, the script's arguments and the
        caller's hints."""
        self.problems += self._unknown()
        self._exclusions()
        self.problems += type_problems(self.document)
        tp = self.whole(DEEPSPEED["tp"].key, 1)
        stage = self._stage()
        batch = self._batch(self.hints.gpus or self.world, tp)
        homes = tuple(self._homes(stage))
        self._optimizer_rules(stage)
        if self.hints.recompute is None:
            self.assumed.append("no recomputation (not in this file; give --recompute full)")
        self.demand_model()
        self._other_rules(stage, self.hints.gpus or self.world)
        return self.scripted(
            partial(is_known, {"": TOP_KEYS, _Z: ZERO_KEYS}),
            {"mbs": _MBS, "grad_acc": _ACC, "gbs": _GBS, "zero": DEEPSPEED["zero"].key},
            "deepspeed",
            homes,
            format="deepspeed",
            tp=tp,
            zero=stage,
            world=self.world,
            recompute=self.hints.recompute or "none",
            optimizer=self._optimizer(),
            optimizer_kernel=None if self._config_optimizer() else self.script.kernel,
            optimizer_offload=self._offload(),
            precision=self._precision(),
            unmodelled=tuple(
                (self.document.settings[at], why)
                for key, why in left_out("hf", "deepspeed").items()
                if (at := self._asked_for(key))
            ),
            **batch,
        )

    def _asked_for(self, key: str) -> str | None:
        """The key that switches on a feature that the prediction leaves out: `key` itself; for a
        table its first `enabled` switch that is on, or without such switches its first key. None if
        the feature is off."""
        settings = self.document.settings
        below = [name for name in settings if name.startswith(f"{key}.")]
        switches = [name for name in below if name.endswith(".enabled")]
        if below:
            return next(filter(self._on, switches), None) if switches else below[0]
        value = self.document.get(key)
        names = _PRECISION_NAMES[self._precision()]
        same = key in _SAME_TYPE and str(value).lower() in names
        return None if key not in settings or value in _OFF or same else key

    # --- values ---------------------------------------------------------------------------------

    def _on(self, key: str) -> bool:
        return as_flag(self.document.get(key)) is True

    def _precision(self) -> str:
        """The compute format: the file's, else the Trainer's, which replaces `auto` and a missing
        table (accelerate: DeepSpeedPlugin.set_mixed_precision)."""
        if any(map(self._on, SWITCHES)):
            return "fp16" if self._on("fp16.enabled") else "bf16"
        asked = value_of(self.script.given, "mixed_precision") == "fp16"
        asked = asked or is_switched(self.script.given, "fp16")
        return "fp16" if asked and not is_switched(self.script.given, "bf16") else "bf16"

    def _stage(self) -> int:
        key = DEEPSPEED["zero"].key
        # `"zero_optimization": true` means stage 1; it predates the other stages.
        value = self.document.get(key, int(self.document.get(_Z) is True))
        if value in (True, False) or (isinstance(value, str) and value in ("0", "1", "2", "3")):
            value = int(value)  # as pydantic does
        if value == "auto":
            value = 0
        if isinstance(value, list):
            self.unpredictable("stages that DeepSpeed's autotuner tries are not modelled", key)
            return 3
        if value not in (0, 1, 2, 3) or isinstance(value, bool):
            text = f"{key} {value!r}: DeepSpeed has 0, 1, 2 and 3"
            edits = (Edit(key, "3"),)
            self.refuse("zero-stage", text, key, edits=edits)
            return 3
        return int(value)

    def _other_rules(self, stage: int, gpus: int | None) -> None:
        stated = [self.document.get(f"{name}.enabled") for name in _PRECISION_NAMES]
        words = self.launch.command.words if self.launch is not None else ()
        told = any(_HALF.search(word.text.value) for word in words)
        size = self._second_copy()
        self.said(
            "deepspeed",
            sequences=self.whole("sequence_parallel_size", 1),
            fp32=False in stated and True not in stated and "auto" not in stated and not told,
            efficiency=self._on("data_efficiency.enabled"),
            stage=stage,
            gpus=gpus,
            size=size,
            counted=size in _COPIES,
            left_over=gpus and size > 1 and gpus % min(size, gpus),
            mics=self.document.get(f"{_Z}.mics_shard_size", -1),
        )

    def _batch(self, gpus: int | None, tp: int) -> dict[str, Any]:
        """mbs, grad_acc and gbs by field of `Found`. As in DeepSpeed, two of them determine the
        third. If all three are stated but disagree, a problem is added and gbs is computed from the
        others. An mbs or grad_acc that nothing determines counts as 1, with a note."""
        mbs = self.hints.mbs or self.whole(_MBS, 0) or None
        acc = self.hints.grad_acc or self.whole(_ACC, 0) or None
        gbs = self.hints.gbs or self.whole(_GBS, 0) or None
        dp = gpus // tp if gpus else None
        if gbs and dp and mbs and acc and gbs != mbs * acc * dp:
            product = mbs * acc * dp
            self.said("deepspeed_batch", gbs=gbs, mbs=mbs, acc=acc, dp=dp, product=product)
            gbs = product
        if mbs is None and gbs and dp:
            mbs = max(1, gbs // (dp * (acc or 1)))
        if mbs is None:
            self.no_micro_batch()
        if acc is None and gbs is None:
            self.no_accumulation()
            acc = 1
        return {"mbs": mbs or 1, "grad_acc": None if gbs else acc, "gbs": gbs}

    def _config_optimizer(self) -> bool:
        """Whether DeepSpeed creates the optimizer, rather than the script."""
        return self.document.get("optimizer.type") not in (None, "auto")

    def _optimizer(self) -> str:
        if not self._config_optimizer():
            return self.script.optimizer or "adamw"
        name = self.document.get("optimizer.type")
        known = _OPTIMIZERS.get(str(name).lower())
        if known == "sgd" and self.document.get("optimizer.params.momentum", 0.0) == 0.0:
            return "sgd:momentum=none"
        if known is None:
            text = f"optimizer {name} is not modelled; costed as AdamW"
            self.refuse("not-modelled", text, "optimizer.type", severity="warning")
        return known or "adamw"

    def _offload(self) -> float:
        device = self.document.get(f"{_Z}.offload_optimizer.device")
        if device in _OFF:
            return 0.0
        share = self.share(f"{_Z}.offload_optimizer.ratio", 1.0)
        return 1.0 if device == "nvme" else share

    def _second_copy(self) -> int:
        """The number of ranks that share the second copy of the weights that ZeRO++ keeps
        (`zero_hpz_partition_size`); 1 if there is none."""
        return as_whole(self.document.get(f"{_Z}.zero_hpz_partition_size", 1)) or 1

    def _homes(self, stage: int) -> Iterator[str]:
        """Names of the techniques that say where weights and optimizer states are stored
        (offloaded, or a second copy). No names below stage 3; problems are added for wrong or
        ignored settings."""
        for table, named in _HOMES.items():
            device = self.document.get(f"{_Z}.{table}.device")
            path = self.document.get(f"{_Z}.{table}.nvme_path")
            self.said(f"deepspeed_{table}", stage=stage, device=device, path=path)
            if stage == 3 and device in named:
                yield named[device]
        if stage == 3 and self._second_copy() in _COPIES:
            yield f"hpz-{self._second_copy()}"

    # --- rules ----------------------------------------------------------------------------------

    def _unknown(self) -> Iterator[Problem]:
        for key in self.document.names():
            if key not in TOP_KEYS:
                says = "DeepSpeed ignores it without a word"
                close = nearest(key, TOP_KEYS)
                yield unknown_key(self.document, key, says, close, severity="warning", late=True)
        yield from _refused(self.document, _Z, ZERO_KEYS)
        # `true` is what `zero_optimization` was before it had stages.
        yield from _no_table(self.document, _Z, True)
        for key in ("bf16", "fp16"):
            yield from _no_table(self.document, key, False)

    def _exclusions(self) -> None:
        both = all(map(self._on, ("fp16.enabled", "bf16.enabled")))
        settings, has = self.document.settings, self.document.has
        twice = [
            f"{_Z}.{old}" in settings and has(f"{_Z}.{new}") for old, new in _DEPRECATED.items()
        ]
        self.said("deepspeed_types", both=both, twice=twice)

    def _optimizer_rules(self, stage: int) -> None:
        """Add a problem if DeepSpeed refuses the value of `optimizer.type`."""
        name = self.document.get("optimizer.type")
        if name in (None, "auto"):
            return
        named = {kind: text.split() for kind, text in _OPTIMIZER_NAMES.items()}
        lower = str(name).lower()
        known = lower in named["deepspeed"] or name in named["torch"]
        untested = bool(known and stage and lower not in named["tested"])
        self.said(
            "deepspeed_optimizer",
            name=name,
            older=lower in named["older"],
            known=known,
            close=nearest(str(name), ("AdamW", "Adam", "Lion", *named["torch"])) or "AdamW",
            untested=untested and self.document.get("zero_allow_untested_optimizer") is not True,
        )
