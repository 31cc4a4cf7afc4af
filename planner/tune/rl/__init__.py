"""Short runs of plans of reinforcement learning."""
