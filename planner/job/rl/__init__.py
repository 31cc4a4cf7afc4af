"""Reinforcement learning: what is sampled, what judges it, who trains, and where each runs."""
