"""Recompute modes: how one is spelled, what it keeps, and the framework's flags for it.

none, full, selective, ...      modes that the framework's file lists
layernorm,moe_act               selective, by module (`+` does as well as `,`)
full/2                          every 2nd layer
full:uniform=4                  one checkpoint for 4 layers
full:block=4                    the first 4 layers of each block (model chunk) of a stage
budget=0.5                      torch's memory budget: 0 as full, 1 as none
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntFlag
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from hardware.frozen import Frozen
from hardware.settings import Settings, declared
from planner.job.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from planner.job.specs import ModelSpec

# Recomputing layers of each stage, in the one requested mode or in each mode.
Recomputed = Sequence[int] | Mapping[str, Sequence[int]]


class Module(IntFlag):
    """Parts of a layer; a recompute mode is a union of these.

    The names follow Megatron-Core's `--recompute-modules`. FULL is `--recompute-granularity full`
    (torch: checkpointing the whole block). SELECTIVE_OP is torchtitan's per-op policy, which keeps
    attention and every second matmul. BUDGET is torch's memory budget, which drops what
    `planner.predict.ops.checkpoint` chooses. MLP_UP and MLP_ACT are JAX's policies by name:
    recompute gate, up and activation of a dense FFN, or the activation of any FFN, but not the last
    product, whose output backward does not read.
    """

    NOTHING = 0
    CORE_ATTENTION = 1
    LAYERNORM = 2
    ACTIVATION = 4
    MLA_UP_PROJ = 8
    MLP = 16
    MOE = 32
    SHARED_EXPERTS = 64
    FULL = 128
    SELECTIVE_OP = 256
    BUDGET = 512
    MLP_UP = 1024
    MLP_ACT = 2048


Applies = Literal["always", "moe", "mla", "eager-attention", "dense", "shared-experts"]


class RecomputedModule(NamedTuple):
    """A part that can be recomputed by itself. `words` says what a model must have for it."""

    part: Module
    needs: Applies = "always"
    words: str = ""


# Megatron-LM's names (--recompute-modules) -> parts of the op table.
RECOMPUTED: Mapping[str, RecomputedModule] = {
    "core_attn": RecomputedModule(Module.CORE_ATTENTION),
    "moe_act": RecomputedModule(Module.ACTIVATION, "moe", "experts"),
    "layernorm": RecomputedModule(Module.LAYERNORM),
    "mla_up_proj": RecomputedModule(Module.MLA_UP_PROJ, "mla", "multi-head latent attention"),
    "mlp": RecomputedModule(Module.MLP, "dense", "dense feed-forward layers"),
    "moe": RecomputedModule(Module.MOE, "moe", "experts"),
    "shared_experts": RecomputedModule(Module.SHARED_EXPERTS, "shared-experts", "shared experts"),
}


@declared("planner.job", "settings.toml", "recomputing")
class RecomputeForms(Settings):
    """Forms of recomputation that a framework can express besides its listed modes, with their
    flags.

    Texts are templates with `{modules}` or `{layers}`; an empty text means that the form does not
    exist.
    """

    if TYPE_CHECKING:
        modules: tuple[str, ...] = ()
        module_flags: str = ""
        every_flags: str = ""
        uniform_flags: str = ""
        block_flags: str = ""
        budget_flags: str = ""
        stops_early: bool = False

    def flags_of(self, modules: Sequence[str]) -> str:
        """Flags of a mode given by modules, with one checkpoint per layer."""
        if list(modules) == ["FULL"]:
            return self.uniform_flags.format(layers=1)
        spelled = {str(module.part.name): name for name, module in RECOMPUTED.items()}
        names = [spelled[module] for module in modules if module in spelled]
        return self.module_flags.format(modules=" ".join(names)) if names else ""


class RecomputeMode(Frozen):
    """One value of `--recompute`: which modules are recomputed, in which layers.

    `every`: in every n-th layer. `span`: layers of one checkpoint. `block`: layers of each block
    that recompute; 0 for no limit. `budget`: torch's memory budget, 0..1.
    """

    name: str
    modules: tuple[str, ...]
    # Only for models with this feature.
    applies: Applies = "always"
    # Tried by the search by default.
    searched: bool = True
    # The framework's flags; empty if its forms provide them.
    flags: str = ""
    every: Annotated[int, Field(ge=1)] = 1
    span: Annotated[int, Field(ge=1)] = 1
    block: Annotated[int, Field(ge=0)] = 0
    budget: Annotated[float, Field(ge=0.0, le=1.0)] | None = None

    @property
    def mask(self) -> Module:
        """The modules as flags."""
        return reduce(lambda a, b: a | b, (Module[m] for m in self.modules), Module.NOTHING)

    @property
    def share(self) -> float:
        """Share of the layers that recompute."""
        return 1.0 / self.every

    @property
    def some_layers(self) -> bool:
        """Whether the mode can be limited to some layers of a stage: `full`, layer by layer."""
        return Module.FULL in self.mask and self.every == 1 and self.span == 1


def read_mode(
    text: str, framework: str, listed: Sequence[RecomputeMode], forms: RecomputeForms
) -> RecomputeMode:
    """The recompute mode that a text spells. UsageError names the framework's rule."""
    return _Spelling(text, framework, listed, forms).mode()


