"""The search for ways to run reinforcement learning: placement, split of GPUs, both sides' plans."""
