"""Parameters against models built in transformers 5.23: equal to the last one."""

from __future__ import annotations

import pytest

from planner.frameworks import load_framework
from planner.ops import parameter_count
from planner.ops.context import OpContext
from planner.ops.table import pieces
from tests.truth.models import reference_model

# model | total, embedding with positions, LM head, active, experts, first layer, attention and
# feed-forward block of the last layer.
BUILT = """
gpt2 124439808 39383808 0 124439808 0 7087872 2362368 4722432
gpt2-medium 354823168 52511744 0 354823168 0 12596224 4198400 8393728
gpt2-large 774030080 65639680 0 774030080 0 19677440 6558720 13113600
llama-7b 6738415616 131072000 131072000 6738415616 0 202383360 67108864 135266304
llama-33b 32528943616 212992000 212992000 32528943616 0 535049216 177209344 357826560
llama-65b 65285660672 262144000 262144000 65285660672 0 809517056 268435456 541065216
llama-3-8b 8030261248 525336576 525336576 8030261248 0 218112000 41943040 176160768
llama-3-70b 70553706496 1050673152 1050673152 70553706496 0 855654400 150994944 704643072
llama-3.2-3b 3212749824 394002432 0 3212749824 0 100669440 25165824 75497472
mixtral-8x7b 46702792704 131072000 131072000 12879925248 45097156608 1451270144 41943040 1409318912
qwen2.5-0.5b 494032768 136134656 0 494032768 0 14912384 1836160 13074432
qwen2.5-32b 32763876352 778567680 778567680 32763876352 0 487605248 62921728 424673280
qwen3-8b 8190735360 622329856 622329856 8190735360 0 192946432 41943296 150994944
gemma-2-2b 2614341888 589824000 0 2614341888 0 77865984 14155776 63700992
phi-3-mini 3821079552 98500608 98500608 3821079552 0 113252352 37748736 75497472
"""


@pytest.mark.parametrize("line", BUILT.strip().splitlines())
def test_parameters(line: str) -> None:
    name, *figures = line.split()
    total, embedding, head, active, experts, layer, attention, mlp = map(int, figures)
    model = reference_model(name)
    count = parameter_count(model)
    norm = model.hidden * (2 if model.norm_bias else 1)
    # The head's piece includes the final norm.
    assert (count.total, count.embedding, count.head - norm) == (total, embedding, head)
    assert (count.active, count.experts) == (active, experts)
    table = pieces(OpContext(model, load_framework("hf-transformers"), 2048))
    kinds = [table[index] for index in model.kind_indices]
    assert kinds[0].parameters == layer
    norms = ("attention/norm", "attention/post_norm", "ffn/norm", "ffn/post_norm")
    per_block = {"attention": 0.0, "mlp": 0.0}
    for op in kinds[-1].ops:
        if op.name not in norms:
            block = "attention" if op.name.startswith("attention") else "mlp"
            per_block[block] += op.parameter_count
    assert per_block == {"attention": attention, "mlp": mlp}
