"""The training objective: next-token prediction, preferences, rewards, or a teacher's logits.

`read_objective` parses texts such as `dpo:reference=copied` and `distill:teacher=70b` into an
`Objective`. `objectives.toml` says what each kind reads forward and backward for one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, cast, get_args

from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.errors import UsageError, unknown_name

ObjectiveKind = Literal[
    "lm", "dpo", "ipo", "kto", "orpo", "simpo", "cpo", "reward", "distill", "policy"
]
Reference = Literal["none", "copied", "adapters-off", "precomputed"]
Logits = Literal["full", "fp32", "chunked"]
KINDS: tuple[ObjectiveKind, ...] = get_args(ObjectiveKind)

_SETTINGS = ("reference", "teacher", "logits")
LOGITS: tuple[Logits, ...] = get_args(Logits)
_HINT = (
    "write lm, dpo, ipo, kto, orpo, simpo, cpo, reward or distill, for example dpo:reference=copied"
)
# Alternative names for the sources of the reference's figures.
_CALLED = {
    "copy": "copied", "model": "copied", "ref-model": "copied", "adapter-off": "adapters-off",
    "adapters": "adapters-off", "disabled": "adapters-off", "off": "adapters-off",
    "precompute": "precomputed", "cached": "precomputed", "free": "none",
}  # fmt: skip


class ObjectiveRules(Named):
    """Work of an objective for one sample; the fields of `objectives.toml`."""

    name: str
    words: str
    source: str
    names: tuple[str, ...] = ()
    rows: int = 1
    policy_rows: int = 0
    references: tuple[Reference, ...] = ()
    reference_rows: int = 0
    scores: bool = False


@cache
def objective_rules() -> Mapping[str, ObjectiveRules]:
    """The rules of each objective by name."""
    tables = shipped_toml("planner.job", "objectives.toml")
    return {name: ObjectiveRules(name=name, **entry) for name, entry in tables.items()}


@dataclass(frozen=True, slots=True)
class Objective:
    """The training objective. The default is next-token prediction.

    `reference`: source of the reference model's log-probabilities: a second copy of the weights on
    the GPUs, the model with its adapters off, or a file computed before. `teacher`: name of the
    model whose logits a student learns. `logits`: whole micro-batch at once, as the framework
    returns them or converted to fp32 by the trainer (LLaMA-Factory), or a chunk of tokens at a time
    (Liger's losses, TRL 1.16). `loss`: the reinforcement-learning framework whose code computes a
    policy's loss. `answers`: the share of all tokens for which logits are computed.
    """

    kind: ObjectiveKind = "lm"
    reference: Reference = "none"
    teacher: str | None = None
    logits: Logits = "full"
    loss: str = ""
    answers: float = 1.0

    @property
    def rules(self) -> ObjectiveRules:
        """Work of the objective for one sample."""
        return objective_rules()[self.kind]

    @property
    def is_plain(self) -> bool:
        """Whether it is next-token prediction, as in pretraining."""
        return self.kind == "lm" and self.logits == "full"

    @property
    def reads_answers(self) -> bool:
        """Whether the loss is over whole answers (preferences, rewards) instead of tokens."""
        return self.kind not in ("lm", "distill", "policy")

    @property
    def words(self) -> str:
        """The objective and its settings in words: `direct preference optimisation
        (dpo:reference=copied)`."""
        return f"{self.rules.words} ({self})"

    def lighter(self) -> tuple[Objective, ...]:
        """Variants of the same training that need less memory: a precomputed reference instead of a
        copy, logits in chunks, and both. Empty for next-token prediction."""
        if self.kind in ("lm", "policy") or self.rules.scores:
            return ()
        chunked = replace(self, logits="chunked")
        earlier = replace(self, reference="precomputed")
        found = (earlier,) if self.reference == "copied" else ()
        if self.logits == "chunked":
            return found
        return (*found, chunked, *(replace(one, logits="chunked") for one in found))

    def __str__(self) -> str:
        """The text that parses to this objective."""
        settings = {
            "reference": "" if self.reference == "none" else self.reference,
            "teacher": self.teacher or "",
            "logits": "" if self.logits == "full" else self.logits,
        }
        said = ",".join(f"{name}={value}" for name, value in settings.items() if value)
        return f"{self.kind}:{said}" if said else self.kind


NEXT_TOKEN = Objective()


def read_objective(text: str, *, adapters: bool = False) -> Objective:
    """Parse `--objective`. `adapters`: whether adapters are trained, which decides the default
    reference. UsageError says what is wrong and the nearest fix."""
    word, _, rest = text.strip().partition(":")
    kind = _kind(word)
    settings = _settings(text, rest)
    objective = _with_reference(text, Objective(kind), settings.get("reference"), adapters)
    objective = _with_logits(text, objective, settings.get("logits"))
    return _with_teacher(text, objective, settings.get("teacher"))


def _kind(word: str) -> ObjectiveKind:
    name = word.strip().lower().replace("_", "-")
    for kind, rules in objective_rules().items():
        if (name == kind or name in rules.names) and kind != "policy":
            return cast(ObjectiveKind, kind)
    if name == "policy":
        raise UsageError(
            f"--objective {word}: a policy is trained on samples that it generates itself; give "
            "--rl grpo"
        )
    known = tuple(kind for kind in KINDS if kind != "policy")
    raise unknown_name("objective --objective", word, known, _HINT)


def _settings(text: str, rest: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        if name.lower() in _SETTINGS and not value:
            raise UsageError(
                f"--objective {text}: {name.lower()} is given no value; give one, or leave it out"
            )
        if name.lower() not in _SETTINGS:
            hint = f"for example dpo:reference=copied; settings: {', '.join(_SETTINGS)}"
            raise unknown_name("setting of --objective", name, _SETTINGS, hint)
        if name.lower() in found:
            raise UsageError(f"--objective {text}: {name.lower()} is given twice; give it once")
        found[name.lower()] = value
    return found


def _with_reference(
    text: str, objective: Objective, given: str | None, adapters: bool
) -> Objective:
    """Set the given reference, or the default one. Raises UsageError."""
    offered = objective.rules.references
    if not offered:
        if given is None or _reference_word(given) == "none":
            return objective
        with_one = [name for name, rules in objective_rules().items() if rules.references]
        raise UsageError(
            f"--objective {text}: {objective.kind} does not use a reference; leave reference= "
            f"out, or give one of {', '.join(with_one)}"
        )
    if given is None:
        return replace(objective, reference="adapters-off" if adapters else offered[0])
    word = _reference_word(given)
    if word == "none":
        raise UsageError(
            f"--objective {text}: {objective.kind} needs a reference; give "
            f"reference={offered[0]}, or simpo or orpo, which have none"
        )
    if word not in offered:
        hint = f"known are {', '.join(offered)}"
        raise unknown_name("place of reference=", given, offered, hint)
    if word == "adapters-off" and not adapters:
        raise UsageError(
            f"--objective {text}: without adapters there is nothing to switch off; give "
            "reference=copied or precomputed, or --train lora"
        )
    return replace(objective, reference=word)


def _reference_word(given: str) -> str:
    word = given.lower().replace("_", "-")
    return _CALLED.get(word, word)


def _with_logits(text: str, objective: Objective, given: str | None) -> Objective:
    """Set whether logits are computed all at once or in chunks. Raises UsageError."""
    if given is None:
        return objective
    if objective.rules.scores:
        raise UsageError(
            f"--objective {text}: {objective.kind} computes no logits; leave logits= out"
        )
    if given.lower() not in LOGITS:
        raise unknown_name("value of logits=", given, LOGITS, f"known are {', '.join(LOGITS)}")
    if objective.kind == "lm" and given.lower() == "fp32":
        raise UsageError(
            f"--objective {text}: the framework decides the type of the logits for cross-entropy; "
            "leave logits= out, or give chunked"
        )
    return replace(objective, logits=cast(Logits, given.lower()))


def _with_teacher(text: str, objective: Objective, given: str | None) -> Objective:
    """Set the teacher, which only distillation has. Raises UsageError."""
    if (objective.kind == "distill") == (given is not None):
        return replace(objective, teacher=given)
    if given is None:
        raise UsageError(
            f"--objective {text}: give the teacher's model, for example distill:teacher=70b"
        )
    raise UsageError(
        f"--objective {text}: {objective.kind} has no teacher; leave teacher= out, or give "
        f"distill:teacher={given}"
    )
