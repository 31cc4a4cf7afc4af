"""All changes of a single option that a framework allows for a configuration: the candidates of
advice.

A change states the request fields, degrees or recompute mode that it sets, and how the training
differs. Changes that leave the training as it is come first, then those that need more GPUs, then
those that train another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.job.errors import UsageError
from planner.job.job import Job, searched_modes
from planner.job.offload import searched_offloads, spelled
from planner.job.optimizers import optimizer_names
from planner.job.recompute import Recomputed
from planner.predict.evaluate import Proposal
from planner.predict.memory.account import footprint_of
from planner.predict.memory.solve import SAFE_PROBABILITY, bracket
from planner.predict.plan import Plan
from planner.predict.techniques import further_techniques

# Factors by which degrees are multiplied for trying.
_FACTORS = (2, 4, 8, 16)
# Shares of the optimizer on the host, by the kind of offload that a framework supports.
_SHARES: Mapping[str, tuple[float, ...]] = {"none": (), "share": (0.5, 1.0), "whole": (1.0,)}
OTHER_STATES = "other optimizer states"
OTHER_ROUNDING = "other rounding"
OTHER_BATCH = "a larger batch"


@dataclass(frozen=True)
class OptionChange:
    """One option with another value. `kind`: changes of the same kind exclude each other; `flags`:
    the options to give; `request`, `degrees`: the fields that change.

    `learns`: how the training changes, if the result is a different model; empty if only memory and
    time change.
    """

    kind: str
    flags: str
    request: Mapping[str, Any] = field(default_factory=dict)
    degrees: Mapping[str, int] = field(default_factory=dict)
    recompute: str | None = None
    recomputed: Recomputed | None = None
    learns: str = ""


def _of_degrees(kind: str, degrees: Mapping[str, int]) -> OptionChange:
    return OptionChange(kind, _degree_flags(degrees), degrees=degrees)


def _degree_flags(degrees: Mapping[str, int]) -> str:
    return " ".join(f"--{name} {value}" for name, value in degrees.items())


class OptionChanges:
    """The changes that a configuration's framework offers; `base`: its plan."""

    def __init__(self, proposal: Proposal, job: Job, base: Plan) -> None:
        self.proposal, self.job, self.base = proposal, job, base

    def __iter__(self) -> Iterator[OptionChange]:
        present = self.proposal.degrees
        for stage in sorted(self.job.framework.parallelism.zero_stages):
            if stage > present.zero:
                yield _of_degrees("zero", {"zero": stage})
        yield from self._recompute_modes()
        # With interleaving, more micro-batches are in flight.
        for name, degree in (("mbs", present.mbs), ("vpp", present.vpp)):
            smaller = (value for value in range(degree - 1, 0, -1) if degree % value == 0)
            yield from (_of_degrees(name, {name: value}) for value in smaller)
        yield from self._degrees()
        yield from self._optimizers()
        yield from self._kernels()
        for objective in self.job.objective.lighter():
            yield self._option("objective", objective=str(objective))
        yield from self._techniques()

    def _recompute_modes(self) -> Iterator[OptionChange]:
        job = self.job
        for mode in searched_modes(job.model, job.framework):
            if mode.name != self.proposal.recompute and mode.mask:
                yield OptionChange("recompute", f"--recompute {mode.name}", recompute=mode.name)
        fewest = self._fewest_recomputed()
        if fewest is not None:
            flags = f"--recompute full --recompute-layers {','.join(map(str, fewest))}"
            yield OptionChange("recompute", flags, recompute="full", recomputed=fewest)

    def _fewest_recomputed(self) -> tuple[int, ...] | None:
        """For each stage, the number of layers to recompute in full so that the configuration fits:
        the smallest number that suffices, the same on every stage but at most the stage's layers.
        None if it fits already, if recomputing all layers does not suffice or all are needed, if
        something is recomputed already, or if the framework cannot recompute only some layers in
        full."""
        job, proposal = self.job, self.proposal
        rule = job.framework.parallelism.recompute_layers
        modes = [mode.name for mode in job.framework.recompute]
        fits = self.base.fit_probability >= SAFE_PROBABILITY
        if fits or rule == "all-or-none" or "full" not in modes or proposal.recompute != "none":
            return None
        stages = self.base.layout.stage_layers
        most = max(stages)
        if not self._suffices(job, stages):
            return None

        def too_few(count: int) -> bool:
            return not self._suffices(job, _at_most(stages, count))

        fewest = bracket(too_few, most // 2, most)[1]
        return _at_most(stages, fewest) if fewest < most else None

    def _suffices(self, job: Job, recomputed: tuple[int, ...]) -> bool:
        proposal = self.proposal
        try:
            placed = replace(proposal, recompute="full", recomputed=recomputed).of(job)
        except UsageError:
            return False
        return footprint_of(placed).fit_probability >= SAFE_PROBABILITY

    def _degrees(self) -> Iterator[OptionChange]:
        """Larger degrees that split the model; if GPUs may be added, also more ranks that share
        state."""
        rules, degrees = self.job.framework.parallelism, self.proposal.degrees
        offered = {"tp": rules.tensor, "pp": rules.pipeline, "cp": rules.context}
        if self.job.model.moe is not None:
            offered["ep"] = rules.expert
        names = [name for name, has in offered.items() if has]
        for name in names:
            for factor in _FACTORS:
                value = getattr(degrees, name) * factor
                yield _of_degrees(name, {name: value, **self._zero_beside(name)})
                yield from self._trades(name, factor, names)
        yield from self._more_replicas()

    def _zero_beside(self, name: str) -> dict[str, int]:
        """`{"zero": 2}` if the degree `name` is tp, ZeRO-3 is in use, and the framework cannot
        combine it with tensor parallelism; otherwise empty."""
        stays = name != "tp" or self.job.framework.parallelism.zero3_with_tensor
        return {} if stays or self.proposal.degrees.zero < 3 else {"zero": 2}

    def _more_replicas(self) -> Iterator[OptionChange]:
        """Data parallelism with ZeRO on more GPUs: with smaller micro-batches if the batch requires
        that, or with a larger batch if it is too small for that many ranks."""
        degrees, offered = self.proposal.degrees, self.job.framework.parallelism.zero_stages
        stage = max(offered[0], degrees.zero)
        for factor in _FACTORS if stage else ():
            dp = degrees.dp * factor
            sizes = range(degrees.mbs, 0, -1)
            mbs = next((size for size in sizes if degrees.gbs % (size * dp) == 0), degrees.mbs)
            wanted = {"dp": dp, "zero": stage, "mbs": mbs}
            given = {name: value for name, value in wanted.items() if name == "dp"
                     or value != getattr(degrees, name)}  # fmt: skip
            if degrees.gbs % (mbs * dp) == 0:
                yield _of_degrees("dp", given)
                continue
            batch = {"gbs": degrees.gbs * factor, "gbs_tokens": None, "batch_ramp": None}
            flags = f"{_degree_flags(given)} --gbs {degrees.gbs * factor}"
            yield OptionChange("dp", flags, request=batch, degrees=given, learns=OTHER_BATCH)

    def _trades(self, name: str, factor: int, names: list[str]) -> Iterator[OptionChange]:
        """The degree `name` multiplied by `factor`, and another degree divided by it, so that the
        number of GPUs stays. ep takes no part."""
        present = self.proposal.degrees
        for giver in names:
            given = getattr(present, giver)
            if giver not in (name, "ep") and name != "ep" and given % factor == 0:
                degrees = {name: getattr(present, name) * factor, giver: given // factor,
                           **self._zero_beside(name)}  # fmt: skip
                yield _of_degrees(name, degrees)

    def _optimizers(self) -> Iterator[OptionChange]:
        present = self.job.optimizer
        for name in optimizer_names():
            if name == present.name:
                continue
            paged = name == f"paged-{present.name}" and not present.follows_weights
            yield self._option("optimizer", optimizer=name, learns="" if paged else OTHER_STATES)
        yield from self._optimizer_offloads()
        for modules in self._activations():
            yield self._option("offload", activation_offload=modules)

    @staticmethod
    def _option(kind: str, learns: str = "", **option: str) -> OptionChange:
        """A change of one field of the request. `option`: the field and its new value; `kind`,
        `learns`: as in `OptionChange`."""
        ((name, value),) = option.items()
        flags = f"--{name.replace('_', '-')} {value}"
        return OptionChange(kind, flags, request=option, learns=learns)

    def _optimizer_offloads(self) -> Iterator[OptionChange]:
        """Larger shares of the optimizer on the host. Each is offered with the present ZeRO stage,
        or with a higher one if it requires that; and also with ZeRO-2 if the framework moves
        gradients to the host from that stage on."""
        stages = sorted(self.job.framework.parallelism.zero_stages)
        for share in _SHARES[self.job.framework.optimizer.offload]:
            if share <= self.job.optimizer_offload:
                continue
            request = {"optimizer_offload": share}
            least = replace(self.job, optimizer_offload=share).least_zero
            wanted = {max(self.proposal.degrees.zero, least)}
            wanted |= {2} if self.job.framework.optimizer.offload_gradients else set()
            for stage in sorted(stage for stage in wanted if stage in stages and stage >= least):
                flags, degrees = f"--optimizer-offload {share:g}", dict[str, int]()
                if stage != self.proposal.degrees.zero:
                    flags, degrees = f"--zero {stage} {flags}", {"zero": stage}
                yield OptionChange("offload", flags, request=request, degrees=degrees)

    def _activations(self) -> Iterator[str]:
        """Larger sets of modules whose activations are moved to the host."""
        profile, offloaded = self.job.framework, set(self.job.activation_offload)
        if not profile.activation_offload.modules:
            return
        for modules in searched_offloads(profile, self.job.model):
            if set(modules) > offloaded:
                yield spelled(modules, profile, self.job.model)

    def _kernels(self) -> Iterator[OptionChange]:
        """Flash attention, which stores no scores; weights in bf16; and sequence parallelism: those
        that the job does not use yet."""
        if self.job.attention == "eager":
            yield self._option("attention", attention="flash")
        if self.job.dtype != "bf16":
            both = {"dtype": "bf16", "precision": "bf16"}
            yield OptionChange("dtype", "--dtype bf16", request=both, learns="16-bit weights")
        split = self.proposal.request.with_sequence_parallel()
        if split is not None:
            yield OptionChange("sequence", "--sequence-parallel", request=split)

    def _techniques(self) -> Iterator[OptionChange]:
        """Techniques of the framework that the configuration does not use."""
        degrees, mode = self.proposal.degrees, self.proposal.recompute
        for technique in further_techniques(self.job, degrees, mode):
            changed = self.proposal.request.with_technique(technique.name)
            rounds = OTHER_ROUNDING if technique.effect == "numerics" else ""
            flags = f"--with {technique.name}"
            yield OptionChange(technique.name, flags, request=changed, learns=rounds)
        yield from self._weights_off_gpu()

    def _weights_off_gpu(self) -> Iterator[OptionChange]:
        """Techniques that keep the weights in host memory or on NVMe, each combined with ZeRO-3,
        which they need. Empty if ZeRO-3 is in use already, or if the framework does not have it."""
        profile = self.job.framework
        if self.proposal.degrees.zero > 2 or 3 not in profile.parallelism.zero_stages:
            return
        for technique in profile.techniques:
            if technique.moves_weights:
                changed = self.proposal.request.with_technique(technique.name)
                flags = f"--zero 3 --with {technique.name}"
                yield OptionChange(technique.name, flags, request=changed, degrees={"zero": 3})


def _at_most(stages: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(min(count, layers) for layers in stages)
