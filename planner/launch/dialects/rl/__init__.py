"""Reinforcement learning: verl, NeMo-RL, TRL, OpenRLHF and slime. Their files describe a trainer,
an engine that samples, and the GPUs of each."""
