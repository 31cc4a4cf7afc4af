"""What a checkpoint's quantization_config says of its weights."""

from __future__ import annotations

from typing import Any

import pytest

from planner.predict.memory.serving.formats import WEIGHT_FORMATS, published_format


def _tensors(kind: str, bits: int) -> dict[str, Any]:
    group = {"weights": {"type": kind, "num_bits": bits}, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert":
          ["model.layers.0.self_attn.q_proj", "lm_head"]}, "fp8-ffn"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "gptq", "bits": 3}, None),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn"]}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (_tensors("int", 4), "int4"),
        (_tensors("float", 8), "fp8"),
        ({"quant_method": "bitsandbytes"}, None),
        ("fp8", None),
    ],
)  # fmt: skip
def test_the_format_is_read_from_the_checkpoint(stated: object, name: str | None) -> None:
    assert published_format({"quantization_config": stated}) == name
    assert name is None or name in WEIGHT_FORMATS
