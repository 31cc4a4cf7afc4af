"""Pipeline schedules played out pass by pass: the oracle of the closed forms.

An order lists, for each device, the passes it runs; the simulation starts each one as soon as
the device is free and what it depends on is done. Plain Python, for tests and for people.

Sources: GPipe (Huang et al. 2019, arXiv 1811.06965, Figure 2), 1F1B and interleaving (Narayanan
et al. 2021, arXiv 2104.04473, Figures 3 and 4), ZB-H1, ZB-H2 and ZB-V (Qi et al. 2024, arXiv
2401.10241, Figures 2, 3 and 7), DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, Figure 5) and
DualPipeV, its fold over half the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

# F forward, B gradient of the input, W gradient of the weights; D is B and W in one pass.
Kind = Literal["F", "B", "W", "D"]


class SimulatedPass(NamedTuple):
    """One pass of one chunk for one micro-batch."""

    kind: Kind
    chunk: int
    microbatch: int


# Passes that run as one: each starts when all can, and all end together.
Step = tuple[SimulatedPass, ...]


class ChunkTimes(NamedTuple):
    """Seconds of a chunk's passes for one micro-batch."""

    forward_s: float
    backward_s: float
    weight_s: float

    def seconds(self, kind: Kind) -> float:
        """Seconds of one pass."""
        return {
            "F": self.forward_s,
            "B": self.backward_s,
            "W": self.weight_s,
            "D": self.backward_s + self.weight_s,
        }[kind]


@dataclass(frozen=True)
class Schedule:
    """Steps of every device in order; `device[chunk]`, and the `chains` in which chunks follow
    each other: one, or two where micro-batches enter the pipeline from both ends."""

    steps: tuple[tuple[Step, ...], ...]
    device: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SimulatedPipeline:
    """Seconds at which devices start and end, and what they hold at their peak.

    `full[device]`: most chunks between a forward and the backward of the same micro-batch, and
    `peak[device]` the most of `full + share·deferred`, deferred ones having only W left.
    `played[device]`: its passes in order, each with start and end; those of one step in turn.
    """

    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    full: tuple[int, ...]
    peak: tuple[float, ...]
    played: tuple[tuple[tuple[SimulatedPass, float, float], ...], ...]

    @property
    def span_s(self) -> float:
        """First start to last end."""
        return max(self.end_s) - min(self.start_s)


def simulate(
    schedule: Schedule, times: Sequence[ChunkTimes], deferred_share: float = 1.0
) -> SimulatedPipeline:
    """Play a schedule. `times[chunk]`; `deferred_share`: memory that W keeps, over all of it.

    ValueError if the order waits for itself.
    """
    before = _predecessors(schedule)
    ended: dict[SimulatedPass, float] = {}
    clock = [0.0] * len(schedule.steps)
    starts: list[float | None] = [None] * len(schedule.steps)
    played: list[list[tuple[SimulatedPass, float, float]]] = [[] for _ in schedule.steps]
    position = [0] * len(schedule.steps)
    left = sum(len(steps) for steps in schedule.steps)
    while left:
        progressed = False
        for device, steps in enumerate(schedule.steps):
            while position[device] < len(steps):
                step = steps[position[device]]
                ready = _ready_s(step, before, ended)
                if ready is None:
                    break
                begin = max(clock[device], ready)
                first = starts[device]
                starts[device] = begin if first is None else first
                for item in step:
                    end = begin + times[item.chunk].seconds(item.kind)
                    played[device].append((item, begin, end))
                    begin = end
                clock[device] = begin
                ended.update(dict.fromkeys(step, clock[device]))
                position[device] += 1
                left -= 1
                progressed = True
        if not progressed:
            raise ValueError("the order of the passes waits for itself")
    held = [_held(steps, deferred_share) for steps in schedule.steps]
    return SimulatedPipeline(
        start_s=tuple(start or 0.0 for start in starts),
        end_s=tuple(clock),
        full=tuple(full for full, _ in held),
        peak=tuple(peak for _, peak in held),
        played=tuple(tuple(item) for item in played),
    )


