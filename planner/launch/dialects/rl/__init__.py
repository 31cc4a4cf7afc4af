"""Reinforcement learning: verl, NeMo-RL, TRL, OpenRLHF and slime, whose files say a trainer and an
engine that samples, and where the two run."""
