"""Memory of serving a model: weights by format, KV cache by layer, and the engine's overhead."""