class _Chain(NamedTuple):
    """Neighbours of each chunk in its chain."""

    earlier: dict[int, int]
    later: dict[int, int]


def _predecessors(schedule: Schedule) -> _Chain:
    earlier: dict[int, int] = {}
    later: dict[int, int] = {}
    for chain in schedule.chains:
        for one, other in pairwise(chain):
            earlier[other], later[one] = one, other
    return _Chain(earlier, later)


def _ready_s(step: Step, chain: _Chain, ended: dict[SimulatedPass, float]) -> float | None:
    """When all that a step depends on is done; None if something is not."""
    ready = 0.0
    for item in step:
        for needed in _needed(item, chain):
            done = next((ended[option] for option in needed if option in ended), None)
            if done is None:
                return None
            ready = max(ready, done)
    return ready


def _needed(one_pass: SimulatedPass, chain: _Chain) -> list[tuple[SimulatedPass, ...]]:
    """What a pass waits for, each as options of which one exists."""
    chunk, microbatch = one_pass.chunk, one_pass.microbatch
    if one_pass.kind == "F":
        if chunk not in chain.earlier:
            return []
        return [(SimulatedPass("F", chain.earlier[chunk], microbatch),)]
    if one_pass.kind == "W":
        return [(SimulatedPass("B", chunk, microbatch),)]
    if chunk not in chain.later:
        return [(SimulatedPass("F", chunk, microbatch),)]
    nearer = chain.later[chunk]
    return [(SimulatedPass("B", nearer, microbatch), SimulatedPass("D", nearer, microbatch))]


def _held(steps: Sequence[Step], share: float) -> tuple[int, float]:
    """(most full, most of full + share·deferred) over a device's passes in order."""
    full = deferred = most = 0
    peak = 0.0
    for item in (item for step in steps for item in step):
        full += item.kind == "F"
        most, peak = max(most, full), max(peak, full + share * deferred)
        full -= item.kind in ("B", "D")
        deferred += (item.kind == "B") - (item.kind == "W")
        peak = max(peak, full + share * deferred)
    return most, peak


# --- the schedules -------------------------------------------------------------------------------


