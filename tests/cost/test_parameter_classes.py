"""Classes of parameters: split, frozen, held in another format, and what of a step each changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost import fields as f
from planner.cost.codes import ParamShard
from planner.cost.tables import Array
from planner.job.job import Job
from planner.job.optimizers import load_optimizer
from planner.job.parameter_classes import ParameterClass, parameter_classes
from planner.predict.cost_model import CostModel
from planner.predict.cost_tables import class_names
from planner.predict.ops.rows import Op, Piece
from tests.configurations import even_counts
from tests.cost.jobs import cost, make_job

Choice = Callable[[Op], str]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Adds a class to the table for the length of a test."""

    def add(like: str = "dense", **changes: object) -> str:
        entry = parameter_classes()[like].model_dump() | {"name": f"{like}, changed"} | changes
        added = ParameterClass.model_validate(entry)
        monkeypatch.setitem(parameter_classes(), added.name, added)
        return added.name

    return add


def changed(job: Job, choose: Choice) -> CostModel:
    """The job with the rows of its op table in the classes that `choose` gives them."""
    model = CostModel(job)
    model.__dict__["pieces"] = tuple(
        Piece(piece.name, tuple(replace(op, parameter_class=choose(op)) for op in piece.ops))
        for piece in model.pieces
    )
    return model


def figures(model: CostModel, **degrees: int) -> dict[str, Array]:
    """What the core says of a shape: its step, stages, linear terms and phases."""
    costed, step = cost(model, **degrees)
    _, stages = model.cost_layout(costed, 0, even_counts(model, costed, 0))
    key = costed.keys[int(costed.shapes[0, f.SHAPE["key"]])]
    shape = (costed.shapes[0], key, costed.piece_costs(0), model.job_inputs)
    terms, scalars = model.layout_terms(*shape)
    found = {"step": step, "stages": stages, "terms": terms, "scalars": scalars}
    return found | model.memory_phases(*shape)._asdict()


SHAPES = [
    ("llama-3-8b", "megatron-core", "adamw", {"tp": 2, "pp": 2, "dp": 4, "zero": 1}),
    ("llama-3-8b", "torchtitan", "adamw", {"dp": 16, "zero": 3}),
    ("llama-3-8b", "torchtitan", "adamw", {"dp": 16, "zero": 2, "grad_acc": 4}),
    ("llama-3-8b", "megatron-core", "muon", {"tp": 4, "dp": 4, "zero": 1}),
    ("mixtral-8x7b", "megatron-core", "adamw", {"ep": 8, "dp": 16, "zero": 0}),
    ("mixtral-8x7b", "torchtitan", "adamw", {"ep": 8, "dp": 16, "zero": 3, "shard": 8}),
    ("qwen3-30b-a3b", "deepspeed", "adamw", {"dp": 16, "zero": 2, "grad_acc": 2}),
    ("llama-3.2-1b", "megatron-core", "adamw", {"pp": 4, "dp": 4, "zero": 1}),
]


@pytest.mark.parametrize(("name", "framework", "optimizer", "degrees"), SHAPES)
def test_a_class_split_in_two_changes_nothing(
    name: str, framework: str, optimizer: str, degrees: dict[str, int],
    register: Callable[..., str],
) -> None:  # fmt: skip
    """Every second row moves to a copy of its class; a class without parameters is added besides,
    which alone changes no bit."""
    job = replace(make_job(name, "16xH100", framework), optimizer=load_optimizer(optimizer))
    whole = figures(CostModel(job), **degrees)
    copies = {like: register(like) for like in ("dense", "expert")}
    frozen = register(name="frozen", trained=False)

    def empty(op: Op) -> str:
        return frozen if op.name == "head/loss" else op.parameter_class

    with_empty = changed(job, empty)
    with_empty.__dict__["pieces"] = tuple(
        Piece(piece.name, tuple(
            replace(op, parameters=((0.0, ParamShard.NONE),)) if op.parameter_class == frozen
            else op for op in piece.ops
        ))
        for piece in with_empty.pieces
    )  # fmt: skip
    used = len(class_names(CostModel(job).pieces))
    assert len(class_names(with_empty.pieces)) == used + 1
    for field, values in figures(with_empty, **degrees).items():
        assert np.array_equal(values, whole[field]), field

    def halved(op: Op) -> str:
        moves = sum(map(ord, op.name)) % 2
        return copies[op.parameter_class] if moves else op.parameter_class

    model = changed(job, halved)
    assert len(class_names(model.pieces)) > used
    for field, values in figures(model, **degrees).items():
        assert values == pytest.approx(whole[field], rel=1e-12, abs=1e-12), field


