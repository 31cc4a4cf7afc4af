"""A request for reinforcement learning in the user's words, and its job."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hardware.frozen import Named
from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks.losses import with_objective
from planner.job.frameworks.profile import FrameworkProfile, with_tables
from planner.job.job import Job
from planner.job.length_text import read_prompts
from planner.job.models.catalog import load_model
from planner.job.objective import Objective
from planner.job.pool import SeveralTypes, parse_one_type
from planner.job.request import Request
from planner.job.rl.checks import demand_positions, demand_rl
from planner.job.rl.engines import engine_generations
from planner.job.rl.frameworks import RlFramework, find_rl_framework
from planner.job.rl.job import RlJob
from planner.job.rl.spec import (
    PLACEMENTS,
    REFERENCE_HOMES,
    Algorithm,
    EngineName,
    EngineSetting,
    Placement,
    ReferenceHome,
    Reward,
    Rollout,
    algorithms,
)
from planner.job.samples import Lengths
from planner.job.specs import ModelSpec

if TYPE_CHECKING:
    from constraints.axes import ContextKind

# Numbers of updates of lag that a search tries.
SEARCHED_STALENESS = (0, 1, 2, 4)
# Default number of prompts that dynamic sampling generates per trained prompt. About a third of the
# prompts are discarded early in training, and half later (arXiv 2503.14476, figure 3b).
USUAL_RESAMPLING = 1.5
# Most seconds for judging the samples of a step: a day.
MOST_REWARD_S = 86_400.0


class RlRequest(Named):
    """The options of `--rl`, and in `trainer` all others, which describe the trainer.

    `trainer`: its `lengths` hold prompts and answers, its `gpus` all GPUs, and its batch is one
    mini-batch. `algorithm`: such as `grpo`. `minibatches`: optimizer steps over the samples of a
    step, repeated for each of `epochs`. `placement`, `staleness`: a value or `search`. `reward`:
    `rule`, seconds per step, or a model. `critic`: a model; None for the policy's own, in
    algorithms that have one. `reference`: where it is stored, or `none`. `turns`: `4x2.5` means 4
    answers per sample with 2.5 seconds of a tool between them. `token_limit`: tokens of a
    micro-batch. `rollout_gpus`: how many of the GPUs sample, such as `16`, or separate GPUs, such
    as `32xL40S`.
    """

    trainer: Request
    algorithm: str
    prompts: Annotated[int, Field(gt=0)]
    samples_per_prompt: Annotated[int, Field(gt=0)]
    framework: str = "verl"
    minibatches: Annotated[int, Field(gt=0)] = 1
    epochs: Annotated[int, Field(gt=0)] = 1
    placement: str = "search"
    staleness: str = "0"
    reward: str = "rule"
    critic: str | None = None
    reference: str | None = None
    engine: str | None = None
    rollout_precision: str = "bf16"
    kv_precision: str = "bf16"
    kv_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    sequences: Annotated[int, Field(gt=0)] | None = None
    turns: str | None = None
    resampling: Annotated[float, Field(ge=1)] | None = None
    token_limit: Annotated[int, Field(gt=0)] | None = None
    rollout_gpus: str | None = None
    old_logprobs: bool | None = None

    def resolve(self) -> RlJob:
        """The job with every name looked up. Raises UsageError."""
        framework = find_rl_framework(self.framework)
        algorithm = find_algorithm(self.algorithm)
        rollout = self._rollout(algorithm)
        # Checked before the trainer is built, whose own message on long samples names another
        # option.
        demand_positions(rollout, load_model(self.trainer.model).spec)
        old_logprobs = self._old_logprobs(framework, algorithm)
        engine = self._engine(framework, old_logprobs)
        job = RlJob(
            trainer=self._trainer(framework, rollout),
            algorithm=algorithm,
            rollout=rollout,
            framework=framework,
            engine=engine,
            minibatches=self.minibatches,
            epochs=self.epochs,
            reference=self._reference(framework, algorithm),
            old_logprobs=old_logprobs,
            reward=read_reward(self.reward),
            placements=_placements(self.placement, framework, engine.name),
            staleness=_staleness(self.staleness, framework),
            partial_rollouts=framework.partial_rollouts,
        )
        job = replace(job, critic=self._critic(algorithm, job.policy), **self._samplers(job))
        demand_rl(job)
        return job

    def _samplers(self, job: RlJob) -> dict[str, Any]:
        """The job's fields for the GPUs that sample, if the request names any. Raises
        UsageError."""
        text = self.rollout_gpus
        if isinstance(self.trainer.gpu_words, SeveralTypes):
            first, *others = (self.trainer.gpus or "").split("+")
            raise UsageError(
                f"--gpus {self.trainer.gpus}: only one type can train; give --gpus {first} "
                f"--rollout-gpus {others[0]} for GPUs of another type that sample"
            )
        if text is None:
            return {}
        if "separate" not in job.placements:
            raise UsageError(
                f"--rollout-gpus {text} with --placement colocated: engine and trainer share all "
                "GPUs; leave --rollout-gpus out, or give --placement separate"
            )
        found: dict[str, Any] = {"placements": ("separate",)}
        if not text.isdecimal():
            return found | {"engine_cluster": parse_one_type(text)}
        given, total = int(text), job.trainer.cluster.num_gpus
        if not 0 < given < total:
            raise UsageError(
                f"--rollout-gpus {text}: the cluster has {total} GPUs, some of which train; give "
                f"1 to {total - 1}, or separate GPUs such as 32xL40S"
            )
        return found | {"engine_gpus": given}

    @property
    def batches_by_tokens(self) -> bool:
        """Whether a micro-batch holds samples up to a number of tokens."""
        return find_rl_framework(self.framework).token_batches

    @cached_property
    def lengths(self) -> tuple[Lengths, Lengths]:
        """Lengths of prompts and of answers. Raises UsageError."""
        if self.trainer.lengths is None:
            raise UsageError(
                "--rl: a step depends on the lengths of prompts and answers; give them, for "
                "example --lengths "
                "prompt=512..1024,response=lognormal:median=2500,p95=9000,max=16384"
            )
        prompt, response = read_prompts(self.trainer.lengths)
        room = load_model(self.trainer.model).spec.max_positions - prompt.longest
        # By default an answer ends with the model's positions.
        if response.open_ended and 0 < room < response.longest:
            response = response.cut(room)
        return prompt, response

    def _rollout(self, algorithm: Algorithm) -> Rollout:
        prompt, response = self.lengths
        turns, tool_s = read_turns(self.turns)
        usual = USUAL_RESAMPLING if algorithm.resamples else 1.0
        batches = usual if self.resampling is None else self.resampling
        return Rollout(
            self.prompts, self.samples_per_prompt, prompt, response, turns, tool_s, batches
        )

    def _trainer(self, framework: RlFramework, rollout: Rollout) -> Job:
        """The update over one mini-batch, on all GPUs."""
        packing = "pack-varlen" if framework.token_batches else "longest"
        tokens = max(1, round(rollout.tokens / self.minibatches))
        changed: dict[str, Any] = {"packing": self.trainer.packing or packing}
        if changed["packing"] == "pack-varlen":
            changed["seq"] = self.token_limit or usual_token_limit(rollout)
            # A mini-batch may have fewer tokens than a micro-batch has room for.
            tokens = max(tokens, changed["seq"])
        elif self.trainer.packing is not None:
            changed["seq"] = self.trainer.seq or rollout.longest
        changed["gbs_tokens"] = self.trainer.gbs_tokens or tokens
        changed["without"] = self._without(framework)
        job = as_trainer(self.trainer.model_copy(update=changed).resolve(), framework, rollout)
        asked = self.trainer.cp_comm_type
        if asked is not None and asked not in job.context_kinds:
            able = ", ".join(job.framework.parallelism.context_kinds)
            raise UsageError(
                f"--cp-comm-type {asked}: {framework.name} runs {job.framework.name} with {able}; "
                "leave it out"
            )
        return job

    def _without(self, framework: RlFramework) -> tuple[str, ...]:
        """The techniques to avoid: those that the user avoids, and default techniques of the
        trainer that the framework lacks unless the user requested them."""
        given = (*self.trainer.use, *self.trainer.without)
        offered = (one.name for one in self.trainer.find_framework().techniques)
        left = (name for name in offered if name in framework.without and name not in given)
        return (*self.trainer.without, *left)

    def _engine(self, framework: RlFramework, old_logprobs: bool) -> EngineSetting:
        name = self.engine or framework.engines[0]
        generation = engine_generations().get(name)
        if generation is None or generation.engine not in framework.engines:
            known = [
                one.name for one in engine_generations().values() if one.engine in framework.engines
            ]
            raise unknown_name(
                "--rollout-engine", name, known, f"{framework.name} samples with {', '.join(known)}"
            )
        return EngineSetting(
            generation.engine,
            self.rollout_precision,
            self.kv_precision,
            self.kv_share,
            self.sequences or framework.sequences,
            framework.chunk,
            logprobs=framework.engine_logprobs or not old_logprobs,
            generation=name,
        )

    def _reference(self, framework: RlFramework, algorithm: Algorithm) -> ReferenceHome:
        """Where the reference is stored: as asked, else the framework's default. Raises
        UsageError."""
        if self.reference is None and not algorithm.reference:
            return "none"
        homes = framework.references
        if self.reference in (None, "yes", "on"):
            usual: ReferenceHome = next((home for home in homes if home != "none"), "none")
            return "adapters-off" if self._adapters and "adapters-off" in homes else usual
        word = "none" if self.reference in ("no", "off") else self.reference
        if word == "adapters-off" and not self._adapters:
            raise UsageError(
                "--reference adapters-off: the policy has no adapters to switch off; give --train "
                "lora:rank=16, or --reference copied"
            )
        for home in REFERENCE_HOMES:
            if home == word and home in (*homes, "none"):
                return home
        raise unknown_name(
            "--reference", self.reference or "", homes, f"{framework.name} has {', '.join(homes)}"
        )

    @property
    def _adapters(self) -> bool:
        return self.trainer.train != "full"

    def _old_logprobs(self, framework: RlFramework, algorithm: Algorithm) -> bool:
        usual = framework.old_logprobs and algorithm.old_logprobs
        return usual if self.old_logprobs is None else self.old_logprobs

    def _critic(self, algorithm: Algorithm, policy: ModelSpec) -> ModelSpec | None:
        if not algorithm.critic:
            if self.critic is not None:
                raise UsageError(
                    f"--critic {self.critic}: {algorithm.name} has no critic; leave --critic out, "
                    "or give --rl ppo"
                )
            return None
        if self.critic is None:
            return policy.with_scores()
        return load_model(self.critic).spec.with_scores()


def as_trainer(job: Job, framework: RlFramework, rollout: Rollout) -> Job:
    """A job as a reinforcement-learning framework trains it: with a policy loss and the framework's
    settings."""
    answers = rollout.response.mean / (rollout.prompt.mean + rollout.response.mean)
    share = answers if framework.answers_alone else 1.0
    objective = Objective("policy", logits=job.objective.logits, loss=framework.name, answers=share)
    profile = job.framework
    if settings := framework.settings.get(profile.name):
        profile = with_tables(profile, settings)
        told = framework.assumes.get(profile.name, profile.assumptions)
        profile = profile.model_copy(update={"assumptions": told})
        if "context_kinds" in settings.get("parallelism", {}):
            job = replace(job, context_kinds=_exchanges(job, profile))
    return replace(job, framework=with_objective(profile, objective), objective=objective)


def _exchanges(job: Job, profile: FrameworkProfile) -> tuple[ContextKind, ...]:
    """The exchanges of context parallelism that the framework runs, of those that suit the job."""
    run = profile.parallelism.context_kinds
    if not job.framework.parallelism.context:
        return run
    return tuple(kind for kind in job.context_kinds if kind in run)


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of that name. UsageError lists the known ones."""
    plain = name.strip().lower()
    for known, algorithm in algorithms().items():
        if plain == known or plain in algorithm.names:
            return algorithm
    raise unknown_name("--rl", name, algorithms(), f"known are {', '.join(algorithms())}")


