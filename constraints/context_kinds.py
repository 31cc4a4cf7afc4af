"""Names of the ways in which context parallelism exchanges (Megatron's --cp-comm-type)."""

from __future__ import annotations

from typing import Literal

ContextKind = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
