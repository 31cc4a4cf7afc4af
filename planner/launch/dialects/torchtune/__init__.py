"""torchtune (pytorch/torchtune, bd2a0fc7c): YAML of its recipes, read and not written."""
