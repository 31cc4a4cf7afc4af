"""Pipeline schedules simulated pass by pass; tests check the closed forms against them.

An order lists the passes that each device runs; the simulation starts each one as soon as the
device is free and its dependencies are done. Plain Python, for tests and for charts.

Sources: GPipe (Huang et al. 2019, arXiv 1811.06965, Figure 2), 1F1B and interleaving (Narayanan et
al. 2021, arXiv 2104.04473, Figures 3 and 4), ZB-H1, ZB-H2 and ZB-V (Qi et al. 2024, arXiv
2401.10241, Figures 2, 3 and 7), DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, Figure 5) and
DualPipeV, its fold over half the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

# F forward, B gradient of the input, W gradient of the weights; D is B and W in one pass.
Kind = Literal["F", "B", "W", "D"]
_KINDS: dict[str, Kind] = {"F": "F", "B": "B", "W": "W", "D": "D"}


class SimulatedPass(NamedTuple):
    """One pass of one chunk for one micro-batch."""

    kind: Kind
    chunk: int
    microbatch: int


# Passes that run as one: the step starts when all of them can, and they end together.
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
    """Steps of every device in order, `device[chunk]`, and the `chains` in which chunks follow each
    other: one, or two if micro-batches enter the pipeline from both ends."""

    steps: tuple[tuple[Step, ...], ...]
    device: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SimulatedPipeline:
    """Start and end of each device, s, and its memory at the peak.

    `full[device]`: largest number of chunks with a finished forward whose backward has not run;
    `peak[device]`: largest value of `full + share·deferred`, where `deferred` counts chunks that
    have only their W (weight gradients) left; `played[device]`: its passes in order, with start and
    end; the passes of one step are listed one after the other.
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
    """Simulate a schedule. `times[chunk]`: seconds of the chunk's passes; `deferred_share`: memory
    that W keeps, over all of the chunk's. ValueError if the order waits for itself."""
    chain = _neighbours(schedule)
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
                ready = _ready_s(step, chain, ended)
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
            raise ValueError("deadlock: the passes in this order wait for each other")
    held = [_held(steps, deferred_share) for steps in schedule.steps]
    return SimulatedPipeline(
        start_s=tuple(start or 0.0 for start in starts),
        end_s=tuple(clock),
        full=tuple(full for full, _ in held),
        peak=tuple(peak for _, peak in held),
        played=tuple(tuple(item) for item in played),
    )


# Neighbours of each chunk in its chain: the one before, the one after.
_Neighbours = tuple[dict[int, int], dict[int, int]]


def _neighbours(schedule: Schedule) -> _Neighbours:
    pairs = [pair for chain in schedule.chains for pair in pairwise(chain)]
    return {other: one for one, other in pairs}, dict(pairs)


def _ready_s(step: Step, chain: _Neighbours, ended: dict[SimulatedPass, float]) -> float | None:
    """Time at which all dependencies of a step are done, s; None if one of them has not run yet."""
    ready = 0.0
    for item in step:
        for needed in _needed(item, chain):
            done = next((ended[option] for option in needed if option in ended), None)
            if done is None:
                return None
            ready = max(ready, done)
    return ready


def _needed(one_pass: SimulatedPass, chain: _Neighbours) -> list[tuple[SimulatedPass, ...]]:
    """Passes that must end before a pass starts. Each is given as a tuple of alternatives, of which
    the schedule contains one: the backward that a later chunk runs is B or D."""
    kind, chunk, microbatch = one_pass
    earlier, later = chain
    if kind == "F":
        first = chunk not in earlier
        return [] if first else [(SimulatedPass("F", earlier[chunk], microbatch),)]
    if kind == "W":
        return [(SimulatedPass("B", chunk, microbatch),)]
    if chunk not in later:
        return [(SimulatedPass("F", chunk, microbatch),)]
    nearer = later[chunk]
    return [(SimulatedPass("B", nearer, microbatch), SimulatedPass("D", nearer, microbatch))]


