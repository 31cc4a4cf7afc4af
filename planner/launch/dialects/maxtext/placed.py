"""The mesh that MaxText's settings state, on the machine that the caller names."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planner.launch.dialects.maxtext.mesh import EVERY, FSDP, OTHERS, Mesh, Sizes, filled, key
from planner.launch.dialects.maxtext.settings import Settings
from planner.launch.read.found import Hints, Problem

# Where an axis lies: the numbers that its open size follows from, in words.
_OF = {"ici": "GPUs of a node", "dcn": "nodes"}


class Placed:
    """`mesh`: the axes' sizes; `sure`: whether nothing of it was guessed."""

    def __init__(self, settings: Settings, hints: Hints) -> None:
        self._settings = settings
        self.problems: list[Problem] = []
        self.assumed: list[str] = []
        gpus, per_node = _machine(hints)
        ici = self._filled("ici", per_node)
        nodes = None if gpus is None else gpus // max(1, prod(ici.values()))
        dcn = self._filled("dcn", nodes)
        self.mesh = Mesh({axis: ici[axis] * dcn[axis] for axis in EVERY})
        self.sure = gpus is not None or not self._open
        self._say_others(ici, dcn)

    @property
    def _open(self) -> list[str]:
        names = (key(scope, axis) for scope in _OF for axis in EVERY)
        return [name for name in names if self._settings.get(name) == -1]

    def _filled(self, scope: str, whole: int | None) -> dict[str, int]:
        """The axes inside a node or between nodes; 1 where one is open and stays so."""
        stated = {axis: self._size(key(scope, axis)) for axis in EVERY}
        found = filled(stated, whole)
        if found is None:
            self.problems += self._say_open(scope, stated, whole)
        return found or {axis: max(1, size) for axis, size in stated.items()}

    def _size(self, name: str) -> int:
        size = int(self._settings.get(name))
        if size >= 1 or size == -1:
            return size
        text = f"{name} {size}: MaxText takes 1 and more, or -1"
        self.problems.append(self._settings.wrong(text, name))
        return 1

    def _say_open(self, scope: str, stated: Sizes, whole: int | None) -> Iterator[Problem]:
        names = [key(scope, axis) for axis, size in stated.items() if size == -1]
        if len(names) > 1:
            text = f"{' and '.join(names)} are both -1: MaxText leaves one open"
            yield self._settings.problem("mesh", text, *names)
        elif whole is None:
            text = f"{names[0]} is -1: it follows from the {_OF[scope]}, which nobody says"
            yield self._settings.problem(
                "mesh", text, *names, severity="missing", fix="--gpus 64xH100"
            )
        else:
            known = prod(size for size in stated.values() if size != -1)
            text = f"{names[0]} is -1, and the other axes ({known}) do not divide {whole} "
            yield self._settings.problem("mesh", text + _OF[scope], *names)

    def _say_others(self, ici: Sizes, dcn: Sizes) -> None:
        for scope, sizes in (("ici", ici), ("dcn", dcn)):
            for axis in OTHERS:
                if sizes[axis] != 1:
                    text = f"the axis {axis} is not modelled"
                    self.problems.append(self._settings.unpredictable(text, key(scope, axis)))
        if max(ici[FSDP[1]], dcn[FSDP[1]]) > 1:
            self.assumed.append("fsdp_transpose shards as fsdp does (one gather, not two)")


def _machine(hints: Hints) -> tuple[int | None, int | None]:
    """GPUs in all and of a node, as far as the caller says."""
    gpus, per_node = hints.gpus, hints.gpus_per_node
    if gpus is None and hints.nodes and per_node:
        gpus = hints.nodes * per_node
    return gpus, None if per_node is None else min(per_node, gpus or per_node)