def read_turns(text: str | None) -> tuple[int, float]:
    """Parse `4x2.5`: (answers per sample, seconds of a tool between two answers). Raises
    UsageError."""
    if text is None:
        return 1, 0.0
    match = re.fullmatch(r"\s*(\d{1,4})\s*x\s*(\d{1,6}(?:\.\d{1,6})?)\s*s?\s*", text)
    if match is None or int(match[1]) < 1:
        raise UsageError(
            f"--turns {text!r}: write the answers per sample, x, and the seconds of a tool "
            "between two answers, for example 4x2.5"
        )
    return int(match[1]), float(match[2])


def read_reward(text: str) -> Reward:
    """Parse `rule`, seconds per step, or the name of a model that reads every sample. Raises
    UsageError."""
    word = text.strip()
    if word.lower() == "rule":
        return Reward()
    try:
        seconds = float(word.removesuffix("s"))
    except ValueError:
        return Reward("model", model=load_model(word).spec.with_scores())
    if not 0.0 <= seconds <= MOST_REWARD_S:
        raise UsageError(
            f"--reward {word}: give seconds per step between 0 and {MOST_REWARD_S:,.0f}, rule, or "
            "a model"
        )
    return Reward("seconds", seconds)


def usual_token_limit(rollout: Rollout) -> int:
    """Default tokens of a micro-batch: twice the longest allowed sample, as verl's performance
    guide advises (docs/perf/perf_tuning.rst). Every sample fits in it."""
    return 2 * rollout.longest