class _Spelling(NamedTuple):
    """A text to parse, with the modes and forms that a framework has."""

    text: str
    framework: str
    listed: Sequence[RecomputeMode]
    forms: RecomputeForms

    def mode(self) -> RecomputeMode:
        wanted = self.text.strip().lower()
        for mode in self.listed:
            if mode.name == wanted:
                return mode
        if match := re.fullmatch(r"full(/|:uniform=|:block=)(\d+)", wanted):
            return self._layers(match[1].strip(":="), int(match[2]))
        if match := re.fullmatch(r"budget=(.+)", wanted):
            return self._budget(match[1])
        names = [name.strip() for name in re.split(r"[,+]", wanted)]
        if any(name in RECOMPUTED for name in names):
            return self._selective(names)
        known = [*(mode.name for mode in self.listed), *self.forms.modules]
        hint = f"{self.framework} has: {', '.join(self._offered())}"
        raise unknown_name("recompute mode", self.text, known, hint)

    def _offered(self) -> list[str]:
        """Every form of mode that the framework has, in words."""
        modules, forms = self.forms.modules, self.forms
        words = {
            f"any of {'+'.join(modules)}": modules,
            "full/K": forms.every_flags,
            "full:uniform=N": forms.uniform_flags,
            "full:block=N": forms.block_flags,
            "budget=0..1": forms.budget_flags,
        }
        return [mode.name for mode in self.listed] + [word for word, has in words.items() if has]

    def _lacks(self, what: str, rule: str, fix: str = "") -> UsageError:
        nearest = f"; {fix}" if fix else ""
        text = f"--recompute {self.text}: {self.framework} has no {what}{nearest}  [{rule}]"
        return UsageError(text)

    def _layers(self, method: str, layers: int) -> RecomputeMode:
        """Full recomputation of every k-th layer (`/`), of several at once, or of the first of each
        block."""
        forms = self.forms
        name, count, template, example = {
            "/": (f"full/{layers}", "every", forms.every_flags, "full/2"),
            "uniform": (f"full:uniform={layers}", "span", forms.uniform_flags, "uniform=1"),
            "block": ("full", "block", forms.block_flags, "block=1"),
        }[method]
        if not template and method == "/":
            other = f"full:uniform={layers} keeps one checkpoint for {layers} layers"
            fix = other if forms.uniform_flags else ""
            raise self._lacks("checkpointing of every k-th layer", "recompute-every-layer", fix)
        if not template:
            raise self._lacks(f"recompute method {method!r}", f"recompute-{method}")
        if layers < 1:
            needs = f"{method} needs at least 1 layer"
            needs = "full/K needs K of at least 1" if method == "/" else needs
            raise UsageError(f"--recompute {self.text}: {needs}, for example {example}")
        flags = template.format(layers=layers)
        return RecomputeMode.model_validate(
            {"name": name, "modules": ("FULL",), "flags": flags, count: layers}
        )

    def _budget(self, number: str) -> RecomputeMode:
        if not self.forms.budget_flags:
            raise self._lacks("memory budget", "recompute-budget")
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            raise UsageError(
                f"--recompute {self.text}: give a budget between 0 and 1, for example budget=0.5"
            )
        flags = self.forms.budget_flags.format(budget=f"{share:g}")
        name = f"budget={share:g}"
        return RecomputeMode(name=name, modules=("BUDGET",), budget=share, flags=flags)

    def _selective(self, names: Sequence[str]) -> RecomputeMode:
        """Selective recomputation of named modules, in the framework's order."""
        known = self.forms.modules
        for name in names:
            if name not in RECOMPUTED:
                raise unknown_name("module", name, RECOMPUTED, "known: " + ", ".join(RECOMPUTED))
            if name not in known:
                modes = ", ".join(mode.name for mode in self.listed)
                raise UsageError(
                    f"--recompute {self.text}: {self.framework} cannot recompute {name} by itself; "
                    f"it has {', '.join(known) or f'no modules; {modes}'}  [recompute-module]"
                )
        chosen = tuple(name for name in known if name in names)
        return RecomputeMode(
            name="+".join(chosen),
            modules=tuple(str(RECOMPUTED[name].part.name) for name in chosen),
            flags=self.forms.module_flags.format(modules=" ".join(chosen)),
        )


def demand_parts(mode: RecomputeMode, model: ModelSpec) -> None:
    """Raise UsageError if a mode names modules that the model does not have."""
    for name, module in RECOMPUTED.items():
        if module.part in mode.mask and not has_part(module.needs, model):
            raise UsageError(
                f"--recompute {mode.name}: {name} needs a model with {module.words}; {model.name} "
                "has none  [recompute-module-in-model]"
            )


def has_part(need: Applies, model: ModelSpec, *, eager: bool = False) -> bool:
    """Whether a model (and its attention kernel) has the part that a mode applies to."""
    moe = model.moe
    return {
        "always": True,
        "moe": moe is not None,
        "mla": model.mla is not None,
        "dense": any(kind.ffn == "dense" for kind in model.kinds),
        "shared-experts": moe is not None and moe.shared_ffn > 0,
        "eager-attention": eager,
    }[need]
