"""Measured training runs: reading them, and predicting each from its configuration alone."""
