"""Builds a request for reinforcement learning from the options of `--rl`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.cli.declared import option_rows, parameter
from planner.cli.options import build_request, given
from planner.job.errors import UsageError

if TYPE_CHECKING:
    from planner.job.rl.frameworks import RlFramework
    from planner.job.rl.request import RlRequest

# Options that do not apply to reinforcement learning, with their replacements.
_OF_PRETRAINING = {
    "gbs": "--prompts, --samples-per-prompt and --minibatches",
    "gbs_tokens": "--prompts, --samples-per-prompt and --minibatches",
    "batch_ramp": "--prompts, --samples-per-prompt and --minibatches",
    "packing": "--token-limit",
    "balance": "--token-limit",
    "epochs": "--rl-epochs",
    "sort": "nothing (plans are sorted by step time)",
    "resolution": "nothing (the search always keeps plans that differ by 2 % of the memory)",
    "whole": "nothing (all plans are printed)",
    "workers": "nothing (one cluster is searched)",
    "measured_step_time": "planner tune",
    "measured_tokens_per_s": "planner tune",
    "measured_mfu": "planner tune",
    "measured_memory": "planner tune",
}


def asks_for_rl(options: dict[str, Any]) -> bool:
    """Whether `--rl` is given. Raises UsageError if another RL option is given without it."""
    if options.get("rl") is not None:
        return True
    for spelled, row in option_rows()["rl"].items():
        name = str(parameter(spelled, **row).name)
        if name in options and given(name):
            raise UsageError(f"--{spelled} only goes with reinforcement learning: add --rl grpo")
    return False


def rl_request(options: dict[str, Any], **more: Any) -> RlRequest:
    """The request. Raises UsageError for options that do not apply to reinforcement learning."""
    from planner.job.rl.frameworks import find_rl_framework
    from planner.job.rl.request import RlRequest

    framework = find_rl_framework(options["rl_framework"])
    for name, instead in _OF_PRETRAINING.items():
        if name in options and given(name):
            raise UsageError(
                f"--{name.replace('_', '-')} does not go with --rl: give {instead} instead"
            )
    if options["objective"] != "lm":
        raise UsageError(
            f"--objective {options['objective']} with --rl: reinforcement learning has its own; "
            "leave one of them out"
        )
    for name in ("prompts", "samples_per_prompt"):
        if options[name] is None:
            raise UsageError(
                f"--rl: give --{name.replace('_', '-')}, as --prompts 128 --samples-per-prompt 16"
            )
    for name, advice in _batch_problems(framework):
        if name in options and given(name):
            raise UsageError(f"--{name.replace('_', '-')} with --rl: {advice}")
    trainer = options | {
        "framework": _trainer(options, framework), "gbs_tokens": None, "gbs": None,
        "batch_ramp": None, "packing": None, "balance": None,
    }  # fmt: skip
    read = {"on": True, "off": False}
    return RlRequest(
        trainer=build_request(trainer, **more),
        algorithm=options["rl"],
        framework=framework.name,
        epochs=options["rl_epochs"],
        engine=options["rollout_engine"],
        kv_precision=options["rollout_kv_precision"],
        sequences=options["rollout_sequences"],
        old_logprobs=read.get(options["old_logprobs"]),
        **{
            name: options[name]
            for name in (
                "prompts", "samples_per_prompt", "minibatches", "placement", "staleness", "reward",
                "critic", "reference", "rollout_precision", "kv_share", "turns", "resampling",
                "token_limit",
            )
        },
        rollout_gpus=_one_cluster(options["rollout_gpus"]),
    )  # fmt: skip


def _batch_problems(framework: RlFramework) -> Iterator[tuple[str, str]]:
    """Options that do not apply with this framework, each with advice: they would set the length of
    a row or the micro-batch a second time."""
    lengths = "--lengths says how long samples are"
    if framework.token_batches:
        whole = f"{framework.name} fills micro-batches up to a number of tokens"
        yield "seq", f"{lengths}; give --token-limit for the tokens of a micro-batch"
        yield "mbs", f"{whole}; give --token-limit in its place"
    else:
        whole = f"{framework.name} has a number of samples a micro-batch"
        yield "seq", f"{lengths}; give its answers another max="
        yield "token_limit", f"{whole}, whatever their tokens; give --mbs in its place"


def _one_cluster(texts: tuple[str, ...]) -> str | None:
    """The GPUs for sampling as given; None if not given. Raises UsageError if several are given."""
    if len(texts) > 1:
        raise UsageError(
            f"--rollout-gpus given {len(texts)} times: planner compare takes several; give one here"
        )
    return next(iter(texts), None)


def _trainer(options: dict[str, Any], framework: RlFramework) -> str:
    """The profile of the trainer, found by our name or by the RL framework's name. Raises
    UsageError for an unknown name."""
    from planner.job.frameworks.profile import load_framework

    if not given("framework"):
        return framework.usual_trainer
    name = str(options["framework"])
    profile = framework.trainers.get(name) or load_framework(name).name
    if profile not in framework.trainers.values():
        known = ", ".join(dict.fromkeys(framework.trainers.values()))
        raise UsageError(
            f"--framework {name}: {framework.name} trains with {known}; give one of these"
        )
    return profile
