"""Training on GPUs of several types: pipeline stages of one type each, data parallel inside it."""
