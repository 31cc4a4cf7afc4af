"""What to change so that a configuration fits, and what each change costs: `--advise`.

Every change is a real option of the framework, evaluated for memory and time; those that break
a rule are left out. The global batch stays, and so do the GPUs unless more are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.job import Job, searched_modes
from planner.job.offload import searched_offloads, spelled
from planner.job.optimizers import optimizer_names
from planner.job.recompute import Recomputed
from planner.job.request import Request
from planner.predict.configuration import evaluate
from planner.predict.memory.footprint import configure, footprint_of
from planner.predict.memory.solve import SAFE_PROBABILITY, bracket
from planner.predict.plan import Degrees, Plan

Watch = Callable[[str, int, int], None]
# Whether no time is left for something, which then counts as untried.
Over = Callable[[str], bool]

# Degrees are tried at 2, 4, 8 and 16 times their value.
_FACTORS = (2, 4, 8, 16)
# Pairs that are evaluated when no single change suffices: those whose savings add up to most.
MOST_PAIRS = 160
# A change that saves less than this share of the peak is no help.
LEAST_SAVING = 0.002


@dataclass(frozen=True)
class Setup:
    """A configuration as it is asked for; arguments of `planner.evaluate`.

    `recomputed` None: all layers in a mode that recomputes.
    """

    request: Request
    degrees: Degrees
    recompute: str = "none"
    block_layers: tuple[int, ...] | None = None
    recomputed: Recomputed | None = None
    mtp_standalone: bool = False

    def plan(self) -> Plan:
        """Its memory and time. UsageError names every rule that it breaks."""
        return evaluate(
            self.request,
            self.degrees,
            self.recompute,
            self.block_layers,
            self.recomputed,
            self.mtp_standalone,
        )


@dataclass(frozen=True)
class OptionChange:
    """One option with another value. `kind` groups options of which one value holds at a time."""

    kind: str
    flags: str
    request: Mapping[str, Any] = field(default_factory=dict)
    degrees: Mapping[str, int] = field(default_factory=dict)
    recompute: str | None = None
    recomputed: Recomputed | None = None


@dataclass(frozen=True)
class Move:
    """One change or two, and what comes of them.

    `saved_bytes`: less at the peak of the heaviest stage; `extra_s`: longer step, at the batch of
    the configuration that is changed; `follows`: what else had to change, in words.
    """

    changes: tuple[OptionChange, ...]
    setup: Setup
    plan: Plan
    saved_bytes: float
    extra_s: float
    follows: str

    @property
    def flags(self) -> str:
        """The options to give."""
        return " ".join(change.flags for change in self.changes)

    @property
    def is_safe(self) -> bool:
        """Whether it fits with the probability that a recommendation needs."""
        return self.plan.fit_probability >= SAFE_PROBABILITY


@dataclass(frozen=True)
class Advice:
    """Changes that make a configuration fit, cheapest first; those that help without sufficing,
    most bytes first; and pairs that suffice where no single change does, cheapest first.

    `closest`: the lightest pair, where no pair suffices either. `tried`: how many changes and
    pairs were looked at; those that break a rule or save nothing are not listed.
    """

    base: Plan
    sufficient: tuple[Move, ...]
    partial: tuple[Move, ...]
    pairs: tuple[Move, ...]
    closest: Move | None
    tried: int


def advise(
    request: Request,
    degrees: Degrees,
    recompute: str = "none",
    block_layers: tuple[int, ...] | None = None,
    recomputed: Recomputed | None = None,
    *,
    mtp_standalone: bool = False,
    may_add_gpus: bool = False,
    watch: Watch | None = None,
    over: Over = lambda _what: False,
) -> Advice:
    """Evaluate every change of one option, and pairs of changes if none suffices.

    Arguments as `planner.evaluate`. `may_add_gpus`: degrees that the GPUs cannot hold take more
    of them (`request.gpus` must then count them: `8xH100`). UsageError if the configuration
    itself breaks a rule. `over`: asked before each.
    """
    setup = Setup(request, degrees, recompute, block_layers, recomputed, mtp_standalone)
    return _Adviser(
        setup, may_add_gpus, watch or (lambda _what, _done, _total: None), over
    ).advice()


class _Adviser:
    """The configuration to change, and moves already evaluated."""

    def __init__(self, setup: Setup, may_add_gpus: bool, watch: Watch, over: Over) -> None:
        self.setup, self.may_add_gpus, self.watch, self.over = setup, may_add_gpus, watch, over
        self.job = setup.request.resolve()
        self.base = setup.plan()
        self.tried = 0

    def advice(self) -> Advice:
        changes = tuple(self._changes())
        singles = self._moves("changes", [(change,) for change in changes])
        sufficient = [move for move in singles if move.is_safe]
        partial = [move for move in singles if not move.is_safe]
        pairs = [] if sufficient else self._moves("pairs", _pairs(partial))
        safe = [move for move in pairs if move.is_safe]
        closest = max(pairs, key=lambda move: move.saved_bytes, default=None)
        return Advice(
            self.base,
            tuple(sorted(sufficient, key=_cost)),
            tuple(sorted(partial, key=lambda move: -move.saved_bytes)),
            tuple(sorted(safe, key=_cost)),
            None if safe else closest,
            self.tried,
        )

    def _moves(self, what: str, sets: list[tuple[OptionChange, ...]]) -> list[Move]:
        """Moves that are legal and save memory."""
        found = []
        for index, changes in enumerate(sets):
            if self.over(" ".join(change.flags for change in changes)):
                continue
            self.watch(what, index, len(sets))
            move = self._move(changes)
            if move is not None and move.saved_bytes > LEAST_SAVING * self.base.peak_bytes:
                found.append(move)
        return found

    def _move(self, changes: tuple[OptionChange, ...]) -> Move | None:
        """A move evaluated, None if it breaks a rule."""
        self.tried += 1
        setup = self._changed(changes)
        if setup is None:
            return None
        try:
            plan = setup.plan()
        except (UsageError, HardwareError, ConstraintError):
            return None
        scale = self.base.gbs_tokens / plan.gbs_tokens
        return Move(
            changes,
            setup,
            plan,
            self.base.peak_bytes - plan.peak_bytes,
            plan.step_time_s * scale - self.base.step_time_s,
            _follows(self.setup, setup, changes),
        )

    def _changed(self, changes: tuple[OptionChange, ...]) -> Setup | None:
        """The configuration after changes; None if GPUs or batch do not divide."""
        setup = self.setup
        wanted: dict[str, int] = {}
        request: dict[str, Any] = {}
        recompute, recomputed = setup.recompute, setup.recomputed
        for change in changes:
            wanted |= change.degrees
            request |= change.request
            if change.recompute is not None:
                recompute, recomputed = change.recompute, change.recomputed
        degrees = self._completed(setup.degrees.model_copy(update=wanted), wanted)
        if degrees is None:
            return None
        if degrees.gpus != setup.degrees.gpus:
            request["gpus"] = f"{degrees.gpus}x{(setup.request.gpus or '').partition('x')[2]}"
        same = (degrees.pp, degrees.vpp) == (setup.degrees.pp, setup.degrees.vpp)
        return Setup(
            setup.request.model_copy(update=request),
            degrees,
            recompute,
            setup.block_layers if same else None,
            recomputed if same else None,
            setup.mtp_standalone and same,
        )

    def _completed(self, degrees: Degrees, wanted: Mapping[str, int]) -> Degrees | None:
        """Degrees that follow: dp from the GPUs, grad_acc from the batch, etp, vpp and ZeRO."""
        present = self.setup.degrees
        replica = degrees.tp * degrees.pp * degrees.cp
        gpus = present.gpus
        if self.may_add_gpus and (replica > gpus or "dp" in wanted):
            gpus = replica * wanted.get("dp", 1)
        dp, rest = divmod(gpus, replica)
        share, left = divmod(present.gbs, degrees.mbs * dp) if dp else (0, 0)
        if rest or left or not share:
            return None
        changes = {"dp": dp, "grad_acc": share, "etp": self._expert_tensor(degrees)}
        if degrees.pp != present.pp:
            even = self.job.model.layers % (degrees.pp * degrees.vpp) == 0
            changes["vpp"] = degrees.vpp if even and degrees.pp > 1 else 1
        if "zero" not in wanted:
            changes["zero"] = self._zero(degrees.zero, dp * degrees.cp)
        return degrees.model_copy(update=changes)

    def _expert_tensor(self, degrees: Degrees) -> int:
        """etp follows tp where it did so before, or must."""
        present, rules = self.setup.degrees, self.job.framework.parallelism
        if self.job.model.moe is None:
            return 1
        if not rules.expert_tensor:
            return 1 if degrees.ep > 1 else degrees.tp
        return degrees.tp if present.etp == present.tp > 1 else min(present.etp, degrees.tp)

    def _zero(self, stage: int, replicas: int) -> int:
        """The stage as it is, or none where there is nothing to shard over."""
        stages = self.job.framework.parallelism.zero_stages
        return min(stages) if replicas == 1 else stage

    # --- the options --------------------------------------------------------------------------

    def _changes(self) -> Iterator[OptionChange]:
        yield from self._zero_stages()
        yield from self._recompute_modes()
        yield from self._micro_batches()
        yield from self._chunks()
        yield from self._degrees()
        yield from self._optimizers()
        yield from self._kernels()

    def _zero_stages(self) -> Iterator[OptionChange]:
        for stage in sorted(self.job.framework.parallelism.zero_stages):
            if stage > self.setup.degrees.zero:
                yield OptionChange("zero", f"--zero {stage}", degrees={"zero": stage})

    def _recompute_modes(self) -> Iterator[OptionChange]:
        job = self.job
        for mode in searched_modes(job.model, job.framework):
            if mode.name != self.setup.recompute and mode.mask:
                yield OptionChange("recompute", f"--recompute {mode.name}", recompute=mode.name)
        fewest = self._fewest_recomputed()
        if fewest is not None:
            text = ",".join(str(count) for count in fewest)
            yield OptionChange(
                "recompute",
                f"--recompute full --recompute-layers {text}",
                recompute="full",
                recomputed=fewest,
            )

    def _fewest_recomputed(self) -> tuple[int, ...] | None:
        """Fewest layers of each stage whose full recomputation suffices, by their accounts."""
        job, setup = self.job, self.setup
        rule = job.framework.parallelism.recompute_layers
        modes = [mode.name for mode in job.framework.recompute]
        fits = self.base.fit_probability >= SAFE_PROBABILITY
        if fits or rule == "all-or-none" or "full" not in modes or setup.recompute != "none":
            return None
        stages = self.base.layout.stage_layers(setup.degrees.pp)
        most = max(stages)
        if not self._suffices(job, stages):
            return None

        def too_few(count: int) -> bool:
            return not self._suffices(job, _at_most(stages, count))

        fewest = bracket(too_few, most // 2, most)[1]
        return _at_most(stages, fewest) if fewest < most else None

    def _suffices(self, job: Job, recomputed: tuple[int, ...]) -> bool:
        setup = self.setup
        try:
            placed = configure(
                job, setup.degrees, "full", setup.block_layers, recomputed, setup.mtp_standalone
            )
        except UsageError:
            return False
        return footprint_of(placed).fit_probability >= SAFE_PROBABILITY

    def _micro_batches(self) -> Iterator[OptionChange]:
        mbs = self.setup.degrees.mbs
        for smaller in range(mbs - 1, 0, -1):
            if mbs % smaller == 0:
                yield OptionChange("mbs", f"--mbs {smaller}", degrees={"mbs": smaller})

    def _chunks(self) -> Iterator[OptionChange]:
        """Interleaving holds more in flight."""
        vpp = self.setup.degrees.vpp
        for fewer in range(vpp - 1, 0, -1):
            if vpp % fewer == 0:
                yield OptionChange("vpp", f"--vpp {fewer}", degrees={"vpp": fewer})

    def _degrees(self) -> Iterator[OptionChange]:
        """More of what splits the model; more ranks that share state, if GPUs may be added."""
        rules, degrees = self.job.framework.parallelism, self.setup.degrees
        offered = {"tp": rules.tensor, "pp": rules.pipeline, "cp": rules.context}
        if self.job.model.moe is not None:
            offered["ep"] = rules.expert
        names = [name for name, has in offered.items() if has]
        for name in names:
            for factor in _FACTORS:
                value = getattr(degrees, name) * factor
                yield OptionChange(name, f"--{name} {value}", degrees={name: value})
                yield from self._trades(name, factor, names)
        for factor in _FACTORS if self.may_add_gpus else ():
            value, stage = degrees.dp * factor, rules.zero_stages[0]
            flags = f"--dp {value}" + (f" --zero {stage}" if stage != degrees.zero else "")
            yield OptionChange("dp", flags, degrees={"dp": value, "zero": stage})

    def _trades(self, name: str, factor: int, names: list[str]) -> Iterator[OptionChange]:
        """More of one split at the cost of another, on the same GPUs."""
        present = self.setup.degrees
        for giver in names:
            given = getattr(present, giver)
            if giver not in (name, "ep") and name != "ep" and given % factor == 0:
                degrees = {name: getattr(present, name) * factor, giver: given // factor}
                flags = " ".join(f"--{key} {value}" for key, value in degrees.items())
                yield OptionChange(name, flags, degrees=degrees)

    def _optimizers(self) -> Iterator[OptionChange]:
        for name in optimizer_names():
            if name != self.job.optimizer.name:
                yield OptionChange("optimizer", f"--optimizer {name}", request={"optimizer": name})
        for share in (0.5, 1.0):
            flags = f"--optimizer-offload {share:g}"
            yield OptionChange("offload", flags, request={"optimizer_offload": share})
        for modules in self._activations():
            flags = f"--activation-offload {modules}"
            yield OptionChange("offload", flags, request={"activation_offload": modules})

    def _activations(self) -> Iterator[str]:
        """More modules whose activations go to the host."""
        profile, one_set = self.job.framework, set(self.job.activation_offload)
        if not profile.activation_offload.modules:
            return
        for modules in searched_offloads(profile, self.job.model):
            if set(modules) > one_set:
                yield spelled(modules, profile, self.job.model)

    def _kernels(self) -> Iterator[OptionChange]:
        """Attention that keeps no scores, weights in 16 bits."""
        if self.job.attention == "eager":
            yield OptionChange("attention", "--attention flash", request={"attention": "flash"})
        if self.job.dtype != "bf16":
            yield OptionChange(
                "dtype", "--dtype bf16", request={"dtype": "bf16", "precision": "bf16"}
            )


def _at_most(stages: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(min(count, layers) for layers in stages)


def _cost(move: Move) -> tuple[float, float]:
    return move.extra_s, -move.saved_bytes


def _pairs(moves: list[Move]) -> list[tuple[OptionChange, ...]]:
    """Pairs of changes of different options, largest sum of savings first."""
    pairs = [(one, two) for one, two in combinations(moves, 2) if _differ(one, two)]
    pairs.sort(key=lambda pair: -(pair[0].saved_bytes + pair[1].saved_bytes))
    return [(*one.changes, *two.changes) for one, two in pairs[:MOST_PAIRS]]


def _differ(one: Move, two: Move) -> bool:
    first, second = one.changes[0], two.changes[0]
    shared = first.degrees.keys() & second.degrees.keys()
    return first.kind != second.kind and not shared


def _follows(before: Setup, after: Setup, changes: tuple[OptionChange, ...]) -> str:
    """Degrees that changed besides those asked for, and more GPUs: `dp 4, grad-acc 16`."""
    asked = {name for change in changes for name in change.degrees}
    old, new = before.degrees.model_dump(), after.degrees.model_dump()
    words = [
        f"{name.replace('_', '-')} {new[name]}"
        for name in new
        if new[name] != old[name] and name not in asked
    ]
    if after.degrees.gpus != before.degrees.gpus:
        words.append(f"{after.degrees.gpus} GPUs")
    return ", ".join(words)
