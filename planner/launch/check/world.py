"""Checks that the numbers of nodes, GPUs and processes in launch files agree with each other and
fit the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from hardware.schema import Cluster
from planner.job.quantities import plural
from planner.job.request_fields import Started
from planner.launch.read.command import counting_variables
from planner.launch.read.found import Count, CountKind, Edit, Found, Problem, Severity
from planner.launch.read.world import ALONE
from planner.launch.registry import formats

RULE = "world-size"
_IDLE = "would stay idle"
# Launchers that start one process per GPU themselves: the tasks of an srun around them are nodes.
_PER_GPU = ("torchrun", "torch.distributed", "deepspeed", "accelerate")


def world_problems(found: Found, cluster: Cluster | None) -> list[Problem]:
    """Problems: launchers that disagree with each other, with the degrees, or with the machine."""
    counts = _as_nodes_and_processes(found.counts)
    if none := [count for count in counts if count.number < 1]:
        return [_problem(f"{_words(count)}: at least 1 is needed", (count,)) for count in none]
    nodes = None
    if cluster is not None and _first(counts, "processes a node", "gpus a node") is not None:
        # The machine's nodes, if the files say what each node starts.
        nodes = -(-cluster.num_gpus // cluster.gpus_per_node)
    problems = [*_disagreements(counts, nodes), *_products(counts), *_indivisible(found, counts)]
    # Counts that disagree give no total to compare with the machine, unless GPUs only stay idle.
    if cluster is not None and all(_IDLE in problem.text for problem in problems):
        of_machine = list(_machine(found, counts, cluster, nodes))
        # Report idle GPUs only once.
        problems = of_machine if any(_IDLE in one.text for one in of_machine) else problems
        problems = list(dict.fromkeys((*problems, *of_machine)))
    written = formats().get(found.format)
    if written and not written.is_written:
        return [replace(problem, edits=()) for problem in problems]
    return problems


def stated_gpus(found: Found) -> int | None:
    """The number of GPUs that the files use: their processes, otherwise the GPUs that they state.
    None if they state neither."""
    counts = _as_nodes_and_processes(found.counts)
    stated = processes(counts)
    if stated is None:
        stated = _in_all(counts, ("gpus",), ("processes a node", "gpus a node"))
    return found.world if stated is None else stated


def started(found: Found, cluster: Cluster) -> Started | None:
    """The nodes and processes that the files start, if these use only part of the machine's GPUs or
    more nodes than it has. None otherwise, if the files do not say, or if they do not fit the
    machine. A node count that only the environment gives is taken to be the machine's."""
    use = _stated_start(found, cluster)
    if use is None or min(use.nodes, use.per_node) < 1 or use.per_node > cluster.gpus_per_node:
        return None
    spread = use.nodes > cluster.num_nodes
    if use.processes > cluster.num_gpus or (spread and cluster.nics_per_node == 0):
        return None
    return use if spread or use.processes < cluster.num_gpus else None


