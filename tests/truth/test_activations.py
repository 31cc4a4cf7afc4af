"""Bytes saved for backward against counts made with PyTorch saved-tensor hooks.

Models of transformers 5.23 and a nanoGPT-like module, on fake tensors: unique bytes per layer
and outside the layers, and the low-precision weight copies of autocast.
"""

from __future__ import annotations

import pytest

from planner.frameworks import load_framework
from planner.memory.rank import RankShape, piece_on_rank, saved_bytes
from planner.modules import Module
from planner.ops.context import OpContext
from planner.ops.rows import Piece
from planner.ops.table import pieces
from tests.truth.models import reference_model

# model variant seq mbs mode attention checkpointing | bytes per layer, outside the layers |
# bytes of weight casts per layer, outside.
COUNTED = """
gpt2 - 1024 8 bf16 flash none 352845848 1672192004 0 0
gpt2 - 1024 8 bf16 flash full 12582912 1672192004 0 0
gpt2 - 1024 8 bf16 eager none 553779200 1672192004 0 0
gpt2 - 1024 8 bf16 eager full 12582912 1688969220 0 0
gpt2 - 1024 8 amp flash none 529006616 1684774916 14155776 77194752
gpt2 - 1024 8 amp flash full 25165824 1684774916 0 77194752
gpt2 - 1024 8 amp eager none 1132593152 1684774916 14155776 77194752
gpt2 - 1024 8 amp eager full 25165824 1718329348 0 77194752
gpt2 - 1024 8 fp32 eager none 1107427328 1697357828 0 0
gpt2 - 1024 8 fp32 eager full 25165824 1730912260 0 0
llama-7b - 2048 1 bf16 flash none 381960216 330342412 0 0
llama-7b - 2048 1 bf16 flash full 16777216 329293836 0 0
llama-7b - 2048 1 bf16 eager none 1187004416 330342412 0 0
llama-7b - 2048 1 bf16 eager full 16777216 329293836 0 0
llama-7b - 2048 1 amp flash none 465846296 348168204 404750336 262144000
llama-7b - 2048 1 amp flash full 33554432 346071052 0 262144000
llama-7b - 2048 1 amp eager none 1270890496 348168204 404750336 262144000
llama-7b - 2048 1 amp eager full 33554432 346071052 0 262144000
llama-7b - 2048 1 fp32 eager none 1233141760 364945420 0 0
llama-7b - 2048 1 fp32 eager full 33554432 362848268 0 0
llama-3-8b - 8192 1 bf16 flash none 1645281304 4475486220 0 0
llama-3-8b - 8192 1 bf16 flash full 67108864 4471291916 0 0
llama-3-8b - 8192 1 bf16 eager none 14629797888 4475486220 0 0
llama-3-8b - 8192 1 bf16 eager full 67108864 4471291916 0 0
llama-3-8b - 8192 1 amp flash none 1980825624 4546789388 436207616 1050673152
llama-3-8b - 8192 1 amp flash full 134217728 4538400780 0 1050673152
llama-3-8b - 8192 1 amp eager none 14965342208 4546789388 436207616 1050673152
llama-3-8b - 8192 1 amp eager full 134217728 4538400780 0 1050673152
llama-3-8b - 8192 1 fp32 eager none 11811225600 4613898252 0 0
llama-3-8b - 8192 1 fp32 eager full 134217728 4605509644 0 0
llama-3-8b - 512 16 bf16 flash none 1645281304 4471554052 0 0
llama-3-8b - 512 16 bf16 flash full 67108864 4471291908 0 0
llama-3-8b - 512 16 bf16 eager none 2550202368 4471554052 0 0
llama-3-8b - 512 16 bf16 eager full 67108864 4471291908 0 0
llama-3-8b - 512 16 amp flash none 1980825624 4538925060 436207616 1050673152
llama-3-8b - 512 16 amp flash full 134217728 4538400772 0 1050673152
llama-3-8b - 512 16 amp eager none 2885746688 4538925060 436207616 1050673152
llama-3-8b - 512 16 amp eager full 134217728 4538400772 0 1050673152
llama-3-8b - 512 16 fp32 eager none 3758161920 4606033924 0 0
llama-3-8b - 512 16 fp32 eager full 134217728 4605509636 0 0
llama-3-70b - 4096 1 fp32 eager none 7516225536 2508275724 0 0
llama-3-70b - 4096 1 fp32 eager full 134217728 2504081420 0 0
llama-3-70b - 4096 2 bf16 flash none 3256942616 4741824516 0 0
llama-3-70b - 4096 2 bf16 flash full 134217728 4739727364 0 0
llama-3-70b - 4096 2 bf16 eager none 16374628352 4741824516 0 0
llama-3-70b - 4096 2 bf16 eager full 134217728 4739727364 0 0
llama-3-70b - 4096 2 amp flash none 3928031256 4878139396 1711276032 2101346304
llama-3-70b - 4096 2 amp flash full 268435456 4873945092 0 2101346304
llama-3-70b - 4096 2 amp eager none 17045716992 4878139396 1711276032 2101346304
llama-3-70b - 4096 2 amp eager full 268435456 4873945092 0 2101346304
qwen3-8b - 2048 1 bf16 flash none 441008152 1312858124 0 0
qwen3-8b - 2048 1 bf16 flash full 16777216 1311809548 0 0
qwen3-8b - 2048 1 bf16 eager none 1271218176 1312858124 0 0
qwen3-8b - 2048 1 bf16 eager full 16777216 1311809548 0 0
qwen3-8b - 2048 1 amp flash none 524894232 1330683916 385875968 1244659712
qwen3-8b - 2048 1 amp flash full 33554432 1328586764 0 1244659712
qwen3-8b - 2048 1 amp eager none 1355104256 1330683916 385875968 1244659712
qwen3-8b - 2048 1 amp eager full 33554432 1328586764 0 1244659712
qwen3-8b - 2048 1 fp32 eager none 1359298560 1347461132 0 0
qwen3-8b - 2048 1 fp32 eager full 33554432 1345363980 0 0
phi-3-mini - 2048 1 fp32 eager none 1107312640 339779596 0 0
phi-3-mini - 2048 1 fp32 eager full 25165824 338206732 0 0
phi-3-mini - 4096 1 bf16 flash none 646479896 627654668 0 0
phi-3-mini - 4096 1 bf16 flash full 25165824 626081804 0 0
phi-3-mini - 4096 1 bf16 eager none 3842015232 627654668 0 0
phi-3-mini - 4096 1 bf16 eager full 25165824 626081804 0 0
phi-3-mini - 4096 1 amp flash none 696811544 654393356 226492416 197001216
phi-3-mini - 4096 1 amp flash full 50331648 651247628 0 197001216
phi-3-mini - 4096 1 amp eager none 3892346880 654393356 226492416 197001216
phi-3-mini - 4096 1 amp eager full 50331648 651247628 0 197001216
phi-3-mini - 4096 2 bf16 flash none 1292959768 1253736452 0 0
phi-3-mini - 4096 2 bf16 flash full 50331648 1252163588 0 0
phi-3-mini - 4096 2 bf16 eager none 7583367168 1253736452 0 0
phi-3-mini - 4096 2 bf16 eager full 50331648 1252163588 0 0
phi-3-mini - 4096 2 amp flash none 1393623064 1305640964 226492416 197001216
phi-3-mini - 4096 2 amp flash full 100663296 1302495236 0 197001216
phi-3-mini - 4096 2 amp eager none 7684030464 1305640964 226492416 197001216
phi-3-mini - 4096 2 amp eager full 100663296 1302495236 0 197001216
mixtral-8x7b - 4096 2 bf16 flash none 2854191160 1319272452 0 0
mixtral-8x7b - 4096 2 bf16 flash full 67108864 1317175300 0 0
mixtral-8x7b - 4096 2 bf16 eager none 9396256800 1319272452 0 0
mixtral-8x7b - 4096 2 bf16 eager full 67108864 1317175300 0 0
gpt2 dropout 1024 4 amp flash none 270794776 845537284 14155776 77194752
gpt2 dropout 1024 4 bf16 flash none 182714392 839245828 0 0
gpt2 dropout 1024 4 amp eager none 622919680 845537284 14155776 77194752
gpt2 dropout 1024 4 bf16 eager none 434176000 839245828 0 0
nanogpt-124m - 1024 12 amp flash none 340525080 3765641220 14155776 77266944
nanogpt-124m dropout 1024 12 amp flash none 359399448 3775078404 14155776 77266944
nanogpt-124m - 1024 12 amp flash full 37748736 3765641220 0 77266944
nanogpt-124m - 1024 12 amp eager none 1246953472 3765641220 14155776 77266944
nanogpt-124m dropout 1024 12 amp eager none 1416822784 3775078404 14155776 77266944
nanogpt-124m - 1024 12 amp eager full 37748736 3765641220 0 77266944
nanogpt-124m - 1024 12 bf16 flash none 302776344 1274224642 0 0
nanogpt-124m dropout 1024 12 bf16 flash none 321650712 1283661826 0 0
nanogpt-124m - 1024 12 bf16 flash full 18874368 1274224642 0 0
nanogpt-124m - 1024 12 bf16 eager none 605224960 1274224642 0 0
nanogpt-124m dropout 1024 12 bf16 eager none 1077084160 1283661826 0 0
nanogpt-124m - 1024 12 bf16 eager full 18874368 1274224642 0 0
nanogpt-124m - 1024 12 fp32 eager none 1209204736 2548244484 0 0
nanogpt-124m dropout 1024 12 fp32 eager none 1983053824 2557681668 0 0
nanogpt-124m - 1024 12 fp32 eager full 37748736 2548244484 0 0
nanogpt-774m - 1024 1 amp flash none 47284248 316956676 39321600 128778240
nanogpt-774m dropout 1024 1 amp flash none 49905688 318267396 39321600 128778240
nanogpt-774m - 1024 1 amp flash full 5242880 316956676 0 128778240
nanogpt-774m - 1024 1 amp eager none 174080000 316956676 39321600 128778240
nanogpt-774m dropout 1024 1 amp eager none 197672960 318267396 39321600 128778240
nanogpt-774m - 1024 1 amp eager full 5242880 316956676 0 128778240
nanogpt-774m - 1024 1 fp32 eager none 168837120 216555524 0 0
nanogpt-774m dropout 1024 1 fp32 eager none 276316160 217866244 0 0
nanogpt-774m - 1024 1 fp32 eager full 5242880 216555524 0 0
"""
# The count calls a tensor saved if an operation of the graph holds it; these are handed to
# checkpointed layers as arguments instead.
_ARGUMENTS = {"layers/rotary", "layers/mask"}


