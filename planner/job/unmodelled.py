"""Kinds of training that are not modelled: refused by name, with the nearest help."""

from __future__ import annotations

import re
from typing import NamedTuple

from planner.job.errors import UsageError


class _Kind(NamedTuple):
    """`names`: how options, frameworks and fields of files call it, without dashes."""

    what: str
    names: re.Pattern[str]
    help: str


_SERVER = "`planner memory --inference` sizes the weights that are only read"
_KINDS = (
    _Kind(
        "training of a part of the weights (LoRA, QLoRA, adapters, frozen layers)",
        re.compile(
            r"(q|re|x)?lora(_\w+)?|(use_)?(peft|dora|adapter)(_\w+)?|"
            r"(freeze|frozen|trainable)(_\w+)?|prefix_tuning|prompt_tuning|ia3|unsloth|"
            r"load_in_[48]bit|nf4|bnb(_\w+)?"
        ),
        f"{_SERVER}; `planner search --optimizer-offload search` finds how to train them all",
    ),
    _Kind(
        "preference training (DPO, KTO, ORPO, reward models)",
        re.compile(r"(dpo|ipo|kto|orpo|simpo|cpo|trl|nemo_aligner|reward_model)(_\w+)?"),
        f"plan the policy as full training with `planner search`; {_SERVER}, as the reference does",
    ),
    _Kind(
        "masked language modelling",
        re.compile(r"(mlm|masked_lm)(_\w+)?"),
        "plan a decoder of that size with `planner search`",
    ),
    _Kind(
        "reinforcement learning (PPO, GRPO, RLHF)",
        re.compile(r"(ppo|grpo|dapo|rloo|rlhf|rl|verl|openrlhf|nemo_rl|slime|skyrl)(_\w+)?"),
        "plan the trainer with `planner search`, what samples with `planner memory --inference`",
    ),
)  # fmt: skip


def refuse_unmodelled(name: str, where: str) -> None:
    """UsageError if `name` asks for a kind of training that is not modelled. `where`: what holds
    the name, as `--lora-rank` or `framework 'trl'`."""
    wanted = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    for kind in _KINDS:
        if kind.names.fullmatch(wanted):
            raise UsageError(
                f"{where}: {kind.what} is not modelled. Nearest help: {kind.help}. Only "
                "training of all weights by next-token prediction is modelled"
            )


def modules_not_modelled(model: str, left_out: tuple[str, ...]) -> str:
    """Why a model that has modules beside its language model is not predicted, with what helps."""
    return (
        f"{model} has {', '.join(left_out)} beside its language model: only language models are "
        "modelled. Nearest help: its text_config alone, as a config.json of its own, plans the "
        "training of the language model"
    )