def in_layers(name: str) -> Choice:
    """A class for all that layers and the embedding hold, not for the head."""
    return lambda op: op.parameter_class if op.name.startswith("head/") else name


@pytest.mark.parametrize(
    ("framework", "degrees"),
    [
        ("megatron-core", {"tp": 2, "dp": 8, "zero": 1}),
        ("megatron-core", {"tp": 2, "pp": 2, "dp": 4, "zero": 0}),
        ("torchtitan", {"dp": 16, "zero": 3}),
        ("torchtitan", {"dp": 16, "zero": 2}),
    ],
)
def test_frozen_parameters_have_no_gradients_states_reduction_or_update(
    framework: str, degrees: dict[str, int], register: Callable[..., str]
) -> None:
    """Of the head alone are left: what reduces, updates and holds state is in proportion."""
    job = make_job("llama-3-8b", "16xH100", framework)
    trained, frozen = CostModel(job), changed(job, in_layers(register(trained=False)))
    (costed, step), (other, cheaper) = cost(trained, **degrees), cost(frozen, **degrees)
    pieces, left = costed.piece_costs(0), other.piece_costs(0)
    layer, embedding, head = 0, 1, 2
    for piece in (layer, embedding):
        assert pieces[piece, f.PIECE_TRAINED] > 0.0
        gone = ("TRAINED", "WEIGHT", "WEIGHT_SAVED", "WEIGHT_GRADIENT", "TENSORS", "AFTER_CORE")
        assert not left[piece, [getattr(f, f"PIECE_{name}") for name in gone]].any()
        assert left[piece, f.PIECE_GATHERED] == pieces[piece, f.PIECE_GATHERED]
    assert (left[head] == pieces[head])[: f.PIECE_PARAMETERS].all()
    assert (
        pieces[layer, f.PIECE_BACKWARD] - left[layer, f.PIECE_BACKWARD]
        > 0.9 * (pieces[layer, f.PIECE_WEIGHT])
    )
    share = pieces[head, f.PIECE_TRAINED] / (trained.totals @ pieces[:, f.PIECE_TRAINED])
    if degrees.get("pp", 1) == 1:
        # FSDP divides frozen weights too, so ZeRO-2 gathers them all once a step.
        sent = 1.0 if degrees["zero"] == 2 else share
        for column, part in ((f.STEP_OPTIMIZER, share), (f.STEP_DP, sent)):
            assert cheaper[column] <= 1.1 * part * step[column] + 1e-3
        assert trained.framework_inputs.model_parameters * share == pytest.approx(
            frozen.framework_inputs.model_parameters, rel=0.01
        )
    assert cheaper[f.STEP_TIME] < step[f.STEP_TIME]


def stage_of(model: CostModel, **degrees: int) -> Array:
    """Columns of the only stage."""
    costed, _ = cost(model, **degrees)
    stage: Array = model.cost_layout(costed, 0, even_counts(model, costed, 0))[1][0]
    return stage


