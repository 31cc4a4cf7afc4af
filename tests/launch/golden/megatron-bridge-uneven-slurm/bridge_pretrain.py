"""Starts Megatron-Bridge 0.6 with overrides: python bridge_pretrain.py section.field=value ...

Written by planner launch. Megatron-Bridge only warns about an override of a field that does not
exist, so this script refuses it.
"""

import os
import sys

from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.recipes.gpt import vanilla_gpt_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides


def main(overrides):
    config = vanilla_gpt_pretrain_config()
    config.model = GPTModelProvider()
    # Objects in place of names: their fields can be overridden one by one.
    config.mixed_precision = get_mixed_precision_config("bf16_mixed")
    config.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    if os.environ.get("DATA_PATH"):
        config.dataset.blend = ([os.environ["DATA_PATH"]], None)
    for override in overrides:
        section, field = override.split("=", 1)[0].split(".")
        if not hasattr(getattr(config, section), field):
            sys.exit(f"{override}: this Megatron-Bridge has no such setting; wanted: 0.6")
    config = process_config_with_overrides(config, cli_overrides=overrides)
    pretrain(config=config, forward_step_func=forward_step)


if __name__ == "__main__":
    main(sys.argv[1:])
