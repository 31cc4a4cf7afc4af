"""Bytes of the tensors that are alive while a framework runs, by what they are."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Bytes of storages that operations made under this mode and that still live, of tensors that
    `counts` picks. `peak`: the most since the last `restart`."""

    def __init__(self, counts: Callable[[Any], bool]) -> None:
        super().__init__()
        self.counts, self.live, self.peak = counts, 0, 0
        self._known: set[int] = set()

    def restart(self) -> None:
        """Forget the peak."""
        self.peak = self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key = int(storage._cdata)
        if key in self._known or not self.counts(tensor):
            return
        size = int(storage.nbytes())
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
