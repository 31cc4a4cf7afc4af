"""The search for ways to run reinforcement learning: who trains and who samples, on which GPUs."""
