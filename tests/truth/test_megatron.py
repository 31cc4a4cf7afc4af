"""Megatron-Core against counts on its own modules (core 0.16.1, local spec, fusions off)."""

from __future__ import annotations

import pytest

from planner.frameworks import load_framework
from planner.memory.rank import RankShape, padded_vocabulary, piece_on_rank, rank_parameters
from planner.modules import Module
from planner.ops.context import OpContext
from planner.ops.table import pieces
from tests.truth.models import reference_model

# model mbs tp sequence-parallel recompute | bytes per layer, outside the layers. GPT rows have
# dropout and a sequence of 2048, Llama rows none and 4096.
SAVED = """
megatron-22b 4 1 0 none 7080116224 1933795328
megatron-22b 4 1 0 selective 1711407108 1933795328
megatron-22b 4 1 0 full 100663296 1933795328
megatron-22b 4 2 0 none 3791781888 1094942720
megatron-22b 4 2 0 selective 1107427332 1094942720
megatron-22b 4 2 0 full 100663296 1094942720
megatron-22b 4 2 1 none 3540058112 969080832
megatron-22b 4 2 1 selective 855703556 969080832
megatron-22b 4 2 1 full 50331648 969080832
megatron-22b 4 8 0 none 1325531136 465797120
megatron-22b 4 8 0 selective 654442500 465797120
megatron-22b 4 8 0 full 100663296 465797120
megatron-22b 4 8 1 none 885014528 245538816
megatron-22b 4 8 1 selective 213925892 245538816
megatron-22b 4 8 1 full 12582912 245538816
gpt3-175b 1 1 0 none 2868936704 549521408
gpt3-175b 1 1 0 selective 855670788 549521408
gpt3-175b 1 1 0 full 50331648 549521408
gpt3-175b 1 2 0 none 1560313856 339808256
gpt3-175b 1 2 0 selective 553680900 339808256
gpt3-175b 1 2 0 full 50331648 339808256
gpt3-175b 1 2 1 none 1434468352 276885504
gpt3-175b 1 2 1 selective 427835396 276885504
gpt3-175b 1 2 1 full 25165824 276885504
gpt3-175b 1 8 0 none 578846720 182521856
gpt3-175b 1 8 0 selective 327188484 182521856
gpt3-175b 1 8 0 full 50331648 182521856
gpt3-175b 1 8 1 none 358617088 72407040
gpt3-175b 1 8 1 selective 106958852 72407040
gpt3-175b 1 8 1 full 6291456 72407040
llama-3-8b 1 1 0 none 1933606912 2185318400
llama-3-8b 1 1 0 selective 851476484 2185318400
llama-3-8b 1 1 0 full 33554432 2187415552
llama-3-8b 1 2 0 none 1036025856 1134649344
llama-3-8b 1 2 0 selective 494960644 1134649344
llama-3-8b 1 2 0 full 33554432 1136746496
llama-3-8b 1 2 1 none 968900608 1101086720
llama-3-8b 1 2 1 selective 427835396 1101086720
llama-3-8b 1 2 1 full 16777216 1103183872
llama-3-8b 1 8 0 none 362840064 346644480
llama-3-8b 1 8 0 selective 227573764 346644480
llama-3-8b 1 8 0 full 33554432 348741632
llama-3-8b 1 8 1 none 245370880 287909888
llama-3-8b 1 8 1 selective 110104580 287909888
llama-3-8b 1 8 1 full 4194304 290007040
"""

# model tp pp ep etp stage layers | parameters of the rank, of its experts. Built without padding
# of the vocabulary.
PARAMETERS = """
llama-3-8b 1 1 1 1 0 32 8030261248 0
llama-3-8b 2 1 1 2 0 32 4015263744 0
llama-3-8b 4 2 1 4 0 16 1003880448 0
llama-3-8b 4 2 1 4 1 16 1003884544 0
llama-3-8b 8 1 1 8 0 32 1004015616 0
llama-3-70b 8 4 1 8 0 20 2270756864 0
llama-3-70b 8 4 1 8 2 20 2139422720 0
llama-3-70b 8 4 1 8 3 20 2270765056 0
llama-3-70b 4 16 1 4 0 5 1332297728 0
llama-3-70b 4 16 1 4 8 5 1069629440 0
llama-3-70b 4 16 1 4 15 5 1332305920 0
megatron-22b 8 1 1 8 0 48 2811174912 0
gpt3-175b 8 8 1 8 0 12 2822731776 0
gpt3-175b 8 8 1 8 4 12 2718922752 0
gpt3-175b 8 8 1 8 7 12 2797590528 0
mixtral-8x7b 1 1 1 1 0 32 46702792704 45097156608
mixtral-8x7b 1 1 8 1 0 32 7242780672 5637144576
mixtral-8x7b 2 2 4 1 0 16 6038880256 5637144576
mixtral-8x7b 2 2 4 1 1 16 6038884352 5637144576
mixtral-8x7b 2 1 2 2 0 32 12077764608 11274289152
"""

MODULES = {"none": Module.NOTHING, "selective": Module.CORE_ATTENTION, "full": Module.FULL}


@pytest.mark.parametrize("line", SAVED.strip().splitlines())
def test_saved_bytes(line: str) -> None:
    name, mbs, tp, sequence_parallel, recompute, layer, outside = line.split()
    is_gpt = name != "llama-3-8b"
    model = reference_model(name, **({"vocab": 51200} if is_gpt else {}))
    context = OpContext(
        model,
        load_framework("megatron-local"),
        2048 if is_gpt else 4096,
        attention="eager",
        dropout=is_gpt,
        one_sequence=mbs == "1",
    )
    shape = RankShape(
        tp=int(tp),
        mbs=int(mbs),
        sequence_parallel=sequence_parallel == "1",
        recompute=MODULES[recompute],
    )
    first, *ends = (piece_on_rank(piece, context, shape) for piece in pieces(context))
    assert first.kept == pytest.approx(float(layer), rel=1e-6)
    padding = padded_vocabulary(context, shape.tp) / model.vocab
    logits = ends[1].logits * (1 - 1 / padding)
    assert sum(piece.kept for piece in ends) - logits == pytest.approx(float(outside), rel=1e-4)


@pytest.mark.parametrize("line", PARAMETERS.strip().splitlines())
def test_parameters_of_a_rank(line: str) -> None:
    name, tp, pp, ep, etp, stage, layers, parameters, experts = line.split()
    tied = name == "gpt3-175b"
    changes = (
        {"vocab": 51200, "tied_embeddings": tied} if "gpt" in name or "megatron" in name else {}
    )
    model = reference_model(name, **changes)
    profile = load_framework("megatron-core")
    rules = profile.parallelism.model_copy(update={"vocabulary_padded": False})
    context = OpContext(model, profile.model_copy(update={"parallelism": rules}), 2048)
    shape = RankShape(tp=int(tp), ep=int(ep), etp=int(etp))
    layer, embedding, head = (rank_parameters(p, context, shape) for p in pieces(context))
    dense, routed = int(layers) * layer[0], int(layers) * layer[1]
    if stage == "0":
        dense += embedding[0]
    if int(stage) == int(pp) - 1:
        # A tied head on a stage of its own holds a copy of the vocabulary table.
        copy = model.vocab * model.hidden / int(tp) if tied and pp != "1" else 0.0
        dense += head[0] + copy
    assert dense + routed == int(parameters)
    assert routed == int(experts)