def context_of(row: list[str]) -> tuple[OpContext, RankShape]:
    model, variant, seq, mbs, mode, attention, checkpointing = row[:7]
    profile = load_framework("nanogpt" if model.startswith("nanogpt") else "hf-transformers")
    context = OpContext(
        reference_model(model),
        profile,
        int(seq),
        attention="eager" if attention == "eager" else "flash",
        dropout=variant == "dropout",
        mode="bf16" if mode == "bf16" else "amp" if mode == "amp" else "fp32",
        one_sequence=mbs == "1",
    )
    modules = Module.FULL if checkpointing == "full" else Module.NOTHING
    return context, RankShape(mbs=int(mbs), recompute=modules)


def held_by_graph(piece: Piece, context: OpContext, shape: RankShape) -> float:
    whole = bool(shape.recompute) and context.model.family != "gpt2"
    hidden = _ARGUMENTS if whole else {"layers/rotary"} if shape.recompute else set()
    return sum(
        saved_bytes(row, context, shape)
        for op in piece.ops
        for row in op.saved
        if row.kept_under(shape.recompute) and row.name not in hidden
    )


@pytest.mark.parametrize("line", COUNTED.strip().splitlines())
def test_saved_bytes(line: str) -> None:
    row = line.split()
    context, shape = context_of(row)
    table = pieces(context)
    layer, ends = table[0], table[len(context.model.kinds) :]
    assert held_by_graph(layer, context, shape) == pytest.approx(float(row[7]), rel=1e-6)
    outside = sum(held_by_graph(piece, context, shape) for piece in ends)
    assert outside == pytest.approx(float(row[8]), rel=1e-4)


@pytest.mark.parametrize("line", [line for line in COUNTED.strip().splitlines() if "amp" in line])
def test_weight_casts(line: str) -> None:
    row = line.split()
    context, shape = context_of(row)
    figures = [piece_on_rank(piece, context, shape) for piece in pieces(context)]
    if shape.recompute is Module.NOTHING:
        # Positions of nanoGPT's table are rounded up with the vocabulary in its count.
        assert figures[0].casts == pytest.approx(float(row[9]), rel=1e-9)
    outside = sum(piece.casts for piece in figures[len(context.model.kinds) :])
    assert outside == pytest.approx(float(row[10]), rel=1e-9)
