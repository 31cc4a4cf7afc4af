"""What a step of reinforcement learning costs: generation, reading, training, moving weights."""
