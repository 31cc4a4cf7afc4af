"""The cost of a step of reinforcement learning: generation, reading, training, moving weights."""
