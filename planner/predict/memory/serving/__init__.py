"""Memory of serving a model: weights by format, KV cache by layer, what the engine adds."""
