"""Changes that make a configuration fit, and the cost of each: `--advise`.

Every change is an actual option of the framework, evaluated for memory and time; changes that break
a rule are left out. The global batch stays the same, and so do the GPUs unless more are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner.cost.terms import MEMORY_WORDS
from planner.job.errors import UsageError
from planner.job.written import picked
from planner.predict.evaluate import Proposal
from planner.predict.memory.option_changes import OptionChange, OptionChanges
from planner.predict.memory.solve import SAFE_PROBABILITY
from planner.predict.plan import Degrees, Plan

Watch = Callable[[str, int, int], None]
# Called with a description before something is tried; if it returns true, time is up and that thing
# counts as untried.
Over = Callable[[str], bool]

# Pairs that are evaluated if no single change suffices: those with the largest sums of savings.
MOST_PAIRS = 160
# Smallest share of the peak that a change must save to count as helpful.
LEAST_SAVING = 0.002
# Smallest share of a memory term that a change must remove to count as shrinking it.
LEAST_SHRINKAGE = 0.2


@dataclass(frozen=True)
class Move:
    """One change, or a pair of changes, and the plan that results.

    `saved_bytes`: bytes by which the peak of the heaviest stage falls; `extra_s`: seconds by which
    the step becomes longer, at the original batch; `follows`: other options that had to change as
    well, in words.
    """

    changes: tuple[OptionChange, ...]
    proposal: Proposal
    plan: Plan
    saved_bytes: float
    extra_s: float
    follows: str
    gpus_before: int

    @property
    def flags(self) -> str:
        """The options to give."""
        return " ".join(change.flags for change in self.changes)

    @property
    def learns(self) -> str:
        """How the training differs, in words, if the change trains a different model; empty if
        not."""
        return ", ".join(dict.fromkeys(change.learns for change in self.changes if change.learns))

    @property
    def more_gpus(self) -> int:
        """Number of additional GPUs needed."""
        return self.proposal.degrees.gpus - self.gpus_before

    @property
    def is_safe(self) -> bool:
        """Whether the changed plan fits with the probability that a recommendation requires."""
        return self.plan.fit_probability >= SAFE_PROBABILITY


@dataclass(frozen=True)
class LargestTerm:
    """The largest memory term at the peak. `size_bytes`: its bytes; `total_bytes`: those of the
    whole peak; `move`: the first change, in the order of advice, that shrinks the term, or None if
    no tried change does."""

    name: str
    label: str
    size_bytes: float
    total_bytes: float
    move: Move | None


@dataclass(frozen=True)
class Advice:
    """Changes that make a configuration fit (`sufficient`); those that save memory but not enough,
    largest saving first (`partial`); and pairs that suffice if no single change does.

    Sufficient changes are in the order in which to try them: those that leave the training as it
    is, those that train another model, those that need more GPUs; each group is sorted by time.
    `closest`: the pair that saves most, on the same GPUs if any pair stays there; None if a pair on
    the same GPUs suffices or none was tried. `tried`: number of changes and pairs that were
    examined, including those that break a rule or save nothing.
    """

    base: Plan
    largest: LargestTerm
    sufficient: tuple[Move, ...]
    partial: tuple[Move, ...]
    pairs: tuple[Move, ...]
    closest: Move | None
    tried: int


def advise(
    proposal: Proposal,
    *,
    may_add_gpus: bool = False,
    pairs: bool = True,
    watch: Watch | None = None,
    over: Over = lambda _what: False,
) -> Advice:
    """Evaluate every change of one option, and pairs of changes if none suffices.

    `may_add_gpus`: degrees that need more GPUs may have them (`request.gpus` must then state a
    number of GPUs: `8xH100`); data parallelism on more GPUs is tried in any case and comes last.
    `over`: called before each change; if it returns true the change is skipped and counts as
    untried. UsageError if the configuration itself breaks a rule.
    """
    watch = watch or (lambda _what, _done, _total: None)
    return _Adviser(proposal, may_add_gpus, pairs, watch, over).advice()


class _Adviser:
    """Evaluates changes of a configuration, and counts those that it tries."""

    def __init__(
        self, proposal: Proposal, may_add_gpus: bool, pairs: bool, watch: Watch, over: Over
    ) -> None:
        self.proposal, self.may_add_gpus, self.pairs = proposal, may_add_gpus, pairs
        self.watch, self.over = watch, over
        self.job = proposal.request.resolve()
        self.base = proposal.plan()
        self.tried = 0

    def advice(self) -> Advice:
        changes = OptionChanges(self.proposal, self.job, self.base)
        singles = _fewest_gpus(self._moves("changes", [(change,) for change in changes]))
        sufficient = sorted((move for move in singles if move.is_safe), key=_cost)
        partial = [move for move in singles if not move.is_safe]
        partial.sort(key=lambda move: -move.saved_bytes)
        wanted = self.pairs and not _stay(sufficient)
        pairs = self._moves("pairs of changes", _pairs(partial)) if wanted else []
        safe = _fewest_gpus([move for move in pairs if move.is_safe])
        closest = max(_stay(pairs) or pairs, key=lambda move: move.saved_bytes, default=None)
        easy = (move for move in _stay(partial) if not move.learns)
        return Advice(
            self.base,
            largest_term(self.base, (*sufficient, *easy, *partial)),
            tuple(sufficient),
            tuple(partial),
            tuple(sorted(safe, key=_cost)),
            None if _stay(safe) else closest,
            self.tried,
        )

    def _moves(self, what: str, sets: list[tuple[OptionChange, ...]]) -> list[Move]:
        """The changes of `sets` that obey the rules and save memory. `what`: words for the progress
        display."""
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
        """The changes and the plan that results from them; None if that breaks a rule."""
        self.tried += 1
        proposal = self._changed(changes)
        if proposal is None:
            return None
        try:
            plan = proposal.plan()
        except (UsageError, HardwareError, ConstraintError):
            return None
        scale = self.base.gbs_tokens / plan.gbs_tokens
        return Move(
            changes,
            proposal,
            plan,
            self.base.peak_bytes - plan.peak_bytes,
            plan.step_time_s * scale - self.base.step_time_s,
            _follows(self.proposal, proposal, changes),
            self.proposal.degrees.gpus,
        )

    def _changed(self, changes: tuple[OptionChange, ...]) -> Proposal | None:
        """The configuration after changes; None if the GPUs or the batch cannot be divided by the
        new degrees."""
        proposal = self.proposal
        wanted: dict[str, int] = {}
        request: dict[str, Any] = {}
        for change in changes:
            wanted |= change.degrees
            request |= change.request
        gbs = request.get("gbs", proposal.degrees.gbs)
        degrees = self._completed(proposal.degrees.model_copy(update=wanted), wanted, gbs)
        if degrees is None:
            return None
        if degrees.gpus != proposal.degrees.gpus:
            more = proposal.request.on_gpus(degrees.gpus)
            if more is None:
                return None
            request |= more
        mode = next((change for change in changes if change.recompute is not None), None)
        again = (mode.recompute, mode.recomputed) if mode else ()
        return proposal.changed(request, degrees, *again)

    def _completed(self, degrees: Degrees, wanted: Mapping[str, int], gbs: int) -> Degrees | None:
        """`degrees` with the remaining ones computed: dp from the number of GPUs, grad_acc from the
        batch `gbs`, etp; and vpp is set to 1 if another pp would make the chunks unequal. None if
        GPUs or batch cannot be divided. `wanted`: the degrees that the changes set."""
        present = self.proposal.degrees
        replica, gpus = degrees.tp * degrees.pp * degrees.cp, present.gpus
        if "dp" in wanted or (self.may_add_gpus and replica > gpus):
            gpus = replica * wanted.get("dp", 1)
        changes = {"etp": self._expert_tensor(degrees)}
        if degrees.pp != present.pp:
            even = self.job.model.layers % (degrees.pp * degrees.vpp) == 0
            changes["vpp"] = degrees.vpp if even and degrees.pp > 1 else 1
        return degrees.model_copy(update=changes).filling(gpus, gbs)

    def _expert_tensor(self, degrees: Degrees) -> int:
        """The etp to use with these degrees: 1 without experts. If the framework has no separate
        etp, it is 1 with ep and tp without. Otherwise it equals tp if both were equal and above 1
        before the change; if not, it stays as it was, but at most tp."""
        present, rules = self.proposal.degrees, self.job.framework.parallelism
        if self.job.model.moe is None:
            return 1
        if not rules.expert_tensor:
            return 1 if degrees.ep > 1 else degrees.tp
        return degrees.tp if present.etp == present.tp > 1 else min(present.etp, degrees.tp)


def largest_term(base: Plan, moves: Iterable[Move]) -> LargestTerm:
    """The largest term at the peak of `base`, and the first of `moves` that shrinks it."""
    stage = base.stages[base.heaviest_stage]
    name = max(MEMORY_WORDS, key=lambda term: float(getattr(stage, term)))
    size = float(getattr(stage, name))

    def shrinks(move: Move) -> bool:
        after = move.plan.stages[move.plan.heaviest_stage]
        less = min(size - float(getattr(after, name)), move.saved_bytes)
        return less >= LEAST_SHRINKAGE * size

    move = next((move for move in moves if shrinks(move)), None)
    return LargestTerm(name, MEMORY_WORDS[name], size, base.peak_bytes, move)


def _stay(moves: Sequence[Move]) -> list[Move]:
    """The moves that need no additional GPUs."""
    return [move for move in moves if not move.more_gpus]


def _fewest_gpus(moves: list[Move]) -> list[Move]:
    """The moves without those that add needlessly many GPUs. If n is the smallest number of added
    GPUs with which some move fits, moves that add more than n are dropped, and so are moves that
    add n and do not fit. All moves if no move with added GPUs fits."""
    enough = min((move.more_gpus for move in moves if move.more_gpus and move.is_safe), default=0)
    if not enough:
        return moves

    def stays(move: Move) -> bool:
        return move.more_gpus < enough or (move.more_gpus == enough and move.is_safe)

    return [move for move in moves if stays(move)]


def _cost(move: Move) -> tuple[bool, bool, float, float]:
    return bool(move.more_gpus), bool(move.learns), move.extra_s, -move.saved_bytes


def _pairs(moves: list[Move]) -> list[tuple[OptionChange, ...]]:
    """Pairs of changes to different options, largest sum of savings first."""
    pairs = [(one, two) for one, two in combinations(moves, 2) if _differ(one, two)]
    pairs.sort(key=lambda pair: -(pair[0].saved_bytes + pair[1].saved_bytes))
    return [(*one.changes, *two.changes) for one, two in pairs[:MOST_PAIRS]]


def _differ(one: Move, two: Move) -> bool:
    first, second = one.changes[0], two.changes[0]
    shared = first.degrees.keys() & second.degrees.keys()
    return first.kind != second.kind and not shared


def _follows(before: Proposal, after: Proposal, changes: tuple[OptionChange, ...]) -> str:
    """Degrees that changed in addition to those asked for, and added GPUs: `dp 4, grad-acc 16`."""
    wanted = {name for change in changes for name in change.degrees}
    old, new = before.degrees.model_dump(), after.degrees.model_dump()
    words = [
        f"{name.replace('_', '-')} {new[name]}"
        for name in new
        if new[name] != old[name] and name not in wanted
    ]
    if after.degrees.gpus != before.degrees.gpus:
        words.append(f"{after.degrees.gpus} GPUs")
    return ", ".join(words)


def advice_record(advice: Advice) -> dict[str, Any]:
    """Advice as data, in bytes and seconds."""
    largest = advice.largest
    return {
        "largest_term": picked(largest, "name label bytes=size_bytes total_bytes")
        | {"shrunk_by": largest.move and _move(largest.move)},
        "base": picked(advice.base, "total_bytes=peak_bytes fit_probability step_time_s step_time"),
        **{
            name: [_move(move) for move in getattr(advice, name)]
            for name in ("sufficient", "partial", "pairs")
        },
        "closest": advice.closest and _move(advice.closest),
        "tried": advice.tried,
    }


def _move(move: Move) -> dict[str, Any]:
    return picked(
        move,
        "options=flags learns more_gpus follows degrees=proposal.degrees"
        " recompute=proposal.recompute recomputed=proposal.recomputed"
        " optimizer=proposal.request.optimizer dtype=proposal.request.dtype"
        " attention=proposal.request.attention gpus=proposal.request.gpus"
        " total_bytes=plan.peak_bytes"
        " interval=plan.peak_interval fit_probability=plan.fit_probability saved_bytes"
        " step_time_s=plan.step_time_s step_time=plan.step_time extra_s",
    )
