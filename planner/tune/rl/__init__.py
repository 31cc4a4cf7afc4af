"""Short runs of reinforcement-learning plans."""
