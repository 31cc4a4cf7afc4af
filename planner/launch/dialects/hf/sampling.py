"""TRL's trainers that generate samples while they train, GRPO and RLOO: what they need besides a
trainer.

trl 1.16, trl/trainer/grpo_trainer.py: the samples for `steps_per_generation` passes are generated
together, by vLLM in each process or by a server on other GPUs; then they are trained on
`num_iterations` times, with `gradient_accumulation_steps` micro-batches per update.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from planner.job.rl.spec import ReferenceHome
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import Named, is_on, value_of
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Source
from planner.launch.read.found import Found, Problem
from planner.launch.read.rl_found import EngineFound, RlFound
from planner.launch.registry import dialect_toml

_ENOUGH = 2
# More samples or tokens than any step has.
_MOST = 1_000_000
_NAMED = re.compile(r"(^|[_./-])(grpo|rloo)([_./-]|$)")
# A server's command, including continued lines, and its options, with dashes as underscores.
_SERVER = re.compile(r"trl\s+vllm-serve\b(?:[^\n\\]|\\\n|\\)*")
_SERVED = re.compile(
    r"__((?:tensor|data)_parallel_size|gpu_memory_utilization)[\s=]+(\d+(?:\.\d+)?)\b"
)
_REFUSED = re.compile(r"\b(GRPO|RLOO|grpo|rloo)\b")


@cache
def _table(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = dialect_toml("hf", "sampling.toml")[name]
    return found


def sampling_names() -> frozenset[str]:
    """Every setting of these trainers."""
    return frozenset((*_table("names")["names"].split(), *_table("signs")["names"]))


def samples(named: Named, launch: LaunchCommand | None) -> str:
    """`grpo` or `rloo` if the settings or the program use such a trainer; empty otherwise."""
    stated = (value_of(named, name) for name in ("rlhf_type", "rl", "stage"))
    word = next(filter(None, stated), "")
    first = launch.arguments[0].text.value if launch and launch.arguments else ""
    program = f"{launch.name} {first}".split() if launch is not None else []
    if "async" in word.lower():
        return ""
    for text in (word, *program):
        if match := _NAMED.search(text.lower()):
            return match[2]
    signs = sum(name in named for name in _table("signs")["names"])
    return "grpo" if signs >= _ENOUGH else ""


def with_sampling(found: Found, named: Named, source: Source) -> Found:
    """A launch, plus its sampling if its trainer samples."""
    kind = samples(named, source.launch)
    if not kind:
        return found
    kept = [one for one in found.problems if one.rule != "not-predictable" or _other(one.text)]
    reader = _Sampling(named, source, found, kind)
    rl = reader.read()
    problems = (*kept, *reader.problems)
    return replace(found, rl=rl, problems=problems, packing=None, objective="lm")


def _other(text: str) -> bool:
    """Whether the text of a refusal gives another reason than that the trainer samples."""
    return _REFUSED.search(text) is None


class _Sampling:
    def __init__(self, named: Named, source: Source, found: Found, kind: str) -> None:
        self.named, self.source, self.found, self.kind = named, source, found, kind
        self.problems: list[Problem] = []

    def read(self) -> RlFound:
        """Everything that was read."""
        world, each = self._world(), self._whole("num_generations")
        mbs = min(self.found.mbs, _MOST)
        accumulated = self.found.grad_acc or self._whole("gradient_accumulation_steps")
        passes = self._passes(mbs * world, accumulated)
        batch = mbs * world * passes
        self._rules(batch, each)
        separate = self._mode() == "server"
        return RlFound(
            framework="trl",
            algorithm=self._algorithm(),
            prompts=max(1, batch // each),
            samples_per_prompt=each,
            engine=self._engine(separate=separate, world=world, passes=passes),
            minibatches=max(1, passes // accumulated),
            epochs=self._whole("num_iterations"),
            prompt_limit=self._prompt(),
            response_limit=self._whole("max_completion_length"),
            padded=True,
            placement="separate" if separate else "colocated",
            trainer_gpus=world,
            reference=self._reference(),
            old_logprobs=is_on(self.named, "use_vllm") or passes != accumulated,
        )

    def _prompt(self) -> int:
        """Tokens of the longest prompt: as stated (older releases have a setting) or by default; if
        only `vllm_max_model_length` is stated, that minus the longest answer."""
        room = digits(value_of(self.named, "vllm_max_model_length"))
        answer = self._whole("max_completion_length")
        if "max_prompt_length" in self.named or room is None:
            return self._whole("max_prompt_length")
        return max(1, room - answer)

    def _world(self) -> int:
        launch = self.source.launch
        started = launch.world if launch is not None else None
        return started or self.source.hints.gpus or 1

    def _value(self, name: str) -> object:
        own = _table("rloo").get(name) if self.kind == "rloo" else None
        text = value_of(self.named, name)
        return text or (own if own is not None else _table("defaults").get(name))

    def _whole(self, name: str) -> int:
        """A setting as a whole number, stated or by default; at least 1."""
        number = digits(str(self._value(name)))
        return min(max(1, number or 1), _MOST)

    def _number(self, name: str) -> float:
        try:
            return float(str(self._value(name)))
        except ValueError:
            return 0.0

    def _passes(self, samples_of_a_pass: int, accumulated: int) -> int:
        """The number of micro-batches per process whose samples are generated together: as stated,
        or from the generation batch; by default those of one update (`accumulated`)."""
        stated = digits(value_of(self.named, "steps_per_generation"))
        whole = digits(value_of(self.named, "generation_batch_size"))
        if stated is not None:
            if whole is not None:
                self._say("generation_batch_twice", "steps_per_generation")
            return min(max(1, stated), _MOST)
        if whole is None:
            return accumulated
        if whole % samples_of_a_pass:
            near = -(-whole // samples_of_a_pass) * samples_of_a_pass
            facts = {"whole": whole, "samples": samples_of_a_pass, "near": near}
            self._say("generation_batch", "generation_batch_size", **facts)
        return max(1, whole // samples_of_a_pass)

    def _say(self, table: str, name: str, **facts: object) -> None:
        """Add the problems of a table of rules, at the place of the setting `name`. The fact
        `sure`, for rules that depend on the number of processes: `error` if the command states that
        number, else `missing`."""
        launch = self.source.launch
        sure = "error" if launch is not None and launch.world else "missing"
        places = (self.named[name].place,) if name in self.named else ()
        self.problems += said(table, *places, sure=sure, **facts)

    def _rules(self, batch: int, each: int) -> None:
        """Adds the problems that TRL refuses (grpo_config.py, __post_init__)."""
        if each < 2:
            self._say("group", "num_generations")
        elif batch % each:
            nearest = next(one for one in range(each, 0, -1) if batch % one == 0)
            fix = f"num_generations {nearest}" if nearest > 1 else "steps_per_generation"
            self._say("undivided_batch", "num_generations", batch=batch, each=each, nearest=fix)
        if is_on(self.named, "auto_find_batch_size"):
            self._say("fixed_batch", "auto_find_batch_size")

    def _mode(self) -> str:
        stated = value_of(self.named, "vllm_mode")
        if stated:
            return stated
        servers = ("vllm_server_host", "vllm_server_base_url", "vllm_server_port")
        return "server" if any(name in self.named for name in servers) else "colocate"

    def _engine(self, *, separate: bool, world: int, passes: int) -> EngineFound:
        if not is_on(self.named, "use_vllm"):
            self._say("no_vllm", "use_vllm")
        if separate:
            return self._served()
        tp = self._whole("vllm_tensor_parallel_size")
        if world % tp:
            self._say("engine_divides", "vllm_tensor_parallel_size", tp=tp, world=world)
        share = self._number("vllm_gpu_memory_utilization")
        # All samples of an engine's processes at once (trl/trainer/grpo_trainer.py, max_num_seqs).
        at_once = min(self.found.mbs * tp * passes, _MOST)
        return EngineFound("vllm", tp, gpus=world, kv_share=share, sequences=at_once)

    def _served(self) -> EngineFound:
        """The engines of a server that the same script starts (trl/scripts/vllm_serve.py); their
        number is unknown if the server is started elsewhere."""
        texts = (file.text for file in self.source.files.by_path.values())
        started = next(filter(None, map(_SERVER.search, texts)), None)
        if started is None:
            return EngineFound("vllm")
        given = dict(_SERVED.findall(started[0].replace("-", "_")))
        tp, dp = (digits(given.get(f"{one}_parallel_size", "1")) or 1 for one in ("tensor", "data"))
        share = given.get("gpu_memory_utilization")
        return EngineFound("vllm", tp, gpus=tp * dp, kv_share=float(share) if share else None)

    def _reference(self) -> ReferenceHome:
        if self._number("beta") == 0.0:
            return "none"
        return "adapters-off" if self.found.train != "full" else "copied"

    def _algorithm(self) -> str:
        if self.kind == "rloo":
            return "rloo"
        level = value_of(self.named, "importance_sampling_level")
        return "gspo" if level == "sequence" else "grpo"
