"""NeMo AutoModel (NVIDIA-NeMo/Automodel, 36044ad3d): YAML of its recipes, read and not written."""
