"""Measured runs of reinforcement learning: read, predicted, judged."""
