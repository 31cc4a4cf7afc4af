"""Reinforcement learning: what is sampled, what judges the samples, and where each part runs."""
