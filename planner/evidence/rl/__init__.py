"""Measured runs of reinforcement learning: read, predicted, judged; what they say of error bars."""
