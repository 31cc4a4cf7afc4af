"""The training objective that a program of Hugging Face is given, and where the figures of a
reference model come from.

TRL (1.10, trl/trainer/dpo_trainer.py and kto_trainer.py): with adapters the reference is the model
with its adapters off, unless one is given; without adapters it is a copy;
`precompute_ref_log_probs` evaluates it before training. LLaMA-Factory (ff6d4d12e,
src/llamafactory/train/trainer_utils.py, create_ref_model), axolotl (067b021c8, core/builders/rl.py)
and ms-swift (3602360a5, swift/arguments/rlhf_args.py) do the same. ORPO, SimPO and CPO have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import Named, is_on, place_of, value_of
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Problem, Setting
from planner.launch.registry import dialect_toml

NEXT_TOKEN = "lm"


@dataclass(frozen=True)
class Minimised:
    """The objective: `text` as for `--objective`; `problems` as in `Found`."""

    text: str = NEXT_TOKEN
    problems: tuple[Problem, ...] = ()


@cache
def _table(name: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = dialect_toml("hf", "objectives.toml")[name]
    return table


@cache
def objective_names() -> frozenset[str]:
    """Every setting that is read here."""
    return frozenset(name for names in _table("names").values() for name in names)


def compared() -> tuple[str, ...]:
    """Objectives that need a reference model."""
    return tuple(_table("compares")["names"].split())


def minimised(named: Named, launch: LaunchCommand | None, adapters: bool) -> Minimised:
    """The objective, from the settings, else from the subcommand or the name of the program."""
    where, word = _stated(named)
    kind = next((kind for kind, words in _table("kinds").items() if word in words), None)
    if word in _table("refused") or kind is None:
        what = _table("refused").get(word, f"{where.key}: {word}")
        return Minimised(NEXT_TOKEN, said("other_objective", *_places(where), what=what))
    if is_on(named, "reward_model") and value_of(named, "reward_model") == "true":
        kind = "reward"  # axolotl's switch; elsewhere it names a model that rewards
    if not word and kind == NEXT_TOKEN and launch is not None:
        kind = _by_program(launch)
    return Minimised(_with_reference(named, _by_loss(named, kind), adapters))


def _stated(named: Named) -> tuple[Setting, str]:
    for name in _table("names")["kinds"]:
        if word := value_of(named, name):
            return place_of(named, name), word
    return Setting("", ""), ""


def _by_program(launch: LaunchCommand) -> str:
    """`trl dpo`, `swift rlhf`, `train_dpo.py`."""
    first = launch.arguments[0].text.value if launch.arguments else ""
    if first in _table("kinds") or first == "reward":
        return first
    if first == "rlhf":
        return "dpo"  # ms-swift's own
    for kind, words in _table("programs").items():
        if re.search(rf"(^|[_.-])({words})([_.-]|$)", launch.name.lower()):
            return str(kind)
    return NEXT_TOKEN


def _by_loss(named: Named, kind: str) -> str:
    """DPO and CPO have variants, which their loss tells apart."""
    if kind not in ("dpo", "cpo"):
        return kind
    stated = (value_of(named, name) for name in _table("names")["losses"])
    loss = next(filter(None, stated), "").strip("[]'\" ")
    return next((one for one, words in _table("losses").items() if loss in words), kind)


def _with_reference(named: Named, kind: str, adapters: bool) -> str:
    if kind not in compared():
        return kind
    names = _table("names")
    if any(is_on(named, name) for name in names["precomputed"]):
        return f"{kind}:reference=precomputed"
    if any(is_on(named, name) for name in names["references"]) or not adapters:
        return f"{kind}:reference=copied"
    return f"{kind}:reference=adapters-off"


def _places(where: Setting) -> Iterator[str]:
    if where.key:
        yield where.place