def _held(steps: Sequence[Step], share: float) -> tuple[int, float]:
    """(largest number of full chunks, largest value of full + share·deferred) while a device runs
    its passes in order. Full: its forward ran, its backward did not; deferred: its B ran, its W did
    not."""
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
    """The devices' chunks and their chain if chunk c is on device c mod pp."""
    chunks = range(pp * vpp)
    return tuple(chunk % pp for chunk in chunks), (tuple(chunks),)


def _folded(pp: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The devices' chunks and their chain in a V: chunks 0..pp-1 on ascending devices, pp..2pp-1 on
    descending ones."""
    chunks = range(2 * pp)
    return tuple(min(chunk, 2 * pp - 1 - chunk) for chunk in chunks), (tuple(chunks),)


def _in_groups(pp: int, vpp: int, grad_acc: int, *, backward: bool) -> list[tuple[int, int]]:
    """(chunk of the device, micro-batch) in interleaved order: pp micro-batches through one chunk,
    then the same through the next."""
    order = []
    for start in range(0, grad_acc, pp):
        group = range(start, min(grad_acc, start + pp))
        rounds = range(vpp - 1, -1, -1) if backward else range(vpp)
        order += [(chunk, mb) for chunk in rounds for mb in group]
    return order


def _in_turn(
    pp: int, vpp: int, grad_acc: int, warm_up: Callable[[int], int], later: int | None = None
) -> Schedule:
    """A schedule in which each device runs some forwards first (warm-up), then one forward and one
    backward in turn, then the remaining backwards.

    `warm_up`: gives the number of warm-up forwards of a stage for the number of stages behind it.
    `later`: None if the backward is one pass; else the weight gradients (W) are a pass of their
    own, which a stage runs `later` · stage chunks after its B.
    """
    forward = _in_groups(pp, vpp, grad_acc, backward=False)
    backward = _in_groups(pp, vpp, grad_acc, backward=True)
    steps = []
    for stage in range(pp):
        warm = warm_up(pp - stage - 1)

        def passes(kind: Kind, entries: list[tuple[int, int]], stage: int = stage) -> list[Step]:
            return [(SimulatedPass(kind, item * pp + stage, mb),) for item, mb in entries]

        behind = None if later is None else later * stage
        order = passes("F", forward[:warm])
        for index in range(len(backward)):
            order += passes("F", forward[warm + index : warm + index + 1])
            order += passes("D" if behind is None else "B", backward[index : index + 1])
            if behind is not None and index >= behind:
                order += passes("W", backward[index - behind : index - behind + 1])
        if behind is not None:
            order += passes("W", backward[max(0, len(backward) - behind) :])
        steps.append(tuple(order))
    return Schedule(tuple(steps), *_straight(pp, vpp))


def gpipe(pp: int, grad_acc: int) -> Schedule:
    """All forward passes, then all backward passes."""
    return _in_turn(pp, 1, grad_acc, lambda _behind: grad_acc)


def one_forward_one_backward(pp: int, grad_acc: int) -> Schedule:
    """1F1B: pp - stage - 1 forwards to warm up, then one of each in turn."""
    return _in_turn(pp, 1, grad_acc, lambda behind: behind)


def interleaved(pp: int, vpp: int, grad_acc: int) -> Schedule:
    """Interleaved 1F1B; `grad_acc` a multiple of pp."""
    return _in_turn(pp, vpp, grad_acc, lambda behind: 2 * behind + (vpp - 1) * pp)


def zero_bubble(pp: int, grad_acc: int, vpp: int = 1, rounds: int = 1) -> Schedule:
    """ZB-H1 (`rounds` 1) and ZB-H2 (2): B as early as possible, W later by rounds·stage chunks.

    ZB-H2 warms up with twice the forwards. With chunks, ZB-H1 follows the interleaved order (the
    InterleavedZeroBubble schedule of torch.distributed.pipelining).
    """
    return _in_turn(pp, vpp, grad_acc, lambda behind: rounds * behind + (vpp - 1) * pp, rounds)


class _Emitter:
    """Emits the passes of one device; micro-batches are counted per chunk and kind."""

    def __init__(self, grad_acc: int) -> None:
        self.grad_acc = grad_acc
        self.count: dict[tuple[str, int], int] = {}
        self.waiting: list[SimulatedPass] = []
        self.steps: list[Step] = []

    def _next(self, kind: Kind, chunk: int) -> SimulatedPass | None:
        """The next pass of a kind in a chunk, for its next micro-batch; None after the last. B and
        D share one count."""
        counter = ("F" if kind == "F" else "B", chunk)
        index = self.count.get(counter, 0)
        self.count[counter] = index + 1
        return SimulatedPass(kind, chunk, index) if index < self.grad_acc else None

    def run(self, *wanted: tuple[Kind, int]) -> None:
        """Add one step that contains the next pass of each wanted kind and chunk, as far as any are
        left; none left adds no step. The W of each B is deferred."""
        step = [
            following
            for kind, chunk in wanted
            if (following := self._next(kind, chunk)) is not None
        ]
        self.waiting += [item._replace(kind="W") for item in step if item.kind == "B"]
        if step:
            self.steps.append(tuple(step))

    def weight(self, chunk: int | None = None) -> None:
        """Add a step with the W that has been deferred longest, of the given chunk or of any;
        nothing if none is waiting."""
        for one_pass in self.waiting:
            if chunk is None or one_pass.chunk == chunk:
                self.waiting.remove(one_pass)
                self.steps.append((one_pass,))
                return

    def play(self, times: int, order: str, chunks: tuple[int, int]) -> None:
        """Emit an order of passes, `times` times: `F0+D1 W0 W`. The letter is the kind of pass
        (`Kind`), the digit an index into `chunks`. Passes joined by a plus are one step; W without
        a digit is the W that has been deferred longest."""
        for word in order.split() * times:
            if word[0] == "W":
                self.weight(chunks[int(word[1])] if word[1:] else None)
            else:
                self.run(*((_KINDS[one[0]], chunks[int(one[1])]) for one in word.split("+")))

    def rest(self) -> tuple[Step, ...]:
        """Emit all W that are left; then return every step."""
        while self.waiting:
            self.weight()
        return tuple(self.steps)


def zb_v(pp: int, grad_acc: int) -> Schedule:
    """ZB-V: two chunks on each device in a V; W at once except at the end of the step."""
    steps = []
    for stage in range(pp):
        emitter, chunks = _Emitter(grad_acc), (stage, 2 * pp - 1 - stage)
        for times, order in (
            (2 * (pp - stage) - 1, "F0"),
            (stage, "F1 F0"),
            (pp - stage, "F1 B1 W1"),
            (max(grad_acc, 2 * pp - 1) - pp, "F0 B0 W0 F1 B1 W1"),
            (stage, "B0 B1"),
            (pp - stage, "B0 W0"),
        ):
            emitter.play(times, order, chunks)
        steps.append(emitter.rest())
    return Schedule(tuple(steps), *_folded(pp))


def _dual_steps(
    emitter: _Emitter, near: int, far: int, rank: int, ranks: int, pairs: int
) -> tuple[Step, ...]:
    """Steps of a DualPipe device that is `rank` of `ranks` from its end of the pipeline.

    `near`: the chunk for micro-batches that enter at this end, `far`: for those from the other end,
    `pairs` micro-batches each. Phases as in arXiv 2412.19437, Figure 5.
    """
    inner, chunks = ranks - rank - 1, (near, far)
    both = pairs - 2 * ranks + rank + 1
    alone = min(max(both, 0), int(inner == 0))
    for times, order in (
        (2 * inner, "F0"),
        (rank + 1, "F0 F1"),
        (inner, "B1 W F1"),
        (alone, "F0 D1 F1+D0"),
        (both - alone, "F0+D1 F1+D0"),
        (inner, "D1 F1+D0"),
    ):
        emitter.play(times, order, chunks)
    # The second half of these passes defers W.
    for index in range(2 * (rank + 1)):
        emitter.play(1, f"{'B' if index > rank else 'D'}{1 - index % 2}", chunks)
    emitter.play(inner, "W B0", chunks)
    return emitter.rest()


def dualpipe(pp: int, grad_acc: int) -> Schedule:
    """DualPipe: half of the micro-batches enter at each end of an even number of devices.

    Chunk c is stage c of the model for micro-batches from the front, chunk pp + c for the others.
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