def _placements(text: str, framework: RlFramework, engine: EngineName) -> tuple[Placement, ...]:
    """Placements that a search may use and in which the engine can receive new weights. Raises
    UsageError."""
    reached = framework.separate_engines or framework.engines
    able = tuple(one for one in framework.placements if one == "colocated" or engine in reached)
    if text == "search":
        return able
    for placement in PLACEMENTS:
        if placement == text and placement in able:
            return (placement,)
    if text in framework.placements:
        raise UsageError(
            f"--placement {text}: {framework.name} cannot send its weights to {engine} on "
            f"separate GPUs; give --rollout-engine {reached[0]}, or --placement colocated"
        )
    known = (*framework.placements, "search")
    raise unknown_name("--placement", text, known, f"one of {', '.join(known)}")


def _staleness(text: str, framework: RlFramework) -> tuple[int, ...]:
    """Numbers of updates by which samples may lag behind. Raises UsageError."""
    if text == "search":
        return tuple(one for one in SEARCHED_STALENESS if one <= framework.most_staleness)
    if not text.isdigit() or len(text) > 3:
        raise UsageError(
            f"--staleness {text}: give a number of updates, for example 1, or search; 0 is "
            "synchronous"
        )
    if int(text) > framework.most_staleness:
        raise UsageError(
            f"--staleness {text}: {framework.name} supports at most {framework.most_staleness}; "
            f"give --staleness {framework.most_staleness}"
        )
    return (int(text),)
