"""Reader of MaxText's YAML files and commands.

Source: MaxText 0.2.5, configs/pyconfig.py, configs/types.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import Any

from planner.job.errors import CannotTellError, ModelError
from planner.job.specs import ModelSpec
from planner.launch.dialects.maxtext.mesh import (
    EVERY,
    FSDP,
    OTHERS,
    Sizes,
    degrees_of,
    filled,
    key,
    micro_batch,
    tiles,
)
from planner.launch.dialects.maxtext.model import BLOCKS, keys_of, model_of
from planner.launch.dialects.maxtext.settings import (
    RELEASE,
    Settings,
    config_of,
    default,
    is_known,
    settled,
    shipped_config,
)
from planner.launch.dialects.maxtext.writer import OPTIONS
from planner.launch.languages.text import Text
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Document, DocumentReader, Source, yaml_document
from planner.launch.read.found import Found, Hints, Problem, model_unknown
from planner.launch.read.opened import Opened
from planner.launch.registry import dialect_toml
from planner.launch.sentences import Lookup, holding, said_problems

_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
# For each part of the mesh, the number that an open axis follows from, in words.
_OF = {"ici": "GPUs of a node", "dcn": "nodes"}
_OFFLOADED = ("qkv_proj_offloaded", "minimal_offloaded")


_RULES = dialect_toml("maxtext", "rules.toml")


def read(source: Source) -> Found:
    """The launch of a YAML file, with the command that names it if there is one."""
    return MaxTextReader(source.yaml(), source).found()


def read_command(launch: LaunchCommand, opened: Opened, hints: Hints) -> Found:
    """The launch of a command whose configuration MaxText ships or which is found beside it.
    CannotTellError if it is neither."""
    path = config_of(launch)
    below: Mapping[str, Any] | None = {} if path is None else shipped_config(path)
    file = None if path is None else source_beside(path, launch.folder, opened.files)
    if file is None and below is None:
        raise CannotTellError(
            f"{launch.place}: trains with {path}, which {RELEASE} does not ship; give that file too"
        )
    text, document = Text(""), Document(launch.command.file)
    if file is not None:
        text = file.as_text()
        stated = yaml_document(text, file.path, hints.environment)
        if file.path.endswith("base.yml"):
            # A base.yml of another release, or a changed one: its values replace the defaults.
            below = {name: one.value for name, one in stated.settings.items() if is_known(name)}
        else:
            document = stated
    source = Source(text, document.path, launch, opened.files, hints)
    return MaxTextReader(document, source, below).found()


class MaxTextReader(DocumentReader):
    """Reads a launch from MaxText's settings."""

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
        """The launch that was read."""
        sizes, sure = self._mesh()
        degrees = degrees_of(sizes, self.get(OPTIONS["optimizer-over-data"].key))
        seq = self.hints.seq or self.whole(OPTIONS["seq"].key, 2048)
        batch = self._batch(prod(sizes.values()), degrees)
        shape = None if self.hints.model else self._model(seq)
        self._demands(degrees, shape)
        mode = self._remat()
        self._memory_fraction()
        keys = {"seq": "seq", "mbs": "per-gpu", "grad_acc": "grad_acc", "recompute": "recompute"}
        in_bf16 = self.get("weight_dtype") == "bfloat16"
        optimizer = self._known("opt_type")
        self._said("precision")
        precision, attention = self._known("quantization"), self._known("attention")
        exchange = OPTIONS["cp_comm_type"]
        exchanges = exchange.read(self.get(exchange.key)) or "all_gather"
        self._effects(degrees["pp"])
        return self.gathered(
            is_known,
            {name: OPTIONS[option].key for name, option in keys.items()},
            format="maxtext",
            framework="maxtext",
            variations=("bf16-parameters",) if in_bf16 else (),
            shape=shape,
            model=self.hints.model,
            **degrees,
            etp=degrees["tp"] if shape is not None and shape.moe is not None else None,
            world=prod(sizes.values()) if sure else None,
            one_process_a_node=self.get("hardware") == "gpu",
            seq=seq,
            recompute=self.hints.recompute or mode,
            optimizer=optimizer,
            precision=precision,
            attention=attention,
            schedule="gpipe" if degrees["pp"] > 1 else None,
            cp_comm_type=exchanges if degrees["cp"] > 1 else None,
            **batch,
        )

    def _said(self, table: str, *at: str, **facts: Any) -> None:
        """Add the problems that a table of `rules.toml` finds."""
        names = Lookup(self.get, **facts)
        self.problems += said_problems("maxtext", table, names, self.document, *at)

    # --- the mesh -------------------------------------------------------------------------------

    def _mesh(self) -> tuple[Sizes, bool]:
        """The size of each mesh axis on the number of GPUs that the caller states, and whether
        these sizes are certain: not if an axis is left open (-1) and that number is unknown."""
        gpus, per_node = _machine(self.hints)
        ici = self._axes("ici", per_node)
        dcn = self._axes("dcn", None if gpus is None else gpus // max(1, prod(ici.values())))
        for scope, sizes in (("ici", ici), ("dcn", dcn)):
            for axis in OTHERS:
                if sizes[axis] != 1:
                    self.unpredictable(f"the axis {axis} is not modelled", key(scope, axis))
        if max(ici[FSDP[1]], dcn[FSDP[1]]) > 1:
            self.assumed.append("fsdp_transpose shards as fsdp does (one gather, not two)")
        guessed = any(self.get(key(scope, axis)) == -1 for scope in _OF for axis in EVERY)
        sizes = {axis: ici[axis] * dcn[axis] for axis in EVERY}
        return sizes, gpus is not None or not guessed

    def _axes(self, scope: str, whole: int | None) -> dict[str, int]:
        """Sizes of the axes inside a node (`ici`) or between nodes (`dcn`); an open axis that
        cannot be computed counts as 1."""
        stated = {axis: self._size(key(scope, axis)) for axis in EVERY}
        found = filled(stated, whole)
        if found is None:
            names = [key(scope, axis) for axis, size in stated.items() if size == -1]
            self._said(
                "mesh",
                *names,
                several=len(names) > 1,
                names=" and ".join(names),
                known=prod(size for size in stated.values() if size != -1),
                whole=whole,
                what=_OF[scope],
            )
        return found or {axis: max(1, size) for axis, size in stated.items()}

    def _size(self, name: str) -> int:
        size = int(self.get(name))
        if size >= 1 or size == -1:
            return size
        text = f"{name} {size}: MaxText takes 1 or more, or -1"
        self.problems.append(self.document.wrong(text, name))
        return 1

    # --- batch ----------------------------------------------------------------------------------

    def _batch(self, devices: int, degrees: Mapping[str, int]) -> dict[str, Any]:
        """mbs, gradient accumulation and the global batch."""
        per_gpu, pp = float(self.get(OPTIONS["per-gpu"].key)), degrees["pp"]
        pieces = self._pieces(pp)
        if pp > 1:
            layers, outside = self.get("base_num_decoder_layers"), "pipeline_parallel_layers"
            self._said(
                "pipeline",
                pieces=pieces,
                pp=pp,
                layers=layers,
                each=self.get(OPTIONS["stage-layers"].key) or 1,
                outside=self.get(outside) not in (-1, layers),
            )
        mbs = self.hints.mbs or micro_batch(per_gpu, devices, degrees["dp"], pieces)
        words = f" and {pieces} micro-batches" if pieces > 1 else ""
        self._said(
            "batch", mbs=mbs, per_gpu=per_gpu, devices=devices, dp=degrees["dp"], words=words
        )
        steps = self.hints.grad_acc or self.whole(OPTIONS["grad_acc"].key, 1) * pieces
        acc = None if self.hints.gbs else steps
        return {"mbs": mbs or 1, "gbs": self.hints.gbs, "grad_acc": acc}

    def _pieces(self, pp: int) -> int:
        """The number of micro-batches into which a pipeline cuts a pass: as stated, by default
        `pp`; 1 without a pipeline."""
        stated = int(self.get(OPTIONS["microbatches"].key))
        return 1 if pp == 1 else pp if stated == -1 else max(1, stated)

    # --- the model ------------------------------------------------------------------------------

    def _model(self, seq: int) -> ModelSpec | None:
        """The model that the settings describe. None and a problem for a decoder block or scale
        that is not read, or an impossible shape."""
        block = str(self.get("decoder_block"))
        for name, wrong in (
            ("decoder_block", block not in BLOCKS),
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
        """Report settings that MaxText refuses and those that are not predicted."""
        self._said("hardware")
        for name, what in _RULES["training"].items():
            if self.get(name):
                self.unpredictable(f"{what} is not modelled", name)
        lora = self.document.settings.get("lora.enable_lora")
        all_ranks = degrees["dp"] * degrees["cp"]
        self._said(
            "demands",
            adapters=lora is not None and lora.value is True,
            zero=degrees["zero"],
            hidden=shape and shape.hidden,
            shards=(degrees["shard"] or all_ranks) if degrees["zero"] == 3 else 1,
            tp=degrees["tp"],
        )

    def _remat(self) -> str:
        """The planner's recompute mode that MaxText's rematerialisation policy amounts to. `full`,
        with a problem, for a policy that offloads or that MaxText does not have; `full`, with a
        note, if no mode keeps the same tensors."""
        name, policies, custom = OPTIONS["recompute"].key, _RULES["policies"], _RULES["custom"]
        policy: Any = self.get(name)
        if policy in (None, "", "none"):
            return self._differing("none", "none")
        tensors = sorted({one for groups in custom.values() for group in groups for one in group})
        places = {one: self.get(one) for one in tensors} if policy == "custom" else {}
        if policy in _OFFLOADED or "offload" in places.values():
            self.unpredictable("activations in host memory are not modelled", name)
            return "full"
        stays = {one for one, place in places.items() if place == "device"}
        kept = policies.get(policy)
        if policy == "custom":
            kept = [part for part, groups in custom.items() if any(stays >= {*g} for g in groups)]
        if kept is None:
            known = ", ".join([*policies, *_OFFLOADED, "custom", "none"])
            text = f"{name}: {policy!r}; MaxText has {known}"
            self.problems.append(self.document.wrong(text, name))
            return "full"
        modes = islice(policies.items(), 5)
        mode = next((mode for mode, parts in modes if set(parts) == set(kept)), None)
        if mode is None:
            return self._differing("full", "more")
        experts = self.get("num_experts") > 1 and mode.endswith("mlp")
        return self._differing(mode, "experts") if experts else mode

    def _differing(self, mode: str, why: str) -> str:
        """The mode unchanged; adds a note that its effect differs from the policy's. `why`: the row
        of `remat_effects` with the note's text."""
        setting = self.document.setting(OPTIONS["recompute"].key)
        self.unmodelled += ((setting, _RULES["remat_effects"][why]),)
        return mode

    def _known(self, name: str) -> Any:
        """The planner's word for a setting's value. A value that is not modelled adds a problem and
        counts as the first, usual value of its row in `rules.toml`."""
        value, known = str(self.get(name) or ""), _RULES["values"][name]
        if value not in known:
            self.unpredictable(f"MaxText's {name} {value} is not modelled", name)
        return known.get(value, next(iter(known.values())))

    def _effects(self, pp: int) -> None:
        """Note settings whose effect no prediction includes."""
        stated = _RULES["effects"].items()
        found = [(name, why) for name, why in stated if self.get(name) != default(name)]
        names = Lookup(self.get, costed_tiles=tiles(self._pieces(pp), pp))
        more = holding("maxtext", "more_effects", names, "rules.toml")
        found += [(row["of"], row["why"]) for row in more]
        self.unmodelled += tuple((self.document.setting(name), why) for name, why in found)

    def _memory_fraction(self) -> None:
        """Warn that JAX takes only part of each GPU's memory unless a variable says otherwise."""
        if self.launch is None or _FRACTION in self.launch.command.environment:
            return
        text = (
            f"JAX takes 75 % of each GPU's memory unless {_FRACTION} says more, and the "
            "prediction counts on all of it"
        )
        fix = f"export {_FRACTION}=0.92"
        self.problems.append(Problem("memory-fraction", text, "warning", (self.launch.place,), fix))


def _machine(hints: Hints) -> tuple[int | None, int | None]:
    """(GPUs in total, GPUs per node), from what the caller states; None for each that is
    unknown."""
    gpus, per_node = hints.gpus, hints.gpus_per_node
    if gpus is None and hints.nodes and per_node:
        gpus = hints.nodes * per_node
    return gpus, None if per_node is None else min(per_node, gpus or per_node)
