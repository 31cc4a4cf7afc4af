"""The search for ways to run reinforcement learning: who trains, who samples, on which GPUs."""