def _stated_start(found: Found, cluster: Cluster) -> Started | None:
    """The nodes and processes that the files state for certain; None if they do not, or if the
    total contradicts them."""
    sure = [count for count in _as_nodes_and_processes(found.counts) if not count.eased]
    nodes, total = _first(sure, "nodes"), _first(sure, "processes")
    per_node = _first(sure, "processes a node")
    if per_node is not None:
        use = Started(nodes.number if nodes else cluster.num_nodes, per_node.number)
    elif total is not None or (total := _stated_degrees(found)) is not None:
        # If no number of nodes is stated, fill the first nodes.
        number = max(1, nodes.number if nodes else -(-total.number // cluster.gpus_per_node))
        use = Started(number, total.number // number)
    else:
        return None
    return use if total is None or total.number == use.processes else None


def _stated_degrees(found: Found) -> Count | None:
    """The number of processes that the degrees need, for files that state no other count. None if
    they state one, or do not state dp."""
    setting = found.where.get("dp")
    if found.counts or found.dp is None or setting is None:
        return None
    number = found.dp * found.tp * found.pp * found.cp
    return Count("processes", number, setting.key, setting)


def processes(counts: Sequence[Count]) -> int | None:
    """The total number of processes; None if the files do not state it."""
    return _in_all(counts, ("processes",), ("processes a node",))


def _in_all(
    counts: Sequence[Count], whole: Sequence[CountKind], of_a_node: Sequence[CountKind]
) -> int | None:
    """The total: a stated count of the kinds `whole`, otherwise nodes times a count of the kinds
    `of_a_node`. None if the files state neither."""
    total, per_node = _first(counts, *whole), _first(counts, *of_a_node)
    nodes = _first(counts, "nodes")
    if total is not None:
        return total.number
    return per_node.number * nodes.number if per_node and nodes else None


def _as_nodes_and_processes(counts: Sequence[Count]) -> tuple[Count, ...]:
    """The counts with tasks of Slurm and MPI counted as processes. They are left out if each task
    starts torchrun, as are counts that srun or mpirun overrides."""
    inner = any(count.who.startswith(_PER_GPU) for count in counts)
    kinds: dict[CountKind, CountKind] = {"tasks": "processes", "tasks a node": "processes a node"}
    may_go = {*kinds, "nodes"}
    kept = (one for one in counts if one.kind not in may_go or not _is_overridden(one, counts))
    return tuple(
        replace(count, kind=kinds.get(count.kind, count.kind))
        for count in kept
        if not (inner and count.kind in kinds)
    )


def _is_overridden(count: Count, counts: Sequence[Count]) -> bool:
    """Whether srun or mpirun overrides this count of an #SBATCH line. A number of nodes is only
    overridden by a smaller one."""
    directive = count.who.startswith("#SBATCH")
    return directive and any(
        other.kind == count.kind
        and other.who.startswith(("srun", "mpirun"))
        and (count.kind != "nodes" or other.number < count.number)
        for other in counts
    )


def _first(counts: Sequence[Count], *kinds: CountKind) -> Count | None:
    return next((count for count in counts if count.kind in kinds), None)


def _disagreements(counts: Sequence[Count], nodes: int | None) -> Iterator[Problem]:
    """Problems: different numbers for the same quantity (nodes, processes, or processes or GPUs per
    node)."""
    groups: tuple[tuple[CountKind, ...], ...] = (
        ("nodes",), ("processes", "gpus"), ("processes a node", "gpus a node"),
    )  # fmt: skip
    for kinds in groups:
        same = [count for count in counts if count.kind in kinds]
        for one, other in pairwise(same):
            if one.number != other.number:
                text = f"{_words(one)} and {_words(other)} do not agree{_meaning(one, other)}"
                edits = _to(same, nodes or one.number, "nodes") if kinds == ("nodes",) else ()
                yield _problem(text, (one, other), edits)


def _meaning(one: Count, other: Count) -> str:
    """The consequence if the number of processes differs from that of GPUs, as the end of a
    sentence; empty if the counts are of the same kind."""
    if one.kind == other.kind:
        return ""
    of_gpus, of_processes = (one, other) if one.kind.startswith("gpus") else (other, one)
    spare = of_gpus.number - of_processes.number
    return (
        f": {plural(spare, 'GPU')} {_IDLE}" if spare > 0 else ": each GPU can run only one process"
    )


def _products(counts: Sequence[Count]) -> Iterator[Problem]:
    """Problems: the total number of processes is not nodes times processes per node."""
    total = _first(counts, "processes") or _first(counts, "gpus")
    per_node = _first(counts, "processes a node", "gpus a node")
    nodes = _first(counts, "nodes")
    if total is None or nodes is None:
        return
    if per_node is None:
        if nodes.number and total.number % nodes.number:
            yield _problem(f"{_words(total)} is not a multiple of {_words(nodes)}", (total, nodes))
        return
    spare = per_node.number * nodes.number - total.number
    if spare:
        text = f"{_words(total)} is not {_words(nodes)} times {_words(per_node)}"
        if spare > 0 and per_node.kind == "gpus a node":
            text += f": {plural(spare, 'GPU')} {_IDLE}"
        yield _problem(text, (total, nodes, per_node))


def _indivisible(found: Found, counts: Sequence[Count]) -> Iterator[Problem]:
    """A problem: the degrees do not divide the number of processes."""
    world, replica = processes(counts), found.tp * found.pp * found.cp
    if world is None or world % replica == 0 or found.format == "plan":
        return
    yield _problem(
        f"the files start {world:,} processes, which tp·pp·cp = {found.tp}·{found.pp}·{found.cp}"
        f" = {replica:,} does not divide",
        _counting(counts),
    )


def _machine(
    found: Found, counts: Sequence[Count], cluster: Cluster, nodes: int | None
) -> Iterator[Problem]:
    """Problems: more processes than the machine has GPUs, or fewer, which leaves GPUs idle."""
    use = started(found, cluster)
    world, gpus = use.processes if use else processes(counts) or found.world, cluster.num_gpus
    crowded = _first([count for count in counts if not count.eased], "processes a node")
    if crowded and crowded.number > cluster.gpus_per_node and (world or 0) <= gpus:
        text = f"{_words(crowded)} is more than the {cluster.gpus_per_node:,} GPUs of a node"
        yield _problem(f"{text}: each GPU can run only one process", (crowded,))
        return
    if world is None or (world == gpus and not use):
        return
    place = found.where.get("world") or found.where.get("dp")
    stated = _counting(counts)
    # If no number of nodes is given, torchrun takes it from the environment (PET_NNODES).
    sure = processes(counts) is not None and not any(count.eased for count in stated)
    total = _first(counts, "processes", "gpus")
    edits: tuple[Edit, ...] = ()
    if nodes and total is None:
        a_node = _to(counts, gpus // nodes, "processes a node", "gpus a node")
        edits = _to(counts, nodes, "nodes") + a_node
    text = f"the files start {plural(world, 'process')}, but the check is for {gpus:,} GPUs"
    if use:
        text = _part_words(use, cluster, by_degrees=not counts)
    yield Problem(
        "launched-processes",
        text,
        "error" if sure and not use else "warning",
        tuple(dict.fromkeys(count.setting.place for count in stated))
        or ((place.place,) if place else ()),
        fix=_machine_fix(edits or _to(counts, gpus, "processes"), world, use, gpus),
        # In many programs more processes change the global batch, so --fix does not do this.
        edits=() if use else edits,
    )


def _part_words(use: Started, cluster: Cluster, *, by_degrees: bool) -> str:
    """A sentence on idle GPUs, or on nodes that the machine does not have. `by_degrees`: whether
    the number of processes follows only from the degrees."""
    idle, there = cluster.num_gpus - use.processes, f"{cluster.num_gpus:,} GPUs"
    where = f" ({use.per_node:,} on each of {use.nodes:,} nodes)" if use.nodes > 1 else ""
    does = "the degrees in the file are for" if by_degrees else "the files start"
    text = f"{does} {plural(use.processes, 'process')}{where} on a machine of {there}"
    are = "is" if use.processes == 1 else "are"
    if use.nodes > cluster.num_nodes:
        nodes = "1 node" if cluster.num_nodes == 1 else f"{cluster.num_nodes:,} nodes"
        return f"{text}, which is {nodes}: the prediction is for the nodes that the files ask for"
    used = f"the prediction is for the {use.processes:,} that {are} used"
    return f"{text}: {plural(idle, 'GPU')} {_IDLE}, and {used}"


def _machine_fix(edits: Sequence[Edit], world: int, use: Started | None, gpus: int) -> str:
    """Advice: start one process for each GPU, or check the launch for fewer GPUs."""
    if use is None:
        return _fix(edits) or f"--gpus with {plural(world, 'GPU')}"
    if world == gpus:
        return f"--gpus {use.nodes}x{use.per_node}xNAME, with the name of the GPU"
    more = _fix(edits) or f"degrees for {plural(gpus, 'process')}"
    alone = f"--gpus with {plural(world, 'GPU')} for these only"
    return f"{more} to use every GPU, or {alone}"


def _counting(counts: Sequence[Count]) -> tuple[Count, ...]:
    """The counts that determine the number of processes."""
    return tuple(count for count in counts if not count.kind.startswith("gpus"))


def _words(count: Count) -> str:
    return f"{count.who} {count.number:,}"


def _to(counts: Sequence[Count], number: int, *kinds: CountKind) -> tuple[Edit, ...]:
    """Edits that set every count of the given kinds to a number. Counts that already have it are
    left out."""
    return tuple(
        Edit(count.who, _spelled(count.who, number))
        for count in counts
        if count.kind in kinds and count.number != number and count.who != ALONE
    )


def _spelled(who: str, number: int) -> str:
    """A count in the syntax of its setting: VISIBLE_DEVICES takes a list of GPUs."""
    lists = who.endswith("VISIBLE_DEVICES")
    return ",".join(map(str, range(number))) if lists else str(number)


def _fix(edits: Sequence[Edit]) -> str:
    """Advice as a text: options and variables with their corrected values; empty without edits."""
    return ", ".join(
        f"{edit.key}{'=' if edit.key in counting_variables() else ' '}{edit.value}"
        for edit in edits
    )


def _problem(text: str, counts: Sequence[Count], edits: tuple[Edit, ...] = ()) -> Problem:
    """A problem with counts: an error, or a warning if the environment may set one of them or if
    the only effect is idle GPUs."""
    runs = _IDLE in text or any(count.eased for count in counts)
    severity: Severity = "warning" if runs else "error"
    places = tuple(dict.fromkeys(count.setting.place for count in counts))
    return Problem(RULE, text, severity, places, _fix(edits), edits)