def _straight(pp: int, vpp: int = 1) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Chunk c on device c mod pp."""
    chunks = range(pp * vpp)
    return tuple(chunk % pp for chunk in chunks), (tuple(chunks),)


def _folded(pp: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """V shape: chunks 0..pp-1 go up the devices, pp..2pp-1 come back."""
    chunks = range(2 * pp)
    return tuple(min(chunk, 2 * pp - 1 - chunk) for chunk in chunks), (tuple(chunks),)


def _alone(passes: Sequence[SimulatedPass]) -> tuple[Step, ...]:
    return tuple((one_pass,) for one_pass in passes)


def gpipe(pp: int, grad_acc: int) -> Schedule:
    """All forward passes, then all backward passes."""
    microbatches = range(grad_acc)
    steps = tuple(
        _alone(
            [SimulatedPass("F", stage, mb) for mb in microbatches]
            + [SimulatedPass("D", stage, mb) for mb in microbatches]
        )
        for stage in range(pp)
    )
    return Schedule(steps, *_straight(pp))


def one_forward_one_backward(pp: int, grad_acc: int) -> Schedule:
    """1F1B: pp - stage - 1 forwards to warm up, then one of each in turn."""
    steps = []
    for stage in range(pp):
        warm = min(grad_acc, pp - stage - 1)
        passes = [SimulatedPass("F", stage, mb) for mb in range(warm)]
        for mb in range(grad_acc):
            if warm + mb < grad_acc:
                passes.append(SimulatedPass("F", stage, warm + mb))
            passes.append(SimulatedPass("D", stage, mb))
        steps.append(_alone(passes))
    return Schedule(tuple(steps), *_straight(pp))


def _in_groups(pp: int, vpp: int, grad_acc: int, *, backward: bool) -> list[tuple[int, int]]:
    """(chunk of the device, micro-batch) in the order of interleaving: pp micro-batches through
    one chunk, then the same through the next."""
    order = []
    for start in range(0, grad_acc, pp):
        group = range(start, min(grad_acc, start + pp))
        rounds = range(vpp - 1, -1, -1) if backward else range(vpp)
        order += [(one_round, mb) for one_round in rounds for mb in group]
    return order


def interleaved(pp: int, vpp: int, grad_acc: int) -> Schedule:
    """Interleaved 1F1B; `grad_acc` a multiple of pp."""
    forward = _in_groups(pp, vpp, grad_acc, backward=False)
    backward = _in_groups(pp, vpp, grad_acc, backward=True)
    total = grad_acc * vpp
    steps = []
    for stage in range(pp):
        warm = min(total, 2 * (pp - stage - 1) + (vpp - 1) * pp)
        passes = [SimulatedPass("F", item * pp + stage, mb) for item, mb in forward[:warm]]
        for index, (item, mb) in enumerate(backward):
            if warm + index < total:
                ahead, next_mb = forward[warm + index]
                passes.append(SimulatedPass("F", ahead * pp + stage, next_mb))
            passes.append(SimulatedPass("D", item * pp + stage, mb))
        steps.append(_alone(passes))
    return Schedule(tuple(steps), *_straight(pp, vpp))


def zero_bubble(pp: int, grad_acc: int, vpp: int = 1, rounds: int = 1) -> Schedule:
    """ZB-H1 (`rounds` 1) and ZB-H2 (2): B as early as possible, W later by rounds·stage chunks.

    ZB-H2 warms up with twice the forwards. With chunks, ZB-H1 follows the interleaved order (the
    InterleavedZeroBubble schedule of torch.distributed.pipelining).
    """
    forward = _in_groups(pp, vpp, grad_acc, backward=False)
    backward = _in_groups(pp, vpp, grad_acc, backward=True)
    total = grad_acc * vpp
    steps = []
    for stage in range(pp):
        warm = min(total, rounds * (pp - stage - 1) + (vpp - 1) * pp)
        later = rounds * stage
        passes = [SimulatedPass("F", item * pp + stage, mb) for item, mb in forward[:warm]]
        for index, (item, mb) in enumerate(backward):
            if warm + index < total:
                ahead, next_mb = forward[warm + index]
                passes.append(SimulatedPass("F", ahead * pp + stage, next_mb))
            passes.append(SimulatedPass("B", item * pp + stage, mb))
            if index >= later:
                due, due_mb = backward[index - later]
                passes.append(SimulatedPass("W", due * pp + stage, due_mb))
        passes += [
            SimulatedPass("W", item * pp + stage, mb)
            for item, mb in backward[max(0, total - later) :]
        ]
        steps.append(_alone(passes))
    return Schedule(tuple(steps), *_straight(pp, vpp))


class _Emitter:
    """Passes of one device, micro-batches counted for each chunk and kind."""

    def __init__(self, grad_acc: int) -> None:
        self.grad_acc = grad_acc
        self.count: dict[tuple[str, int], int] = {}
        self.waiting: list[SimulatedPass] = []
        self.steps: list[Step] = []

    def _next(self, kind: Kind, chunk: int) -> SimulatedPass | None:
        """The chunk's next pass of a kind; B and D share the count of backward passes."""
        counter = ("F" if kind == "F" else "B", chunk)
        index = self.count.get(counter, 0)
        self.count[counter] = index + 1
        return SimulatedPass(kind, chunk, index) if index < self.grad_acc else None

    def run(self, *wanted: tuple[Kind, int]) -> None:
        """One step of the passes that exist; W of the longest deferred for kind W."""
        step = [
            one_next for kind, chunk in wanted if (one_next := self._next(kind, chunk)) is not None
        ]
        self.waiting += [item._replace(kind="W") for item in step if item.kind == "B"]
        if step:
            self.steps.append(tuple(step))

    def weight(self, chunk: int | None = None) -> None:
        """The longest deferred W, of one chunk if given."""
        for one_pass in self.waiting:
            if chunk is None or one_pass.chunk == chunk:
                self.waiting.remove(one_pass)
                self.steps.append((one_pass,))
                return

    def rest(self) -> None:
        """All W that are left."""
        while self.waiting:
            self.weight()


