"""NeMo AutoModel (NVIDIA-NeMo/Automodel 0.7.0): YAML of its recipes, read and written."""
