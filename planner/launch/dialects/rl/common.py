"""The base class of the readers for reinforcement-learning frameworks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from planner.job.bounds import MOST_SEQUENCES
from planner.job.models.catalog import load_model, not_in_catalogue
from planner.job.rl.spec import ReferenceHome
from planner.launch.dialects.hf.arguments import known_model
from planner.launch.dialects.rl.settings import RlSettings, decimal
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import (
    Found,
    Hints,
    Problem,
    Setting,
    model_unknown,
    not_predictable,
)
from planner.launch.read.rl_found import EngineFound, RlFound
from planner.launch.registry import dialect_toml
from planner.launch.sentences import Lookup, holds, said_problems


@cache
def words(table: str) -> Mapping[str, Any]:
    """A table of `words.toml`."""
    found: Any = dialect_toml("rl", "words.toml")
    for name in table.split("."):
        found = found.get(name, {})
    return dict(found)


@cache
def _meanings(table: str) -> Mapping[str, str]:
    return {word: name for name, listed in words(table).items() for word in listed}


_SWITCHES = {"true": True, "false": False}


def _as_number(value: object) -> float:
    """A value of a file as a number; 0 if it is not one."""
    return decimal(value) or 0.0


def _as_whole(value: object) -> int:
    return int(_as_number(value))


# Functions for conditions that no value of a file can make fail.
_OF_RULES = {
    "int": _as_whole, "float": _as_number, "some": lambda value: max(1, _as_whole(value)),
    "max": max, "min": min,
}  # fmt: skip


class RlReader(ABC):
    """Reads a launch from its settings. `name`: the framework, which is also the name of its format
    and tables (`planner.job.rl.frameworks`)."""

    name = ""

    def __init__(
        self, settings: RlSettings, path: str, launch: LaunchCommand | None, hints: Hints
    ) -> None:
        self.settings, self.path, self.launch, self.hints = settings, path, launch, hints
        self.get, self.text, self.flag = settings.get, settings.text, settings.flag
        self.whole, self.share, self.number = settings.whole, settings.share, settings.number
        # For each field of `Found`, the settings that give problems their places.
        self.places: Mapping[str, Sequence[str]] = words(f"places.{self.name}")
        self.assumed: list[str] = []
        self.problems: list[Problem] = []
        self.unmodelled: list[tuple[Setting, str]] = []

    # Defined by each framework's reader.

    @abstractmethod
    def trainer(self) -> Mapping[str, Any]:
        """Settings of the trainer, by field of `Found`."""

    @abstractmethod
    def rl(self, trainer: Mapping[str, Any]) -> RlFound | None:
        """Engine, batch and algorithm; None if too little is known."""

    @property
    def is_megatron(self) -> bool:
        """Whether the trainer is Megatron: True here; readers of frameworks with several trainers
        override it."""
        return True

    def positions(self) -> int | None:
        """The number of positions that the settings give to the model in place of its own; None if
        they give none."""
        return None

    # Common to all readers.

    def found(self) -> Found:
        """The launch that was read."""
        model = self.hints.model or self.known(self.named_model, *self.places["model"])
        self.note_unmodelled()
        trainer = {"model": model, **self.trainer(), **self._of_other_positions(model)}
        rl = self.rl(trainer)
        if self._sees(trainer):
            self.left_out("images of prompts are not counted", *self.places["model"])
        if rl is not None:
            self.problems += self._rules(trainer, rl)
        where = {name: self.settings.stated(*keys) for name, keys in self.places.items()}
        return Found(
            format=self.name,
            main_file=self.path,
            rl=rl,
            where={name: setting for name, setting in where.items() if setting is not None},
            settings=tuple(self.settings.settings.values()),
            unused=tuple(self.settings.rest()),
            unmodelled=tuple(self.unmodelled),
            problems=tuple(dict.fromkeys((*self.settings.problems, *self.problems))),
            assumed=tuple(self.assumed),
            one_process_a_node=True,
            **trainer,
        )

    @property
    def named_model(self) -> str:
        """The model's name, as the files state it."""
        return self.text(*self.places["model"])

    def _of_other_positions(self, model: str | None) -> dict[str, Any]:
        """The field `shape` with a model that has more positions than the catalogue's, if the
        settings or the longest sample need them; otherwise empty."""
        number, longest = self.positions(), self.longest_stated()
        if model is None:
            return {}
        spec = load_model(model).spec
        if number is None and longest is not None and not self.hints.model:
            # Another release of a model may have more positions than the one in the catalogue.
            number = None if _is_release(self.named_model, spec.name) else longest
        if number is None or number <= spec.max_positions:
            return {}
        self.assumed.append(f"{number:,} positions of {spec.name}, as the files ask for")
        return {"shape": spec.model_copy(update={"max_positions": number}), "model": None}

    def longest_stated(self) -> int | None:
        """Tokens of the longest sample that the settings allow; None if they state no limit."""
        numbers = [self.whole(key) for key in words("longest").get(self.name, ())]
        known = [number for number in numbers if number is not None]
        return sum(known) if known and len(known) == len(numbers) else None

    def known(self, named: str, *keys: str) -> str | None:
        """The catalogue's name for a model; None and a problem if the catalogue does not have
        it."""
        model = known_model(named) if named else None
        if model is None and not any(p.rule == "unresolved" for p in self._of(keys)):
            text = not_in_catalogue(named) if named else "the files do not name the model"
            fix = "--model CONFIG.json or a known name"
            self.problems.append(model_unknown(text, self.settings.place(*keys), fix))
        return model

    def _of(self, keys: tuple[str, ...]) -> Iterator[Problem]:
        places = self.settings.place(*keys)
        return (one for one in self.settings.problems if set(one.places) & set(places))

    def algorithm(self, key: str, usual: str, filters: str = "") -> str:
        """The algorithm, from the setting `key`, which names the estimator of advantages; `usual`
        if it is not stated. An unknown one is reported as not modelled and counts as GRPO.
        `filters`: the switch that drops prompts whose answers all score the same, which makes GRPO
        `dapo`."""
        word = self.text(key) or usual
        known = _meanings("algorithms").get(word.strip().lower())
        if known is None:
            self.unpredictable(f"the algorithm {word} is not modelled", key)
        return "dapo" if known in ("grpo", None) and self._filters(filters) else known or "grpo"

    def _filters(self, switch: str) -> bool:
        return bool(switch) and self.flag(switch)

    def adapters(self, *keys: str) -> str:
        """The `--train` value: LoRA on all linear layers with the first rank that the settings with
        these keys state and that is not 0; `full` if there is none."""
        ranks = (self.whole(key, least=0) for key in keys)
        rank = next(filter(None, ranks), None)
        return f"lora:rank={rank},targets=all-linear" if rank else "full"

    def reference(
        self, trainer: Mapping[str, Any], compares: bool, offloads: Sequence[str]
    ) -> ReferenceHome:
        """The place of the reference model's weights: `none` if nothing is compared with it,
        `adapters-off` (the policy without its adapters), `host`, or `copied` (on the GPUs).
        `offloads`: switches that move the weights to the host."""
        if not compares:
            return "none"
        if trainer["train"] != "full":
            return "adapters-off"
        return "host" if self.flag(*offloads) else "copied"

    def product(self, *keys: str) -> int | None:
        """The product of the settings with these keys; None if the value of one is unknown."""
        numbers = [self.whole(key) for key in keys]
        return None if None in numbers else prod(filter(None, numbers))

    def degrees(self, table: str) -> dict[str, int | None]:
        """The trainer's degrees, read from the settings that a table of `words.toml` lists."""
        return {name: self.whole(*keys) for name, keys in words(f"degrees.{table}").items()}

    def engine_set(self, name: str, table: str = "", **more: Any) -> EngineFound:
        """The engine that the settings describe. `more`: fields that no single setting states."""
        found: dict[str, Any] = {}
        for field, keys in words(f"engine.{table or self.name}").items():
            match field:
                case "kv_share":
                    found[field] = self.share(*keys)
                case "sequences" | "chunk":
                    found[field] = self.whole(*keys)
                case "kv":
                    found[field] = self.precision(*keys)
                case "eager":
                    found["graphs"] = not self.flag(*keys)
                case _:
                    found[field] = self.whole(*keys) or 1
        return EngineFound(name, **found | more)

    def precision(self, *keys: str) -> str:
        """The engine's number format for its weights or KV cache; an unknown one is reported as not
        modelled and counts as bf16."""
        word = self.text(*keys)
        known = _meanings("formats").get(word.strip().lower())
        if known is None:
            self.unpredictable(f"the engine's format {word} is not modelled", *keys)
        return known or "bf16"

    def engine_named(self, word: str, known: tuple[str, ...], *keys: str) -> str:
        """The engine's name; one without a cost model is reported and replaced by the first known
        one."""
        if word not in known:
            self.unpredictable(f"the engine {word or 'that is not named'} is not modelled", *keys)
            return known[0]
        return word

    def unpredictable(self, text: str, *keys: str) -> None:
        """Add a problem: the settings ask for a feature that the cost model does not have."""
        self.problems.append(not_predictable(text, *self.settings.place(*keys)))

    def left_out(self, why: str, *keys: str) -> None:
        """Note a setting whose effect the prediction leaves out."""
        setting = self.settings.stated(*keys)
        self.unmodelled.append((setting or Setting(keys[0], None, self.path), why))

    def note_unmodelled(self) -> None:
        """Note the settings that the prediction leaves out (`unmodelled.toml`)."""

        def given(key: str) -> bool:
            return self.settings.stated(key) is not None and self.get(key) is not None

        names = {"flag": self.flag, "given": given, "whole": self.whole}
        for row in dialect_toml("rl", "unmodelled.toml")[self.name]:
            if holds(row["when"], names | {"megatron": self.is_megatron}):
                noted = self.unpredictable if "text" in row else self.left_out
                noted(row.get("text", row.get("effect")), *row["at"])

    def _sees(self, trainer: Mapping[str, Any]) -> bool:
        """Whether the policy is a vision-language model."""
        model = trainer.get("model")
        spec = trainer.get("shape") or (load_model(model).spec if model else None)
        return spec is not None and spec.vision is not None

    def _rules(self, trainer: Mapping[str, Any], rl: RlFound) -> Iterator[Problem]:
        """Problems: rules of the framework that the settings break (`rules.toml`)."""
        stated = self.settings.settings.keys()
        facts = _facts(trainer, rl) | {"setting": self._plain, "stated": stated}
        names = Lookup(self._value, **_OF_RULES, **facts)
        names.update(trainer)
        for problem in said_problems("rl", self.name, names, self.settings):
            is_error = problem.severity == "error"
            if is_error and not self.is_own_program:
                # Another program around the framework may check differently and set missing values.
                yield replace(problem, severity="warning")
            else:
                # Values that only the machine's variables decide may change the outcome.
                unsure = is_error and self.settings.problems
                yield replace(problem, severity="missing") if unsure else problem

    @property
    def is_own_program(self) -> bool:
        """Whether the framework's own program is started, or one of its files is read without a
        command."""
        own = words("own_program").get(self.name, "")
        return self.launch is None or re.search(own, self.launch.program) is not None

    def _value(self, name: str) -> Any:
        """A setting by its name with `__` in place of dots: `data__train_batch_size`."""
        return self._plain(name.replace("__", "."))

    def _plain(self, key: str) -> Any:
        """The value of a setting; switches become True or False."""
        value = self.get(key)
        return _SWITCHES.get(value.lower(), value) if isinstance(value, str) else value


