"""Reader of Megatron-LM launches: arguments of pretrain_gpt.py in a script or a list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.job.bounds import MOST_LAYERS
from planner.job.specs import ModelSpec
from planner.launch.dialects.megatron import forks, layout, settings
from planner.launch.dialects.megatron.arguments import parse_arguments
from planner.launch.dialects.megatron.forks import Dialect
from planner.launch.dialects.megatron.model import (
    read_model,
    stated_vocabulary,
    vocabulary_unknown,
)
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.dialects.megatron.rules import MegatronFacts, option_problems
from planner.launch.dialects.megatron.table import option
from planner.launch.options import SWITCH
from planner.launch.read.beside import text_beside
from planner.launch.read.command import LaunchCommand, other_model
from planner.launch.read.found import (
    Edit,
    Found,
    Hints,
    Problem,
    Setting,
    not_predictable,
    unresolved,
)
from planner.launch.read.names import left_out

# Switches for fusions that the profile without Transformer Engine does not assume anyway.
_UNFUSED: tuple[str, ...] = (
    "no-masked-softmax-fusion", "no-bias-swiglu-fusion", "no-bias-gelu-fusion", "no-rope-fusion",
)  # fmt: skip
# The variation (`planner.launch.check.request`) that each switch brings.
_VARIATIONS: Mapping[str, str] = {
    option.name: name for name, option in MEGATRON.items() if option.written.get("True") == SWITCH
}
# Variations that a launch with experts has if it lacks the switch.
_OF_EXPERTS = {
    MEGATRON["grouped-gemm"].name: "sequential-experts",
    MEGATRON["permute-fusion"].name: "torch-permutation",
}
# Variations that together mean the profile without any overlap.
_NO_OVERLAP = {"unfused-accumulation", "gradient-reduction-exposed"}
_FSDP = MEGATRON["fsdp"].name
_BY_SAMPLE, _MOST = "hybrid-context-parallel", "max-seqlen-per-dp-cp-rank"
_GATHER_EXPOSED = "parameter-gather-exposed"
# The profile of launches whose optimizer steps are DeepSpeed's.
_ENGINE = "megatron-deepspeed"
_GRADIENTS_SHARDED = 2
_DEGREES = {
    name: MEGATRON[name].name for name in ("tp", "pp", "cp", "ep", "etp", "mbs", "gbs", "seq")
}


class MegatronReader:
    """Reads a launch from the arguments of a command.

    `parser`: the variant of Megatron if it is known beforehand; `is_partial`: whether some
    arguments are unknown, or the program may have other defaults.
    """

    parser: Dialect | None = None
    is_partial = False

    def __init__(self, launch: LaunchCommand, hints: Hints, unread: Sequence[Problem] = ()) -> None:
        self.launch, self.hints = launch, hints
        self.arguments = parse_arguments(launch.arguments)
        self.arguments.problems += unread
        self.dialect = self.parser or forks.dialect_of(self.arguments, launch)
        forks.translate(self.arguments, self.dialect)
        unresolved = any(problem.rule == "unresolved" for problem in self.arguments.problems)
        self.is_partial = self.is_partial or unresolved or not self.dialect.core
        self.assumed: list[str] = []
        unknown = list(forks.unknown_problems(self.arguments, self.dialect.words))
        self.problems = forks.eased(unknown, self.dialect)
        self.problems += forks.dialect_note(self.arguments, self.dialect)

    def found(self) -> Found:
        """The launch that was read."""
        degrees = self._degrees()
        shape = self._shape()
        stated = shape.layers if shape else self.arguments.number(option("layers")) or 0
        layers = stated if 0 < stated <= MOST_LAYERS else 0  # no model has more
        split = layout.read_split(self.arguments, layers, degrees["pp"])
        kind = self.dialect.name
        self.problems += layout.unusual_splits(self.arguments, split, layers, degrees["pp"], kind)
        # Forks and other programs have their own rules for splitting layers.
        forked = not (self.dialect.core or kind in ("primus", "older", "swift"))
        self.problems += [
            replace(problem, severity="missing", fix="") if forked else problem
            for problem in split.problems
        ]
        environment, place = self._environment(), self.launch.place
        sizes = {name: degrees[name] for name in ("tp", "pp", "cp")} | {"vpp": split.vpp}
        facts = MegatronFacts(self.arguments, sizes, environment, place, bool(self.launch.program))
        self.problems += forks.eased(option_problems(facts), self.dialect)
        dp = self._data_parallel(degrees)
        self.problems += layout.grouped_micro_batches(self.arguments, degrees, dp)
        exchange = settings.read_exchange(self.arguments, degrees["cp"])
        sharp = settings.read_sharp(self.arguments, environment, place)
        ramp = settings.read_megatron_ramp(self.arguments, degrees["gbs"], degrees["seq"])
        degrees |= {} if self.hints.gbs is not None else ramp
        training = self._training(degrees)
        self._modes_beyond()
        samples = self._samples(degrees["seq"], degrees["cp"])
        counted = _UNFUSED if training["framework"] == "megatron-local" else ()
        counted += settings.RAMPS if ramp.get("batch_ramp") else ()
        usual = left_out("megatron", "own", "as costed")
        unmodelled = (
            *self.arguments.left_out,
            *(
                (self.arguments.settings[name], why)
                for name, why in left_out("megatron", "own").items()
                if self.arguments.has(name) and name not in counted
                if set(self.arguments.many(name)) != {usual.get(name)}
            ),
            *forks.fork_savings(self.arguments),
        )
        self.problems += forks.eased(self.arguments.problems, self.dialect)
        self.problems = forks.as_sure_as_read(self.problems, self.arguments)
        if why := other_model(self.launch):
            # Problems with the options would add nothing.
            self.problems = [not_predictable(f"{why}: not modelled")]
        return Found(
            format="megatron",
            shape=None if self.hints.model else shape,
            model=self.hints.model,
            vpp=split.vpp,
            world=self.launch.world,
            block_layers=split.blocks,
            mtp_standalone=split.mtp_standalone,
            main_file=self.launch.command.file,
            where=self._where(),
            settings=tuple(self.arguments.settings.values()),
            unused=tuple(self.arguments.rest()),
            unmodelled=unmodelled,
            unknown=tuple(self.arguments.unknown),
            problems=tuple(self.problems),
            assumed=tuple(self.assumed),
            left_open=self._left_open(),
            environment=environment,
            sharp=sharp,
            **degrees,
            **exchange,
            **training,
            **samples,
        )

    def _left_open(self) -> tuple[str, ...]:
        """The facts that neither the caller nor an option states: `("vocab",)` if the size of the
        vocabulary is unknown, else empty."""
        known = self.hints.model or self.hints.vocab
        return () if known or stated_vocabulary(self.arguments) is not None else ("vocab",)

    def _shape(self) -> ModelSpec | None:
        """The model that the caller names, else the one that the options describe."""
        if self.hints.model:
            from planner.job.models.catalog import load_model

            return load_model(self.hints.model).spec
        shape, problems = read_model(self.arguments, self.hints, self.assumed)
        if self.is_partial:
            problems = [
                replace(problem, severity="missing", fix=problem.fix or "--model NAME")
                for problem in problems
            ]
        self.problems += problems
        if shape is not None:
            self.problems += vocabulary_unknown(self.arguments, self.hints, shape)
        return shape

    def _where(self) -> dict[str, Setting]:
        named = {field: self.arguments.settings.get(name) for field, name in _DEGREES.items()}
        named["world"] = self.launch.per_node or self.launch.total
        named["zero"] = self.arguments.settings.get("zero-stage")
        named["sharp"] = self.arguments.settings.get(MEGATRON["sharp"].name)
        return {field: item for field, item in named.items() if item is not None}

    def _environment(self) -> dict[str, str]:
        found = {name: item.known for name, item in self.launch.command.environment.items()}
        return found if self.launch.program else {**self.hints.environment, **found}

    def _degrees(self) -> dict[str, Any]:
        """Degrees and batch; an unknown value is reported as a problem."""
        values: dict[str, Any] = {}
        for field, name in _DEGREES.items():
            setting = self.arguments.setting(name)
            stated = getattr(self.hints, field, None) is not None
            if setting is not None and setting.unknown and not stated:
                self.problems.append(unresolved(setting))
            number = self.arguments.number(name)
            if number is not None and number < 1:
                edits = (Edit(f"--{name}", "1"),)
                self.refuse("option-value", f"--{name} {number}: at least 1", name, edits=edits)
            values[field] = None if number is None else max(number, 1)
        hinted = {name: getattr(self.hints, name) for name in ("mbs", "gbs", "seq")}
        values |= {name: item for name, item in hinted.items() if item is not None}
        if values["mbs"] is None and self.arguments.setting(_DEGREES["mbs"]) is None:
            # If only part of a launch is read, the rest may state it.
            key = MEGATRON["mbs"].key
            problem = Problem("micro-batch", f"{key} is missing", edits=(Edit(key, "1"),))
            partly = replace(problem, severity="missing", fix="--mbs N", edits=())
            self.problems.append(partly if self.is_partial else problem)
        one = {name: values[name] or 1 for name in ("tp", "pp", "cp", "ep", "mbs")}
        experts = self.arguments.has(option("moe.experts")) or self.hints.model
        return values | one | {"etp": values["etp"] if experts else None}

    def _data_parallel(self, degrees: dict[str, Any]) -> int | None:
        world = self.hints.gpus or self.launch.world
        replica = degrees["tp"] * degrees["pp"] * degrees["cp"]
        return max(1, world // replica) if world else None

    # --- how it trains --------------------------------------------------------------------------

    def _training(self, degrees: dict[str, Any]) -> dict[str, Any]:
        arguments = self.arguments
        local = arguments.text(MEGATRON["kernels"].name) == "local"
        eager = self._is_eager(local)
        drops = [
            arguments.real(MEGATRON[name].name) > 0.0 for name in ("dropout", "attention-dropout")
        ]
        offloaded = arguments.real("optimizer-offload-fraction")
        alone = local and not self.dialect.framework
        framework, variations = ("megatron-local", ()) if alone else self._profile(degrees)
        if framework == "megatron-fsdp":
            self._fsdp(degrees)
        return {
            "framework": framework,
            "variations": variations,
            "zero": self._zero(),
            "recompute": self.hints.recompute or settings.recompute_of(arguments),
            "optimizer": self._optimizer(),
            "optimizer_offload": offloaded if self._has("optimizer_offload") else 0.0,
            "precision": settings.precision_of(self.arguments),
            "attention": "eager" if eager else "flash",
            "dropout": drops[0] or (eager and drops[1]),
            "shard": self._shard(degrees),
            **settings.read_offload(arguments),
        }

    def _is_eager(self, local: bool) -> bool:
        """Whether attention runs without a fused kernel and therefore stores its scores. `local`:
        without Transformer Engine."""
        backend = self.arguments.text(MEGATRON["attention"].name)
        if local or self.dialect.framework:
            return not (self.arguments.has("use-flash-attn") or backend == "flash")
        fused = {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"}
        off = self._environment()
        return backend in ("unfused", "local") or all(off.get(k) == v for k, v in fused.items())

    def _profile(self, degrees: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """(framework profile, variations of it): the name of the profile under which the launch is
        costed, and the names of the techniques and switches in which the options differ from it."""
        names = self._variations(degrees)
        if self.dialect.framework:
            return self.dialect.framework, ()
        if self._zero() >= _GRADIENTS_SHARDED:
            # Megatron-FSDP adds gradients to no buffer, and keeps them in 16 bits anyway.
            implied = ("unfused-accumulation", "bf16-gradients")
            return "megatron-fsdp", tuple(name for name in names if name not in implied)
        if set(names) >= _NO_OVERLAP:
            rest = tuple(name for name in names if name not in (*_NO_OVERLAP, _GATHER_EXPOSED))
            return "megatron-core-no-overlap", rest
        return "megatron-core", names

    def _variations(self, degrees: dict[str, Any]) -> tuple[str, ...]:
        arguments = self.arguments
        names = [name for option, name in _VARIATIONS.items() if arguments.has(option)]
        if degrees["tp"] > 1 and not self._has("no-sequence-parallel"):
            names.append("no-sequence-parallel")
        replicas = self._data_parallel(degrees)
        if replicas is None or replicas * degrees["cp"] > 1:
            if not self._has("gradient-reduction-exposed"):
                names.append("gradient-reduction-exposed")
            gathers = self._has(_GATHER_EXPOSED)
            if self._has("zero") and not gathers:
                names.append(_GATHER_EXPOSED)
        if arguments.text(MEGATRON["dispatcher"].name) == "flex":
            names.append("fused-dispatch")
        graphs = arguments.text("cuda-graph-impl") not in (None, "none")
        if graphs or arguments.has("enable-cuda-graph") or arguments.has("external-cuda-graph"):
            names.append("cuda-graphs")
        if arguments.has(option("moe.experts")):
            names += [name for key, name in _OF_EXPERTS.items() if not arguments.has(key)]
        if arguments.text("moe-flex-dispatcher-backend") == "hybridep":
            # HybridEP permutes and combines tokens itself.
            names = [name for name in names if name != "torch-permutation"]
        return tuple(dict.fromkeys(names))

    def _zero(self) -> int:
        # BF16_Optimizer shards its states at every stage (runtime/bf16_optimizer.py).
        divided = self.dialect.framework == _ENGINE and self.arguments.has("bf16")
        return self._stage() or int(divided)

    def _stage(self) -> int:
        arguments = self.arguments
        if self.dialect.name == "deepspeed" and self.dialect.framework != _ENGINE:
            arguments.has("zero-stage")  # said to an engine that is off
            return int(self._has("zero"))
        if arguments.has("zero-stage"):
            return arguments.number("zero-stage") or 0
        if self.dialect.name == "deepspeed" and (setting := arguments.setting("deepspeed_config")):
            return self._stage_in(setting)
        stage = MEGATRON["sharding"].read(arguments.text(MEGATRON["sharding"].name))
        if arguments.has(_FSDP):
            return int(stage or 3)
        return int(self._has("zero"))

    def _stage_in(self, setting: Setting) -> int:
        """The ZeRO stage in DeepSpeed's configuration file; 0 and a problem if it cannot be read
        there."""
        text = text_beside(str(setting.value), self.launch.folder)
        if found := re.search(r'"stage"\s*:\s*([0-3])\b', text):
            return int(found[1])
        text = f"{setting.value or setting.key} states the ZeRO stage, but is not there to read"
        fix = "give --zero-stage in the script too"
        problem = Problem("zero-unknown", text, "missing", (setting.place,), fix)
        self.problems += [] if problem in self.problems else [problem]
        return 0

    def _fsdp(self, degrees: dict[str, Any]) -> None:
        """Report features that the profile of Megatron-FSDP does not model."""
        exclusive = (
            (_DEGREES["pp"], degrees["pp"] > 1, "with a pipeline"),
            (MEGATRON["groups"].name, self._shard(degrees) > 0, "in groups (HSDP)"),
        )
        for name, is_so, words in exclusive:
            if is_so:
                self._unpredictable(f"Megatron-FSDP {words} is not modelled", _FSDP, name)
        buffer = MEGATRON["double-buffer"]
        buffered = self.arguments.has(buffer.name) or self.arguments.has("use-nccl-ub")
        if self._zero() > _GRADIENTS_SHARDED and not buffered:
            text = (
                f"no {buffer.key}: up to 10^9 elements of gradients and half that number "
                "of weights are held beyond the two layers that the prediction counts"
            )
            edits = (Edit(buffer.key, SWITCH),)
            self.refuse("not-modelled", text, _FSDP, severity="warning", edits=edits)

    def _shard(self, degrees: dict[str, Any]) -> int:
        instances = self.arguments.number(MEGATRON["groups"].name) or 1
        replicas = self._data_parallel(degrees)
        if instances == 1 or replicas is None:
            return 0
        return max(1, replicas * int(degrees["cp"]) // instances)

    def _optimizer(self) -> str:
        return settings.optimizer_of(self.arguments)

    def _has(self, ours: str) -> bool:
        """Whether an option is given. `ours`: the planner's name for it, a key of
        `options.toml`."""
        return self.arguments.has(MEGATRON[ours].name)

    def refuse(self, rule: str, text: str, *names: str, **more: Any) -> None:
        """Add a problem with options. `more`: fields of `Problem`."""
        self.problems.append(self.arguments.problem(rule, text, *names, **more))

    def _unpredictable(self, text: str, *names: str) -> None:
        self.problems.append(self.arguments.unpredictable(text, *names))

    def _modes_beyond(self) -> None:
        """Report models and modes that are not predicted."""
        self.problems += forks.others_unpredictable(self.arguments, self.dialect)
        if self.dialect.framework and self._zero() >= _GRADIENTS_SHARDED:
            text = f"ZeRO stage {self._zero()} of {self.dialect.words} is not modelled"
            self._unpredictable(text, "zero-stage")
        for name, why in left_out("megatron", "own", "refused").items():
            if self.arguments.has(name):
                self._unpredictable(f"--{name}: {why}", name)

    def _samples(self, seq: int | None, cp: int) -> dict[str, Any]:
        """How `--sft` packs samples, by field of `Found`; empty without `--sft`. A problem if the
        caller does not state their lengths."""
        if not self.arguments.has("sft"):
            return {}
        if not self.hints.lengths:
            text = "--sft: the lengths of the packed samples are not stated; give --lengths"
            self._unpredictable(text, "sft")
        if not self.arguments.has(_BY_SAMPLE):
            return {"packing": "pack-varlen"}
        most = self.arguments.number(_MOST)
        if most is not None and seq is not None and most * cp != seq:
            self._unpredictable(
                f"--{_MOST} {most}: {seq // cp} is modelled, {seq} / cp {cp}", _MOST
            )
        return {"packing": "pack-varlen", "balance": "hybrid-cp"}
