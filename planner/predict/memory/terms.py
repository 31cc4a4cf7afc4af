"""What holds the memory of a phase: terms in reading order, with their names for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.cost.terms import LIVE_TERMS, OUTSIDE_TERMS
from planner.predict.memory.account import StageAccount
from planner.predict.memory.footprint import Footprint
from planner.predict.memory.tensors import ON_THEIR_WAY, WAITING, KeptTensor, kept_tensors
from planner.predict.memory.timeline import PhaseMemory

Where = Literal["tensors", "outside"]
Step = Literal["first", "later"]

# Parts of the activations by the first words of a tensor's name; the first that matches holds.
_PARTS = (
    (WAITING, "waiting for weight gradients"),
    (ON_THEIR_WAY, "on the way to and from the host"),
    ("checkpoint", "checkpoints"),
    ("/norm", "norms"),
    ("attention/", "attention"),
    ("state/", "state spaces"),
    ("moe/", "router and experts"),
    ("shared_experts/", "router and experts"),
    ("ffn/", "feed-forward"),
    ("mlp/", "feed-forward"),
    ("head/loss", "logits for the loss"),
    ("head/", "head"),
    ("embedding/", "embedding"),
    ("mtp/", "multi-token prediction"),
)
_OTHER_PART = "tables shared by layers"
# Terms under this share of the whole are shown together.
_SMALL = 5e-5


@dataclass(frozen=True, slots=True)
class Part:
    """A term of a sum. `where`: a live tensor, or outside the tensors; `of`: the term that it is
    a part of."""

    name: str
    label: str
    size_bytes: float
    where: Where
    of: str = ""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of the first step or of later ones."""

    step: Step
    phase: PhaseMemory
    is_peak: bool


def label(name: str) -> str:
    """Words for a term."""
    if name.startswith("communicator "):
        return f"NCCL buffers, {name.removeprefix('communicator ')} group"
    term = LIVE_TERMS.get(name) or OUTSIDE_TERMS.get(name)
    return term.words if term else name


def phase_rows(account: StageAccount) -> tuple[PhaseRow, ...]:
    """All phases of a stage in order; one of them is the peak."""
    peak = account.peak
    steps: tuple[tuple[Step, tuple[PhaseMemory, ...]], ...] = (
        ("first", account.first_step),
        ("later", account.later_steps),
    )
    return tuple(PhaseRow(step, phase, phase is peak) for step, phases in steps for phase in phases)


def peak_row(account: StageAccount) -> PhaseRow:
    """The heaviest phase."""
    return next(row for row in phase_rows(account) if row.is_peak)


def peak_tensors(footprint: Footprint, account: StageAccount) -> tuple[KeptTensor, ...]:
    """Tensors kept for backward at a stage's peak, largest first."""
    return kept_tensors(footprint.configuration.job, account.core, account.peak)


def peak_parts(footprint: Footprint, account: StageAccount) -> tuple[Part, ...]:
    """Everything that holds a stage's peak; the parts add up to its total."""
    terms = account.peak.terms
    tensors: list[Part] = []
    for name in terms:
        if name == "activations" and terms[name]:
            tensors += _activation_parts(peak_tensors(footprint, account))
        else:
            tensors.append(Part(name, label(name), terms[name], "tensors"))
    outside = [Part(name, label(name), size, "outside") for name, size in account.outside.items()]
    least = _SMALL * account.total_bytes
    return (*_pooled(tensors, least), *(part for part in outside if part.size_bytes))


def _pooled(parts: list[Part], least: float) -> list[Part]:
    """The parts, those below `least` bytes as one."""
    shown = [part for part in parts if part.size_bytes >= least]
    small = sum(part.size_bytes for part in parts if part.size_bytes < least)
    if small:
        shown.append(Part("other", "other tensors", small, "tensors"))
    return shown


def _activation_parts(tensors: tuple[KeptTensor, ...]) -> list[Part]:
    """Kept tensors by the block of the model that keeps them, largest first."""
    sizes: dict[str, float] = {}
    for tensor in tensors:
        part = part_of(tensor.name)
        sizes[part] = sizes.get(part, 0.0) + tensor.size_bytes
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return [
        Part(f"activations/{name}", f"kept: {name}", size, "tensors", "activations")
        for name, size in ordered
    ]


def part_of(tensor: str) -> str:
    """The block of the model that keeps a tensor, by the tensor's name."""
    return next((part for words, part in _PARTS if words in tensor), _OTHER_PART)
