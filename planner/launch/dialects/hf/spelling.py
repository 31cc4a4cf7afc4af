"""What DeepSpeed's file says of a configuration, for `--fix`."""

from __future__ import annotations

from typing import Any

from planner.launch.check.spelling import plainly_said
from planner.launch.options import DEEPSPEED
from planner.launch.read.found import Found
from planner.predict.evaluate import Proposal


def says(found: Found, proposal: Proposal) -> dict[str, Any]:
    """What the file says of a configuration, for `--fix`: the global batch only where it does."""
    said = plainly_said(proposal)
    if found.setting(DEEPSPEED["gbs"].key) is None:
        del said["gbs"]
    return said
