"""Reader of accelerate's YAML configuration, with the arguments of the script it launches.

Keys: accelerate 1.15, commands/config/config_args.py and commands/launch.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from planner.launch.dialects.hf import ACCELERATE, DEEPSPEED, said
from planner.launch.dialects.hf.scripted_reader import ScriptedReader
from planner.launch.read.beside import source_beside
from planner.launch.read.document import Document, Source, below, json_document, unknown_key
from planner.launch.read.found import Found, Problem, Setting, nearest
from planner.launch.read.names import is_known, known_names

TOP_KEYS = known_names("hf", "accelerate")
FSDP_KEYS = known_names("hf", "accelerate-fsdp")
PARALLELISM_KEYS = known_names("hf", "accelerate-parallelism")
_TABLES = {"": TOP_KEYS, "fsdp_config": FSDP_KEYS, "parallelism_config": PARALLELISM_KEYS}
_F, _P = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_"
_STRATEGIES = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2, "1": 3, "2": 2, "3": 0, "4": 3, "5": 2,
}  # fmt: skip
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "no": "fp32"}
# accelerate's name -> DeepSpeed's name.
_DEEPSPEED = {
    "zero_stage": DEEPSPEED["zero"].key,
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "gradient_accumulation_steps": DEEPSPEED["grad_acc"].key,
    "gradient_clipping": "gradient_clipping",
}


_KEYS = {
    "world": "num_processes", "tp": f"{_P}tp_size", "cp": f"{_P}cp_size",
    "zero": ACCELERATE["zero"].key, "shard": f"{_P}dp_replicate_size",
    "recompute": ACCELERATE["recompute"].key,
}  # fmt: skip


class AccelerateReader(ScriptedReader):
    """The launch described by an accelerate file."""

    quoted_numbers = True

    def found(self) -> Found:
        """The launch, with everything that was read from the file, the script's arguments and the
        caller's hints."""
        self.problems += unknown_keys(self.document)
        world = self.world or self.whole("num_processes", 0, 0)
        framework, zero = self._sharding()
        tp, cp = self.whole(f"{_P}tp_size", 1), self.whole(f"{_P}cp_size", 1)
        shard = self._parallelism(self.hints.gpus or world or 1, tp, cp)
        self.demand_model()
        if self.hints.mbs is None:
            self.no_micro_batch()
        if self.hints.gbs is None and self.hints.grad_acc is None:
            self.no_accumulation()
        precision, dtype = self._precision(framework)
        return self.scripted(
            partial(is_known, _TABLES), _KEYS, framework, format="accelerate", tp=tp, cp=cp,
            zero=zero, shard=shard, world=world or None, mbs=self.hints.mbs or 1,
            gbs=self.hints.gbs, grad_acc=None if self.hints.gbs else self.hints.grad_acc or 1,
            recompute=self._recompute(), optimizer=self.script.optimizer or "adamw",
            optimizer_kernel=self.script.kernel,
            optimizer_offload=float(self._on(f"{_F}offload_params")),
            precision=precision, dtype=dtype,
        )  # fmt: skip

    def _on(self, key: str) -> bool:
        return str(self.document.get(key, False)).lower() == "true"

    def _sharding(self) -> tuple[str, int]:
        """The name of the framework profile and the ZeRO stage: those of FSDP 1 or 2 if the file
        chooses FSDP, otherwise plain data parallelism with stage 0. A `distributed_type` that is
        not covered adds a problem."""
        kind = str(self.document.get("distributed_type", "NO") or "NO")  # YAML takes NO for false
        if kind == "FSDP":
            newer = self.whole(f"{_F}version", 1) > 1
            self._wrapping()
            return self._version_2() if newer else self._version_1()
        if kind not in ("MULTI_GPU", "NO"):
            place = self.document.place("distributed_type")
            self.problems += said("accelerate_type", *place, kind=kind)
        return "hf-transformers", 0

    def _version_1(self) -> tuple[str, int]:
        strategy = str(self.document.get(f"{_F}sharding_strategy", "FULL_SHARD")).upper()
        if strategy not in _STRATEGIES:
            text = f"fsdp_sharding_strategy {strategy}: {', '.join(list(_STRATEGIES)[:5])}"
            self.problems.append(self.document.wrong(text, f"{_F}sharding_strategy"))
        return "fsdp1", _STRATEGIES.get(strategy, 3)

    def _version_2(self) -> tuple[str, int]:
        key = ACCELERATE["zero"].key
        value = str(self.document.get(key, True)).lower()
        if value not in ("true", "false"):
            text = f"{key} {value}: version 2 takes true or false"
            self.problems.append(self.document.wrong(text, key, "true"))
        profile = "hf-transformers" if self.script.shards_as_loaded else "hf-fsdp2"
        return profile, 2 if value == "false" else 3

    def _wrapping(self) -> None:
        key = f"{_F}auto_wrap_policy"
        self.document.get(f"{_F}transformer_layer_cls_to_wrap")
        if self.document.get(key) in (None, "NO_WRAP"):
            self.said("accelerate_wrapping")

    def _parallelism(self, world: int, tp: int, cp: int) -> int:
        """The number of ranks over which a parameter is sharded; 0 means all of them. Adds a
        problem for sizes that accelerate's ParallelismConfig refuses."""
        replicate = self.whole(f"{_P}dp_replicate_size", 1)
        stated = f"{_P}dp_shard_size" in self.document.settings
        ranks = self.whole(f"{_P}dp_shard_size", 1)
        if self.script.shards_as_loaded:
            replicate, ranks, stated = _filled(world, replicate, ranks, stated)
        sp = self.whole(f"{_P}sp_size", 1)
        sizes = {"replicate": replicate, "ranks": ranks, "tp": tp, "cp": cp, "sp": sp}
        self.said("accelerate_parallelism", stated=stated, world=world, **sizes)
        strategy = str(self.document.get(f"{_F}sharding_strategy", "")).upper()
        if strategy.startswith("HYBRID"):
            machines = self.whole("num_machines", 1)
            return max(1, world // machines) if machines > 1 else 0
        return ranks if replicate > 1 and stated else 0

    def _recompute(self) -> str:
        if self.hints.recompute:
            return self.hints.recompute
        return "full" if self._on(ACCELERATE["recompute"].key) else "none"

    def _precision(self, framework: str) -> tuple[str, str | None]:
        stated = str(self.document.get("mixed_precision", "no"))
        precision = _PRECISIONS.get(stated)
        if precision is None:
            text = f"mixed_precision {stated}: {', '.join(_PRECISIONS)}"
            self.problems.append(self.document.wrong(text, "mixed_precision"))
            return "bf16", None
        if framework == "hf-transformers":
            half = precision == self.script.half_weights
            return precision, "fp32" if precision == "fp32" else "bf16" if half else "amp"
        if precision == "fp32":
            text = "mixed_precision no: sharded training in fp32 is not modelled"
            self.unpredictable(text, "mixed_precision")
            return "bf16", None
        return precision, None


def _filled(world: int, replicate: int, ranks: int, stated: bool) -> tuple[int, int, bool]:
    """(replicas, ranks that shard, whether the second is known) of axolotl's mesh. If only one size
    is stated, axolotl computes the other from the number of GPUs, and so does this
    (utils/distributed.py, _get_parallel_config_kwargs). (1, 1, False) if the number of GPUs is
    unknown (`world` 1) or both sizes are 1."""
    # The number of GPUs is unknown, or every parameter is on all of them.
    if world == 1 or (ranks == 1 and replicate == 1):
        return 1, 1, False
    if stated and ranks > 1 and replicate == 1 and world % ranks == 0:
        return world // ranks, ranks, True
    if not stated and replicate > 1 and world % replicate == 0:
        return replicate, world // replicate, True
    return replicate, ranks, stated


def deepspeed_in(document: Document, source: Source) -> Document | None:
    """DeepSpeed's settings in an accelerate file: under accelerate's own names, or in a file beside
    it."""
    if str(document.get("distributed_type")) != "DEEPSPEED":
        return None
    table = below(document.settings, "deepspeed_config")
    named = document.get("deepspeed_config.deepspeed_config_file")
    folder = Path(document.path).parent
    file = source_beside(str(named), folder, source.files) if named else None
    if file is not None:
        return json_document(file.as_text(), file.path, source.hints.environment)
    settings: dict[str, Setting] = {}
    for name, key in _DEEPSPEED.items():
        setting = table.get(name)
        if setting is not None and setting.value not in (None, "none", "auto"):
            settings[key] = replace(setting, key=key)
    precision = str(document.get("mixed_precision", "no"))
    if precision in ("bf16", "fp16"):
        key = f"{precision}.enabled"
        settings[key] = replace(document.settings["mixed_precision"], key=key, value=True)
    return Document(document.path, settings)


def unknown_keys(document: Document) -> Iterator[Problem]:
    """Keys that accelerate does not know: it refuses them at the top level and ignores them in
    tables."""
    for key in document.settings:
        if is_known(_TABLES, key):
            continue
        table, _, name = key.partition(".")
        inside = _TABLES.get(table) if name else None
        close = nearest(name or table, inside or TOP_KEYS)
        ignored = inside is not None
        says = "ignores it without a word" if ignored else "has no such key and refuses it"
        severity = "warning" if ignored else "error"
        yield unknown_key(
            document, key, f"accelerate {says}", close, severity=severity, late=ignored
        )