def _facts(trainer: Mapping[str, Any], rl: RlFound) -> dict[str, Any]:
    """Names that rules may use."""
    engine: EngineFound = rl.engine
    tp, pp, cp = (trainer.get(name, 1) for name in ("tp", "pp", "cp"))
    gpus = rl.trainer_gpus
    return {
        "rl": rl,
        "engine": engine,
        "gpus": gpus or 0,
        "replica": tp * pp * cp,
        "dp_ranks": (gpus or 0) // (tp * pp * cp),
        "trainer_pp": pp,
        "tp": tp,
        "cp": cp,
        "positions": _positions(trainer),
        "colocated": rl.placement == "colocated",
        "longest": rl.longest or 0,
        "divisor": _divisor,
    }


def _is_release(named: str, known: str) -> bool:
    """Whether a model's name is the catalogue's, apart from suffixes such as `Instruct`."""
    last = re.sub(
        r"[-_](instruct|base|chat|it|hf)$", "", named.rstrip("/").rpartition("/")[2].lower()
    )
    plain = (re.sub(r"[^a-z0-9]", "", one.lower()) for one in (last, known))
    return next(plain) == next(plain)


def _positions(trainer: Mapping[str, Any]) -> int:
    """Positions of the policy; if the model is unknown, more than any sample has."""
    if (shape := trainer.get("shape")) is not None:
        return int(shape.max_positions)
    model = trainer.get("model")
    return MOST_SEQUENCES if model is None else load_model(str(model)).spec.max_positions


def _divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is not above `most`; at least 1."""
    return next((one for one in range(max(1, min(most, number)), 0, -1) if number % one == 0), 1)