@pytest.mark.parametrize(
    ("framework", "degrees", "divided"),
    [("textbook", {}, 1), ("megatron-core", {"dp": 8, "zero": 1}, 1),
     ("torchtitan", {"dp": 8, "zero": 3}, 8), ("torchtitan", {"dp": 8, "zero": 2}, 8),
     ("deepspeed", {"dp": 8, "zero": 2}, 1), ("deepspeed", {"dp": 8, "zero": 3}, 8)],
)  # fmt: skip
def test_frozen_weights_stay_in_their_format(
    framework: str, degrees: dict[str, int], divided: int, register: Callable[..., str]
) -> None:
    """All weights frozen, in 16 bits and in 4 and a quarter (scales of blocks of 32): what a rank
    holds of them between steps, whole or as FSDP and ZeRO-3 divide it, and no optimizer's state."""
    job = make_job("llama-3.2-1b", "8xH100", framework)
    names = (
        register(name="frozen", trained=False),
        register(name="frozen, mxfp4", trained=False, format="mxfp4"),
    )
    plain, small = (changed(job, lambda _, name=name: name) for name in names)  # type: ignore[misc]
    costed, _ = cost(plain, **degrees)
    count = float(plain.totals @ costed.piece_costs(0)[:, f.PIECE_PARAMETERS])
    frozen, quantised = stage_of(plain, **degrees), stage_of(small, **degrees)
    saved = frozen[f.STAGE_WEIGHTS] - quantised[f.STAGE_WEIGHTS]
    weight_bytes = plain.framework_inputs.weight_bytes
    assert saved == pytest.approx((weight_bytes - 0.53125) * count / divided)
    assert frozen[f.STAGE_WEIGHTS] >= weight_bytes * count / divided
    for stage in (frozen, quantised):
        assert stage[f.STAGE_GRADIENTS] == stage[f.STAGE_OPTIMIZER] == 0.0
        assert stage[f.STAGE_OPTIMIZER_TEMPORARY] == 0.0


def test_weights_that_are_never_gathered_are_whole_on_every_rank(
    register: Callable[..., str],
) -> None:
    job = make_job("llama-3.2-1b", "8xH100", "torchtitan")
    names = (
        register(name="frozen", trained=False),
        register(name="held", trained=False, gathered="never"),
    )
    divided, held = (changed(job, lambda _, name=name: name) for name in names)  # type: ignore[misc]
    shape = {"dp": 8, "zero": 3}
    count = held.framework_inputs.weight_bytes * float(
        held.totals @ cost(held)[0].piece_costs(0)[:, f.PIECE_PARAMETERS]
    )
    more = stage_of(held, **shape)[f.STAGE_WEIGHTS] - stage_of(divided, **shape)[f.STAGE_WEIGHTS]
    assert more == pytest.approx(count * 7 / 8)
    assert cost(held, **shape)[1][f.STEP_FSDP] == 0.0
    assert cost(divided, **shape)[1][f.STEP_FSDP] > 0.0


def test_gradients_and_states_in_other_types(register: Callable[..., str]) -> None:
    """bf16 gradients and states in place of fp32: half of each; not reduced: no traffic."""
    job = make_job("llama-3.2-1b", "8xH100", "megatron-core")
    small = register(name="small", gradient="bf16", states="bf16")
    alone = register(name="alone", reduced=False)
    plain = stage_of(CostModel(job), dp=8, zero=1)
    halved = stage_of(changed(job, lambda _: small), dp=8, zero=1)
    for column in (f.STAGE_GRADIENTS, f.STAGE_OPTIMIZER):
        assert halved[column] == pytest.approx(plain[column] / 2)
    inputs = changed(job, lambda _: alone).framework_inputs
    assert (inputs.classes[0].gradients, inputs.classes[0].reduced) == (1.0, 0.0)


def test_a_class_says_which_words_it_does_not_know() -> None:
    for given in ({"format": "fp3"}, {"gradient": "fp3"}, {"trained": False, "states": "fp32"}):
        with pytest.raises(ValueError, match="known are"):
            ParameterClass.model_validate({"name": "new", "summary": "A class."} | given)


def test_rows_of_a_class_that_no_table_has_are_refused() -> None:
    with pytest.raises(ValueError, match="dense, expert"):
        _ = changed(make_job(), lambda _: "nowhere").framework_inputs