def zb_v(pp: int, grad_acc: int) -> Schedule:
    """ZB-V: two chunks on each device in a V, W at once but for those that end the step."""
    steps = []
    for stage in range(pp):
        down, up = stage, 2 * pp - 1 - stage
        emitter = _Emitter(grad_acc)
        rounds = max(grad_acc, 2 * pp - 1)
        for _ in range(2 * (pp - stage) - 1):
            emitter.run(("F", down))
        for _ in range(stage):
            emitter.run(("F", up))
            emitter.run(("F", down))
        for _ in range(pp - stage):
            emitter.run(("F", up))
            emitter.run(("B", up))
            emitter.weight(up)
        for _ in range(rounds - pp):
            emitter.run(("F", down))
            emitter.run(("B", down))
            emitter.weight(down)
            emitter.run(("F", up))
            emitter.run(("B", up))
            emitter.weight(up)
        for _ in range(stage):
            emitter.run(("B", down))
            emitter.run(("B", up))
        for _ in range(pp - stage):
            emitter.run(("B", down))
            emitter.weight(down)
        emitter.rest()
        steps.append(tuple(emitter.steps))
    return Schedule(tuple(steps), *_folded(pp))


def _dual_steps(
    emitter: _Emitter, near: int, far: int, rank: int, ranks: int, pairs: int
) -> tuple[Step, ...]:
    """A device of DualPipe that is `rank` of `ranks` from its end of the pipeline.

    `near`: the chunk that micro-batches from this end pass, `far` those from the other; `pairs`
    micro-batches each. Phases as drawn in arXiv 2412.19437, Figure 5.
    """
    inner = ranks - rank - 1
    for _ in range(2 * inner):
        emitter.run(("F", near))
    for _ in range(rank + 1):
        emitter.run(("F", near))
        emitter.run(("F", far))
    for _ in range(inner):
        emitter.run(("B", far))
        emitter.weight()
        emitter.run(("F", far))
    for index in range(pairs - 2 * ranks + rank + 1):
        if index == 0 and inner == 0:
            emitter.run(("F", near))
            emitter.run(("D", far))
        else:
            emitter.run(("F", near), ("D", far))
        emitter.run(("F", far), ("D", near))
    for _ in range(inner):
        emitter.run(("D", far))
        emitter.run(("F", far), ("D", near))
    # The second half of these defers its W.
    for index in range(2 * (rank + 1)):
        kind: Kind = "B" if index > rank else "D"
        emitter.run((kind, near if index % 2 else far))
    for _ in range(inner):
        emitter.weight()
        emitter.run(("B", near))
    emitter.rest()
    return tuple(emitter.steps)


def dualpipe(pp: int, grad_acc: int) -> Schedule:
    """DualPipe: half of the micro-batches enter at each end of an even number of devices.

    Chunk c is stage c of the model for those from the front, chunk pp + c for the others.
    `grad_acc`: even, at least 2·pp.
    """
    half = grad_acc // 2
    steps = []
    for device in range(pp):
        mirrored = device >= pp // 2
        rank = pp - 1 - device if mirrored else device
        front, back = device, pp + (pp - 1 - device)
        near, far = (back, front) if mirrored else (front, back)
        steps.append(_dual_steps(_Emitter(half), near, far, rank, pp // 2, half))
    device_of = (*range(pp), *range(pp - 1, -1, -1))
    return Schedule(tuple(steps), device_of, (tuple(range(pp)), tuple(range(pp, 2 * pp))))


def dualpipe_v(pp: int, grad_acc: int) -> Schedule:
    """DualPipeV: DualPipe folded, one copy of the model in a V; `grad_acc` at least 2·pp."""
    steps = tuple(
        _dual_steps(_Emitter(grad_acc), rank, 2 * pp - 1 - rank, rank, pp, grad_acc)
        for rank in range(pp)
    )
    return Schedule(steps, *_folded(pp))
