"""Which optimizers DeepSpeed makes from its file, and which of them ZeRO takes.

Read in DeepSpeed 0.19.8: runtime/config.py (DEEPSPEED_OPTIMIZERS), runtime/engine.py
(_configure_basic_optimizer, _do_optimizer_sanity_check), runtime/zero/utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.launch.read.document import Document
from planner.launch.read.found import Edit, Problem, nearest

# In any spelling.
_DEEPSPEED = ("adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon")
# Those that releases before 0.19 had besides.
_OF_OLDER_RELEASES = ("onebitadam", "zerooneadam", "onebitlamb")
# Else a class of torch.optim, as it is spelt there.
_TORCH = (
    "ASGD", "Adadelta", "Adafactor", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD", "SparseAdam",
)  # fmt: skip
_TESTED_WITH_ZERO = ("adagrad", "adam", "adamw", "lion", "muon")
_TYPE, _UNTESTED = "optimizer.type", "zero_allow_untested_optimizer"


def optimizer_problems(document: Document, stage: int) -> Iterator[Problem]:
    """What DeepSpeed refuses of `optimizer.type` once its engine is built."""
    name = document.get(_TYPE)
    if name in (None, "auto"):
        return
    if str(name).lower() in _OF_OLDER_RELEASES:
        text = f"{_TYPE} {name!r}: only DeepSpeed before 0.19 has it, and it is not modelled"
        yield document.unpredictable(text, _TYPE)
    elif str(name).lower() not in _DEEPSPEED and name not in _TORCH:
        close = nearest(str(name), ("AdamW", "Adam", "Lion", *_TORCH)) or "AdamW"
        text = (
            f"{_TYPE} {name!r}: neither DeepSpeed 0.19 nor torch.optim has it (found out when the "
            "engine is built)"
        )
        edits = (Edit(_TYPE, close),)
        yield document.problem("optimizer-unknown", text, _TYPE, edits=edits, late=True)
    elif (
        stage and str(name).lower() not in _TESTED_WITH_ZERO and document.get(_UNTESTED) is not True
    ):
        text = f"{_TYPE} {name!r} with ZeRO needs {_UNTESTED} (found out when the engine is built)"
        edits = (Edit(_UNTESTED, "true"),)
        yield document.problem("zero-untested-optimizer", text, _TYPE, edits=edits, late=True)
